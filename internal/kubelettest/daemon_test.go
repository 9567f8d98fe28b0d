package kubelettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// daemon is a program that runs beside the tests. Its log goes on when it is started again.
type daemon struct {
	name    string
	command []string
	dir     string // of the log
	process *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

func (d *daemon) start() error {
	log, err := os.OpenFile(filepath.Join(d.dir, d.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	d.process = exec.Command(d.command[0], d.command[1:]...)

	d.process.Stdout = log

	d.process.Stderr = log
	if err := d.process.Start(); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}

	process := d.process
	ended := make(chan struct{})
	d.ended = ended
	go func() {
		_ = process.Wait() // it is stopped by a signal
		close(ended)
	}()

	return nil
}

// stop ends the process, and not its children: containers outlive their runtime and their kubelet.
func (d *daemon) stop(signal syscall.Signal) error {
	if err := d.process.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", d.name, err)
	}

	select {
	case <-d.ended:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("stop %s: it does not end", d.name)
	}
}

// running returns an error if the process has ended.
func (d *daemon) running() error {
	select {
	case <-d.ended:
		return fmt.Errorf("%s has ended: see %s", d.name, filepath.Join(d.dir, d.name+".log"))
	default:
		return nil
	}
}
