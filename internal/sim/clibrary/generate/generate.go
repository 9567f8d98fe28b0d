// Command generate writes exports.c and functions.go of a simulated library into the current folder.
// Its argument is the header from which it generates them: nvml.h or dcgm_agent.h.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/mig-exporter/mig-exporter/internal/sim/clibrary"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1) //nolint:forbidigo // the main function of a program
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("expected the name of a header")
	}

	path, err := clibrary.FindHeader(args[0])
	if err != nil {
		return err
	}

	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}

	functions, err := clibrary.Functions(string(text))
	if err != nil {
		return err
	}

	for name, content := range clibrary.Generate(args[0], functions) {
		if err := os.WriteFile(name, []byte(content), 0o666); err != nil {
			return err
		}
	}

	return nil
}
