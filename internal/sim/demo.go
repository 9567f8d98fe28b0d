package sim

import _ "embed"

// demoFile is the name of the demo's scenario file, in errors and in the name of the scenario.
const demoFile = "dgx-a100-mixed.yaml"

// demoScenario is also testdata/scenarios/dgx-a100-mixed.yaml, by a symbolic link.
//
//go:embed dgx-a100-mixed.yaml
var demoScenario []byte

// Demo returns the scenario that is built into the program: a DGX A100 that several teams share.
func Demo() (*Scenario, error) { return Parse(demoFile, demoScenario) }
