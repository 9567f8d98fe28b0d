package rival

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// newMemoryDir returns a folder in memory if the system has one: syncing takes no time there.
func newMemoryDir(t testing.TB) string {
	t.Helper()

	dir, err := os.MkdirTemp("/dev/shm", "rival-") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	return dir
}

// newNode is a simulated node of this process.
func newNode(t testing.TB, text string) *sim.Node {
	t.Helper()

	path := filepath.Join(newMemoryDir(t), scenarioFile)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	s, err := sim.Load(path)
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { node.Close() })

	return node
}

// joinNode returns the node of all processes that work in a folder.
func joinNode(t testing.TB, dir string) *sim.Node {
	t.Helper()

	s, err := sim.Load(filepath.Join(dir, scenarioFile))
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.Join(s, sim.ClockStep, filepath.Join(dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { node.Close() })

	return node
}

// sameProcess is our program in the process of the test. Killed, it lives on as a ghost that
// changes nothing any more; the next start finds its state as it was at that moment.
type sameProcess struct {
	h       *harness
	dir     string // of the states
	starts  int
	session *session
	dead    bool
}

func (s *sameProcess) folder() string { return filepath.Join(s.dir, fmt.Sprint("state-", s.starts)) }

func (s *sameProcess) at(p point) verdict {
	v := s.h.decideAt(p)
	if v == die && !s.dead {
		s.dead = true

		next := filepath.Join(s.dir, fmt.Sprint("state-", s.starts+1))
		if err := os.CopyFS(next, os.DirFS(s.folder())); err != nil {
			s.h.t.Error(err)
		}
	}

	return v
}

func (s *sameProcess) start() bool {
	if s.dead {
		s.starts++
	}

	s.dead = false

	var err error
	if s.session, err = startSession(simnvml.New(s.h.node), &hook{s.at}, s.folder(), "boot-1"); err != nil && !s.dead {
		s.h.t.Fatal(err)
	}

	return s.alive()
}

// alive buries the ghost.
func (s *sameProcess) alive() bool {
	if s.dead && s.session != nil {
		_ = s.session.end()
		s.session = nil
	}

	return !s.dead
}

func (s *sameProcess) do(r request) (answer, bool) {
	a := s.session.do(r)
	return a, s.alive()
}

func (s *sameProcess) end() {
	if err := s.session.end(); err != nil {
		s.h.t.Error(err)
	}
}

func newSameProcess(t testing.TB, text string, seed uint64) *harness {
	t.Helper()
	node := newNode(t, text)
	h := newHarness(t, node, seed)
	rival := newPartitioner(nodeFace{node})
	t.Cleanup(rival.kill)
	h.rival = rival
	h.ours = &sameProcess{h: h, dir: newMemoryDir(t)}

	return h
}
