package sim

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// The scenario that is built in needs no other file, and is the one of the examples in the
// documentation.
func TestDemo(t *testing.T) {
	demo, err := Demo()
	if err != nil {
		t.Fatal(err)
	}

	file, err := Load(scenarioFolder + "/dgx-a100-mixed.yaml")
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "name", demo.Name, file.Name)
	cmptest.Equal(t, "digest", demo.digest, file.digest)

	startScenario(t, demo)
}
