package sim

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// shared is a node's connection to a state file. The node's mu guards it.
type shared struct {
	path     string
	scenario *Scenario
	lockFile *os.File // we hold its lock while we change the state
	state    *stateFile
	file     *os.File // the state file as last read or written, open: see readState
	known    int      // how many of the state's changes the node has made, or has on its schedule
	err      error    // why we cannot use the file now; a later sync can clear it
	broken   error    // why this node's state has diverged from the other nodes' for good
	watching sync.WaitGroup
}

// lockTimeout is how long a node waits while another node changes the state.
const lockTimeout = 5 * time.Second

// watchInterval is how often a node looks for changes of other nodes. Without that, a client blocked
// in a call (for an event, or by a fault that hangs) would not notice them.
const watchInterval = 100 * time.Millisecond

// Join starts a node on a state file that it shares with other nodes, usually in other processes.
// All have the same clock. If a client of one node changes the partition of a GPU, clients of the
// other nodes see that in their next call. The first node creates the file; a node that joins later
// replays all changes. The scenario and the clock mode must be the same for all. The error wraps
// ErrState if the file cannot be used.
func Join(s *Scenario, mode ClockMode, path string) (*Node, error) {
	sh := &shared{path: path, scenario: s}

	clock, err := sh.open(mode)
	if err != nil {
		sh.close()
		return nil, err
	}

	n, err := New(s, clock)
	if err != nil {
		sh.close()
		return nil, err
	}

	n.mu.Lock()
	n.shared = sh
	n.takeChanges()
	n.catchUp(n.clock.Now())
	err = n.stateError()
	n.mu.Unlock()

	if err != nil {
		sh.close()
		return nil, err
	}

	sh.watching.Go(func() { n.watchShared() })

	return n, nil
}

// open reads or creates the state file, and returns the clock that it describes.
func (sh *shared) open(mode ClockMode) (clock *Clock, err error) {
	if sh.lockFile, err = os.OpenFile(sh.path+".lock", os.O_CREATE|os.O_RDWR, 0o666); err != nil {
		return nil, sh.wrapError(err)
	}

	if err := sh.lock(); err != nil {
		return nil, err
	}

	defer sh.unlock()
	clock = NewClock(mode)

	sh.state, sh.file, err = readState(sh.path, sh.scenario)
	if errors.Is(err, fs.ErrNotExist) {
		sh.state = &stateFile{
			Version:  stateVersion,
			ID:       rand.Text(),
			Scenario: sh.scenario.Name,
			Digest:   sh.scenario.digest,
			Clock:    stateClock{Mode: mode, Start: clock.start.UTC()},
			Changes:  []Change{},
		}
		if mode == ClockStep {
			sh.state.Clock.Now = &clock.start
		}

		sh.file, err = writeState(sh.path, sh.state)
	}

	if err != nil {
		return nil, sh.wrapError(err)
	}

	if sh.state.Clock.Mode != mode {
		return nil, sh.wrapError(
			fmt.Errorf(
				"%s: was created with clock mode %s, not %s",
				sh.path,
				sh.state.Clock.Mode,
				mode,
			),
		)
	}

	clock.startAt(sh.state.Clock.Start)

	if now := sh.state.Clock.Now; now != nil {
		clock.moveTo(*now)
	}

	return clock, nil
}

func (sh *shared) wrapError(err error) error { return fmt.Errorf("%w: %w", ErrState, err) }

// lock locks the state file against other nodes. It waits up to lockTimeout.
func (sh *shared) lock() error {
	for deadline := time.Now().Add(lockTimeout); ; {
		err := tryLockFile(sh.lockFile)
		switch {
		case err == nil:
			return nil
		case !isLocked(err):
			return sh.wrapError(fmt.Errorf("lock %s: %w", sh.lockFile.Name(), err))
		case time.Now().After(deadline):
			return sh.wrapError(
				fmt.Errorf(
					"lock %s: another process has held it for %s",
					sh.lockFile.Name(),
					lockTimeout,
				),
			)
		}

		time.Sleep(time.Millisecond)
	}
}

// unlock releases the file's lock. It can only fail if the file is closed, which also releases the
// lock.
func (sh *shared) unlock() { unlockFile(sh.lockFile) }

// close closes the files.
func (sh *shared) close() {
	for _, f := range []*os.File{sh.lockFile, sh.file} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// leaveShared waits until watchShared has ended, and closes the state file.
func (n *Node) leaveShared() {
	if n.shared == nil {
		return
	}

	n.shared.watching.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()

	n.shared.close()
}

// watchShared applies the changes of other nodes while no client calls this one, until the node is
// closed.
func (n *Node) watchShared() {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()

	for {
		select {
		case <-n.closed:
			return
		case <-ticker.C:
			n.lockAndCatchUp()
			n.mu.Unlock()
		}
	}
}

// write replaces the state that all nodes share. The caller holds the file's lock.
func (sh *shared) write(next *stateFile) error {
	file, err := writeState(sh.path, next)
	if err != nil {
		return sh.wrapError(err)
	}

	_ = sh.file.Close()
	sh.state = next
	sh.file = file

	return nil
}

// add adds a change that this node has made. The caller holds the file's lock.
func (sh *shared) add(c Change) error {
	next := *sh.state
	if len(next.Changes) == maxChanges {
		return sh.wrapError(
			fmt.Errorf("%s: has %d changes; remove it to start again", sh.path, maxChanges),
		)
	}

	// The limited capacity makes append copy: if the write fails, sh.state stays as it is.
	next.Changes = append(next.Changes[:len(next.Changes):len(next.Changes)], c)
	if err := sh.write(&next); err != nil {
		return err
	}

	sh.known = len(next.Changes)

	return nil
}

// advanceShared moves the stepped clock of all nodes.
func (n *Node) advanceShared(by time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()

	sh := n.shared
	if err := sh.lock(); err != nil {
		return err
	}

	defer sh.unlock()
	n.syncShared()

	if err := n.stateError(); err != nil {
		return err
	}

	if err := n.clock.checkAdvance(by); err != nil {
		return err
	}

	next := *sh.state
	now := n.clock.Now().Add(by)
	next.Clock.Now = &now

	if err := sh.write(&next); err != nil {
		return err
	}

	return n.clock.Advance(by)
}

// syncShared schedules the changes that other nodes have made since its last call. Each change
// replaces the file, so if there was none, two calls of stat are all that it costs.
func (n *Node) syncShared() {
	sh := n.shared
	if sh == nil || n.isClosed() {
		return
	}

	lastRead, err := sh.file.Stat()
	if err != nil {
		sh.err = sh.wrapError(err)
		return
	}

	if current, err := os.Stat(sh.path); err == nil && os.SameFile(lastRead, current) {
		sh.err = nil
		return
	}

	state, file, err := readState(sh.path, n.scenario)
	switch {
	case err != nil:
		sh.err = sh.wrapError(err)
		return
	case state.ID != sh.state.ID || len(state.Changes) < sh.known:
		_ = file.Close()
		sh.err = sh.wrapError(
			fmt.Errorf("%s: was created anew; restart every process that uses it", sh.path),
		)

		return
	}

	_ = sh.file.Close()

	sh.state = state
	sh.file = file
	sh.err = nil

	if now := state.Clock.Now; now != nil {
		n.clock.moveTo(*now)
	}

	n.takeChanges()
}

// stateError returns why the shared state cannot be used; nil if it can. Driver calls fail with it.
func (n *Node) stateError() error {
	switch {
	case n.shared == nil:
		return nil
	case n.shared.broken != nil:
		return n.shared.broken
	}

	return n.shared.err
}

func (n *Node) isClosed() bool {
	select {
	case <-n.closed:
		return true
	default:
		return false
	}
}

// takeChanges schedules the changes that are new to this node: each at its time, or at once if the
// node is past that.
func (n *Node) takeChanges() {
	sh := n.shared
	now := n.clock.Now()

	for i, c := range sh.state.Changes[sh.known:] {
		number := sh.known + i

		at := c.At
		if at.After(now) { // the wall clock was set
			at = now
		}

		if at.Before(n.stateTime) {
			at = n.stateTime
		}

		n.schedule = append(n.schedule, scheduledEvent{at, rankChange, func() {
			if err := n.redo(c); err != nil {
				sh.broken = sh.wrapError(fmt.Errorf("%s: change %d: %w", sh.path, number, err))
			}
		}})
	}

	sh.known = len(sh.state.Changes)
	n.sortSchedule()
}
