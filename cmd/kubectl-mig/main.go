// kubectl-mig is the plugin "kubectl mig": migctl's commands on the nodes of a cluster. It reaches
// the exporter of a node only by port-forward, with a token that only that node accepts.
package main

import (
	"os"
	"path/filepath"
	"strings"
)

// completer is the name by which kubectl asks a plugin for completions.
const completer = "kubectl_complete-mig"

func main() {
	args := os.Args[1:]

	program := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	if program == completer {
		os.Exit(complete(os.Stdout, args))
	}

	os.Exit(newPlugin().program().Run(args))
}
