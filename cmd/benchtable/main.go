// Benchtable makes the tables of docs/performance.md from what `go test -bench` prints: make bench
// runs both.
//
// We use no benchstat: it compares runs in tables of its own, and does not know the titles, the order
// and the targets of our tables, nor which figures are missing.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
)

func main() {
	err := writeTables(
		os.Stdout,
		os.Stdin,
		fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()),
	)
	if err != nil {
		fmt.Fprintf(os.Stderr, "benchtable: %v\n", err)
		os.Exit(1)
	}
}

// writeTables reads the output of benchmarks and writes their tables, without the figures that the
// output lacks: the error names their benchmarks.
func writeTables(to io.Writer, from io.Reader, machine string) error {
	runs, cpu, err := read(from)
	if err != nil {
		return err
	}

	if cpu != "" {
		machine = cpu + ", " + machine
	}

	text, missing := tables(runs, machine)
	if _, err := io.WriteString(to, text); err != nil {
		return err
	}

	if len(missing) > 0 {
		return fmt.Errorf("no such benchmarks: %q", missing)
	}

	return nil
}
