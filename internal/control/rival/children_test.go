package rival

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The roles of a child process.
const (
	roleProgram     = "ours"
	rolePartitioner = "theirs"
)

// The files of a node, in the folder that its processes work in.
const (
	scenarioFile = "scenario.yaml"
	stateFile    = "node.json"
	libraryFile  = "./libnvidia-ml.so.1" // a path, not a name that the linker looks up
)

// message is a line between the test and a child process with our program. After its start, the
// child sends a point, which the test answers with a verdict, or the answer to the last request.
type message struct {
	Point   *point   `json:"point,omitempty"`
	Answer  *answer  `json:"answer,omitempty"`
	Verdict *verdict `json:"verdict,omitempty"`
	Request *request `json:"request,omitempty"`
}

// playRole runs a child process until its standard input ends.
func playRole(role string) error {
	in := json.NewDecoder(os.Stdin)

	out := json.NewEncoder(os.Stdout)
	if role == rolePartitioner {
		return playPartitioner(in, out)
	}

	return playProgram(in, out)
}

func playPartitioner(in *json.Decoder, out *json.Encoder) error {
	face, err := newNVMLClient(libraryFile)
	if err != nil {
		return err
	}

	p := newPartitioner(face)

	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}

		if err := out.Encode(p.step(o)); err != nil {
			return err
		}
	}
}

func playProgram(in *json.Decoder, out *json.Encoder) error {
	var asking sync.Mutex // a point and its verdict
	verdicts := make(chan verdict)
	requests := make(chan request)
	go func() {
		defer close(requests)

		for {
			var m message
			if in.Decode(&m) != nil {
				return
			}

			if m.Verdict != nil {
				verdicts <- *m.Verdict
			} else {
				requests <- *m.Request
			}
		}
	}()
	h := &hook{func(p point) verdict {
		asking.Lock()
		defer asking.Unlock()

		if out.Encode(message{Point: &p}) != nil {
			return die
		}

		return <-verdicts
	}}

	s, err := startSession(nvmlsource.Open(libraryFile), h, stateFolder, "boot-1")
	if err != nil {
		return err
	}

	if err := out.Encode(message{Answer: &answer{}}); err != nil {
		return err
	}

	for r := range requests {
		a := s.do(r)
		asking.Lock()
		err := out.Encode(message{Answer: &a})
		asking.Unlock()

		if err != nil {
			return err
		}
	}

	return nil
}

// child is a child process of the test.
type child struct {
	t    testing.TB
	cmd  *exec.Cmd
	name string
	to   io.WriteCloser
	in   *json.Encoder
	out  *json.Decoder
}

// startChild starts a process on the node whose files are in the folder.
func startChild(t testing.TB, role, dir string) *child {
	t.Helper()
	c := &child{t: t, name: role, cmd: exec.Command(os.Args[0])}
	c.cmd.Dir = dir
	c.cmd.Env = append(os.Environ(), roleVariable+"="+role, "MIG_SIM_SCENARIO="+scenarioFile, "MIG_SIM_STATE="+stateFile,
		"MIG_SIM_CLOCK=step")
	c.cmd.Stderr = os.Stderr

	var err error
	if c.to, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}

	from, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}

	c.in, c.out = json.NewEncoder(c.to), json.NewDecoder(from)

	return c
}

func (c *child) send(what any) {
	c.t.Helper()

	if err := c.in.Encode(what); err != nil {
		c.t.Fatalf("%s: %v", c.name, err)
	}
}

func (c *child) receive(what any) {
	c.t.Helper()

	if err := c.out.Decode(what); err != nil {
		c.t.Fatalf("%s: %v, %v", c.name, err, c.cmd.Wait())
	}
}

// kill kills the process with SIGKILL, in the middle of whatever it does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // it was killed
}

// end lets the process end by itself.
func (c *child) end() {
	c.t.Helper()

	if err := errors.Join(c.to.Close(), c.cmd.Wait()); err != nil {
		c.t.Errorf("%s: %v", c.name, err)
	}
}

// otherPartitioner is the foreign partitioner in a process of its own.
type otherPartitioner struct {
	t   testing.TB
	dir string
	c   *child
}

func (p *otherPartitioner) step(o order) (m move) {
	if p.c == nil {
		p.c = startChild(p.t, rolePartitioner, p.dir)
	}

	p.c.send(o)
	p.c.receive(&m)

	return m
}

func (p *otherPartitioner) kill() {
	if p.c != nil {
		p.c.kill()
		p.c = nil
	}
}

// otherProcess is our program in a process of its own.
type otherProcess struct {
	h   *harness
	dir string
	c   *child
}

func (p *otherProcess) start() bool {
	p.c = startChild(p.h.t, roleProgram, p.dir)
	_, alive := p.awaitAnswer()

	return alive
}

// awaitAnswer answers the points that the process passes until it answers itself, or is killed at
// one.
func (p *otherProcess) awaitAnswer() (answer, bool) {
	for {
		var m message
		p.c.receive(&m)

		if m.Answer != nil {
			return *m.Answer, true
		}

		v := p.h.decideAt(*m.Point)
		if v == die {
			p.c.kill()
			return answer{}, false
		}

		p.c.send(message{Verdict: &v})
	}
}

func (p *otherProcess) do(r request) (answer, bool) {
	p.c.send(message{Request: &r})
	return p.awaitAnswer()
}

func (p *otherProcess) end() { p.c.end() }

// newProcesses returns a harness whose sides are processes of their own, over the simulated
// driver's C library.
func newProcesses(t testing.TB, text string, seed uint64) *harness {
	t.Helper()

	dir := newMemoryDir(t)
	if err := os.WriteFile(filepath.Join(dir, scenarioFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(libraryPath, filepath.Join(dir, libraryFile)); err != nil {
		t.Fatal(err)
	}

	h := newHarness(t, joinNode(t, dir), seed)
	rival := &otherPartitioner{t: t, dir: dir}
	t.Cleanup(rival.kill)
	h.rival = rival
	h.ours = &otherProcess{h: h, dir: dir}

	return h
}
