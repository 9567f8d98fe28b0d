package migctl

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// goneFlags returns the flags that earlier versions had, each with what to do instead.
func goneFlags() map[string]string {
	limits := advise.DefaultOptions()

	return map[string]string{
		"abandon": "use migctl accept OPERATION, which leaves the layout as it is",
		"headroom": fmt.Sprintf(
			"leave it out: a slice has %v of the highest memory use free",
			limits.Headroom,
		),
		"spec":               "use -o spec, of migctl recommend and of migctl fleet",
		"prometheus.timeout": "use --timeout; without it an answer may take " + queryTimeout.String(),
		"target-busy":        fmt.Sprintf("leave it out: a slice is busy for at most %v at p99", limits.TargetBusy),
	}
}

// refuseGone returns an error if a command line has a flag that is gone.
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
