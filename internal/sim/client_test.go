package sim

import (
	"errors"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// twoDomains has a GPU in a second PCI domain, the ninth.
const twoDomains = "version: 1\ngpus: [{model: A100-40GB, count: 9}]\n"

func clientNode(t *testing.T, text string) *Node {
	t.Helper()

	scenario, err := Parse("client.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	node, err := New(scenario, NewClock(ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	return node
}

// NVML counts initialisations: GPUs stay open until as many have ended as began, whichever of them
// attached the GPUs.
func TestLastEndClosesGPUs(t *testing.T) {
	all := []int{0, 1}

	one := []int{1}
	for _, c := range []struct {
		name   string
		attach []bool // of the Begins
		open   []int  // until the last End, after a lookup of GPU 1
	}{
		{"once", []bool{true}, all},
		{"twice", []bool{true, true}, all},
		{"without attaching", []bool{false}, one},
		{"without attaching, twice", []bool{false, false}, one},
		{"attached, then without", []bool{true, false}, all},
		{"without, then attached", []bool{false, true}, one},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := clientNode(t, "version: 1\ngpus: [{model: A30, count: 2}]\n")

			client := node.NewClient(nil)
			for _, attach := range c.attach {
				if err := client.Begin(attach); err != nil {
					t.Fatal(err)
				}
			}

			if err := client.Open(1); err != nil {
				t.Fatal(err)
			}

			for range c.attach {
				cmptest.Equal(t, "open before an End", node.OpenGPUs(), c.open)

				if !client.End() {
					t.Error("an End of a Begin is none")
				}
			}

			cmptest.Equal(t, "open after the last End", len(node.OpenGPUs()), 0)
			cmptest.Equal(t, "one End too many", client.End(), false)
		})
	}
}

// A shutdown of one client leaves open what another has.
func TestClientsKeepGPUsOpenApart(t *testing.T) {
	node := clientNode(t, "version: 1\ngpus: [{model: A30, count: 2}]\n")

	first := node.NewClient(nil)

	second := node.NewClient(nil)
	for client, attach := range map[*Client]bool{first: true, second: false} {
		if err := client.Begin(attach); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := second.At(1); err != nil {
		t.Fatal(err)
	}

	first.End()
	cmptest.Equal(t, "open for the second", node.OpenGPUs(), []int{1})
	second.End()
	cmptest.Equal(t, "open for none", len(node.OpenGPUs()), 0)
}

func TestFindBusID(t *testing.T) {
	node := clientNode(t, twoDomains)
	for _, c := range []struct {
		busID string
		index int
		err   error
	}{
		{"0000:0f:00.0", 1, nil},
		{"00000000:0F:00.0", 1, nil},
		{"0000:0f:00", 1, nil},
		{"0f:00.0", 1, nil},
		{"0001:07:00.0", 8, nil},
		{"07:00.0", 0, nil}, // domain 0
		{"0000:0f:00.1", 0, gpu.ErrNotFound},
		{"0000:0f:01.0", 0, gpu.ErrNotFound},
		{"0002:07:00.0", 0, gpu.ErrNotFound},
		{"0000:0f", 0, gpu.ErrInvalidArgument},
		{"0f:00", 0, gpu.ErrInvalidArgument},
		{"there", 0, gpu.ErrInvalidArgument},
		{"", 0, gpu.ErrInvalidArgument},
	} {
		index, err := node.FindBusID(c.busID)
		if index != c.index || !errors.Is(err, c.err) {
			t.Errorf("%q: GPU %d, error %v, want GPU %d, error %v", c.busID, index, err, c.index, c.err)
		}
	}
}
