package main

import "strings"

// goneFlags returns the flags of earlier versions, with what became of each.
func goneFlags() map[string]string {
	return map[string]string{
		"abandon":            "use migctl accept OPERATION, which leaves the layout as it is",
		"headroom":           "leave it out: a slice has 0.15 of the highest memory use free",
		"prometheus.timeout": "leave it out: an answer may take " + queryTimeout.String(),
		"target-busy":        "leave it out: a slice is busy for at most 0.8 at p99",
	}
}

// refuseGone returns an error if a command line has a flag of an earlier version.
func refuseGone(args []string) error {
	gone := goneFlags()

	for _, arg := range args {
		if arg == "--" {
			break
		}

		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if became, ok := gone[name]; ok && strings.HasPrefix(arg, "--") {
			return usageError{"--" + name + " is gone: " + became}
		}
	}

	return nil
}
