//go:build unix

package migctl

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gdamore/tcell/v2"
)

// stopWithin is the time within which a process stops after SIGTSTP, unless the kernel drops the
// signal.
const stopWithin = 100 * time.Millisecond

// notifyContinued has c receive a signal whenever a shell continues this process.
func notifyContinued(c chan<- os.Signal) { signal.Notify(c, syscall.SIGCONT) }

// suspend gives the terminal back to the shell, stops the process as Ctrl-Z does in other programs,
// and takes the terminal again when the shell continues the process.
func suspend(screen tcell.Screen, continued <-chan os.Signal) error {
	if err := screen.Suspend(); err != nil {
		return err
	}

	// The whole job stops, as it does if the terminal sends the signal: sudo may be part of it.
	if err := syscall.Kill(0, syscall.SIGTSTP); err != nil {
		return err
	}

	// The process may run on for a moment, until a thread of it takes the signal. Without a shell that
	// could continue us, as in "ssh -t HOST migctl top", the kernel drops the signal and we never stop.
	select {
	case <-continued:
	case <-time.After(stopWithin):
	}

	return screen.Resume()
}
