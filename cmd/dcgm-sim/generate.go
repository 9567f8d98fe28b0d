//go:build ignore

// This program writes exports.c and functions.go from the dcgm_agent.h of the go-dcgm module.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mig-exporter/mig-exporter/cmd/dcgm-sim/header"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/dcgm/dcgm_agent.h"))
	if err != nil {
		return err
	}
	functions, err := header.Functions(string(text))
	if err != nil {
		return err
	}
	for name, content := range header.Generate(functions) {
		if err := os.WriteFile(name, []byte(content), 0o666); err != nil {
			return err
		}
	}
	return nil
}
