package sim

import (
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func TestBootID(t *testing.T) {
	scenario, err := Parse("test.yaml", []byte("version: 1\ngpus: [{model: A30}]\n"))
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "node.json")

	open := func(shared bool) *Node {
		n, err := New(scenario, NewClock(ClockStep))
		if shared {
			n, err = Join(scenario, ClockStep, path)
		}

		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { n.Close() })

		return n
	}
	if one, other := open(false), open(false); one.BootID() == other.BootID() {
		t.Error("a node of its own has the boot id of another")
	}

	a := open(true)
	b := open(true)

	before := a.BootID()
	if before != b.BootID() || before != open(true).BootID() {
		t.Error("one node has several boot ids")
	}

	if err := a.Reboot(); err != nil {
		t.Fatal(err)
	}

	after := b.BootID()
	if after == before {
		t.Errorf("boot id %s, as before the reboot", after)
	}

	cmptest.Equal(t, "boot ids after the reboot", [2]string{a.BootID(), open(true).BootID()}, [2]string{after, after})
}
