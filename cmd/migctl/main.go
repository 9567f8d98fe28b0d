// migctl is the operator's command line for partition control.
package main

import (
	"os"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
)

func main() { os.Exit(migctl.Run(os.Args[1:])) }
