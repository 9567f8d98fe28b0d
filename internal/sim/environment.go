package sim

import "fmt"

// FromEnvironment starts the node that environment variables describe: MIG_SIM_SCENARIO is the path
// of a scenario, MIG_SIM_CLOCK the clock mode (default real), and MIG_SIM_STATE the state file of a
// node that is shared with other processes. An error names the variable.
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
