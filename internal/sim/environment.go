package sim

import "fmt"

// FromEnvironment makes the node that the environment describes to a library: MIG_SIM_SCENARIO, a
// file; MIG_SIM_CLOCK, real if it is not set; and MIG_SIM_STATE, if the node is shared with other
// processes. An error names the variable.
func FromEnvironment(getenv func(string) string) (*Node, error) {
	path := getenv("MIG_SIM_SCENARIO")
	if path == "" {
		return nil, fmt.Errorf("MIG_SIM_SCENARIO is not set: expected the path of a scenario")
	}

	mode := ClockReal

	if text := getenv("MIG_SIM_CLOCK"); text != "" {
		var err error
		if mode, err = ParseClockMode(text); err != nil {
			return nil, fmt.Errorf("MIG_SIM_CLOCK: %w", err)
		}
	}

	scenario, err := Load(path)
	if err != nil {
		return nil, fmt.Errorf("MIG_SIM_SCENARIO: %w", err)
	}

	if state := getenv("MIG_SIM_STATE"); state != "" {
		node, err := Join(scenario, mode, state)
		if err != nil {
			return nil, fmt.Errorf("MIG_SIM_STATE: %w", err)
		}

		return node, nil
	}

	return New(scenario, NewClock(mode))
}
