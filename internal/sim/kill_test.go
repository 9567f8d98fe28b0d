package sim

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A process that is killed in the middle of its changes leaves a whole state, which others go on
// with: what it was reported as done is done.
func TestProcessThatIsKilled(t *testing.T) {
	const variable = "SIM_TEST_KILLED"
	if path := os.Getenv(variable); path != "" {
		n := join(t, path)
		for {
			id, err := n.CreateGPUInstance(0, 19, gpu.Opt[int]{})
			if err != nil {
				t.Fatal(err)
			}

			fmt.Println(id)

			if err := n.DestroyGPUInstance(0, id); err != nil {
				t.Fatal(err)
			}
		}
	}

	for kill := range 8 {
		path := statePath(t)
		other := exec.Command(os.Args[0], "-test.run=^TestProcessThatIsKilled$")
		other.Env = append(os.Environ(), variable+"="+path)

		out, err := other.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}

		if err := other.Start(); err != nil {
			t.Fatal(err)
		}

		lines := bufio.NewScanner(out)

		done := 0
		for done <= 3*kill && lines.Scan() {
			done++
		}

		if err := other.Process.Kill(); err != nil {
			t.Fatal(err)
		}

		for lines.Scan() {
			done++
		}

		if err := other.Wait(); err == nil || done <= 3*kill {
			t.Fatalf("it ended by itself after %d", done)
		}

		n := join(t, path)
		if changes := len(n.shared.state.Changes); changes < 2*done-1 {
			t.Errorf("%d changes on record; %d instances were made before the kill", changes, done)
		}

		if s := state(t, n, 0); len(s.Instances) != 1 && len(s.Instances) != 2 {
			t.Errorf("instances %+v", s.Instances)
		}

		if err := n.Reset(0); err != nil {
			t.Fatal(err)
		}

		cutAndMend(t, n)

		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}
