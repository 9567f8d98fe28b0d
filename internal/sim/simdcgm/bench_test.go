package simdcgm

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// BenchmarkProfile is one cycle over 8 GPUs, 56 GPU instances and 56 compute instances: of
// dcgmsource alone, over an engine whose answers stand ready. At one cycle a second, 2 % of a core
// are 20 ms of CPU time.
func BenchmarkProfile(b *testing.B) {
	var layout strings.Builder
	for start := range 7 {
		fmt.Fprintf(&layout, "1g.5gb@%d, ", start)
	}

	s, err := sim.Parse("bench.yaml", fmt.Appendf(nil,
		"version: 1\nnode: {kubernetes: false}\ngpus: [{model: A100-40GB, count: 8, mig: true, layout: [%s]}]\n",
		strings.TrimSuffix(layout.String(), ", ")))
	if err != nil {
		b.Fatal(err)
	}

	node, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		b.Fatal(err)
	}

	defer func() { _ = node.Close() }()

	ready := &readyEngine{Connector: New(node)}
	for name, engine := range map[string]dcgmsource.Connector{"engine=ready": ready, "engine=simulated": New(node)} {
		b.Run(name, func(b *testing.B) { benchmark(b, node, engine) })
	}
}

func benchmark(b *testing.B, node *sim.Node, engine dcgmsource.Connector) {
	source := dcgmsource.New(engine, dcgmsource.Options{Now: node.Now})
	r := rig{node: node, prints: make([]string, node.Count()), gone: map[string]bool{}}
	r.look()

	profile := func() map[gpu.UUID]gpu.Profiling {
		answer, err := source.Profile(r.snapshot)
		if err != nil {
			b.Fatal(err)
		}

		return answer
	}
	for range 6 {
		profile()

		if err := node.Advance(time.Second); err != nil {
			b.Fatal(err)
		}
	}

	instances := 0
	computeInstances := 0

	for _, p := range profile() {
		instances += len(p.Instances)
		computeInstances += len(p.ComputeInstances)
	}

	if instances != 56 || computeInstances != 56 {
		b.Fatalf("%d instances, %d compute instances", instances, computeInstances)
	}

	calls := source.Calls()
	begun := cpuTime(b)
	b.ReportAllocs()
	b.ResetTimer()

	for range b.N {
		profile()
	}

	b.StopTimer()
	b.ReportMetric(float64(source.Calls()-calls)/float64(b.N), "calls/op")
	b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N)/1e7, "%core@1Hz")

	if err := source.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// readyEngine answers from what the simulated engine said the first time at a second.
type readyEngine struct{ *Connector }

func (e *readyEngine) Connect() (dcgmsource.Session, error) {
	s, err := e.Connector.Connect()
	return &readySession{Session: s, node: e.node, values: map[dcgmsource.Entity][]dcgmsource.Value{}}, err
}

type readySession struct {
	dcgmsource.Session
	node   *sim.Node
	at     time.Time
	tree   []dcgmsource.MIGEntity
	values map[dcgmsource.Entity][]dcgmsource.Value
}

func (s *readySession) fresh() {
	if now := s.node.Now(); !now.Equal(s.at) {
		s.at = now
		s.tree = nil
		clear(s.values)
	}
}

func (s *readySession) Hierarchy(to []dcgmsource.MIGEntity) ([]dcgmsource.MIGEntity, error) {
	s.fresh()

	var err error
	if s.tree == nil {
		s.tree, err = s.Session.Hierarchy(nil)
	}

	return append(to, s.tree...), err
}

func (s *readySession) Latest(to []dcgmsource.Value, entities []dcgmsource.Entity,
	fields []uint16) ([]dcgmsource.Value, error) {
	s.fresh()
	first := entities[0]

	var err error
	if s.values[first] == nil {
		s.values[first], err = s.Session.Latest(nil, entities, fields)
	}

	return append(to, s.values[first]...), err
}
