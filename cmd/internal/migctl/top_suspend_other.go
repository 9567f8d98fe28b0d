//go:build !unix

package migctl

import (
	"os"

	"github.com/gdamore/tcell/v2"
)

// notifyContinued does nothing: without job control no shell stops a process.
func notifyContinued(chan<- os.Signal) {}

// suspend does nothing, for the same reason: Ctrl-Z is a key like others.
func suspend(tcell.Screen, <-chan os.Signal) error { return nil }
