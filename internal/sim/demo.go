package sim

import _ "embed"

// demoFile names the demo's scenario in errors; the scenario's own name derives from it.
const demoFile = "dgx-a100-mixed.yaml"

// testdata/scenarios/dgx-a100-mixed.yaml is a symbolic link to the same file.
//
//go:embed dgx-a100-mixed.yaml
var demoScenario []byte

// Demo returns the scenario that is built into the program: a DGX A100 that several teams share.
func Demo() (*Scenario, error) { return Parse(demoFile, demoScenario) }
