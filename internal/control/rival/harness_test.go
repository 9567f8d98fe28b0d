package rival

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// scenario is the node of the runs: on the first GPU a process is on one of the instances.
const scenario = `
version: 1
node: {hostname: rival, driver: "580.95.05", privileged: true}
workloads:
  - {name: serving, memory: 2GiB, sm: 10}
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0", "1g.5gb@2"]}
  - {model: A100-40GB, mig: true, layout: ["1g.5gb@0"]}
processes:
  - {device: "0/3g.20gb@4", workload: serving}
`

// partitionerSide is the foreign partitioner, in this process or in one of its own.
type partitionerSide interface {
	step(order) move
	kill()
}

// programSide is our program, in this process or in one of its own. do returns false if it was
// killed meanwhile.
type programSide interface {
	start() (alive bool)
	do(request) (answer, bool)
	end()
}

// harness lets both sides work on one node, as a seed decides.
type harness struct {
	t      testing.TB
	node   *sim.Node    // the same that they see
	rng    *rand.Rand   // of requests
	rngs   []*rand.Rand // of what happens on each GPU: GPUs are read at the same time
	rival  partitionerSide
	ours   programSide
	mu     sync.Mutex
	judge  *oracle
	chance chance
	script func(point) // instead of chances, in tests of one interleaving
	alone  bool        // the rival never has a turn
	seed   uint64      // of this run
	orders []uint64    // given so far, for each GPU

	requests, kills int
	last            answer
}

// chance is what may happen during one request, drawn before it.
type chance struct {
	atRead, atChange float64 // that the turn is handed over at a point
	dieAt, dieOn     int     // the point of a GPU at which our process is killed; 0 is never
	failAt, failures int     // the change that the driver refuses first, and how many
	points, changes  int     // so far, points of the GPU dieOn
}

func newHarness(t testing.TB, node *sim.Node, seed uint64) *harness {
	t.Helper()
	h := &harness{t: t, node: node, rng: rand.New(rand.NewPCG(seed, 1)), seed: seed}
	var uuids []gpu.UUID

	for i := range node.Count() {
		s, err := node.Read(i, gpu.ReadingDevice)
		if err != nil {
			t.Fatal(err)
		}

		uuids = append(uuids, s.UUID)
		h.rngs = append(h.rngs, rand.New(rand.NewPCG(seed, uint64(i)+2)))
	}

	h.orders = make([]uint64, len(uuids))
	h.judge = newOracle(uuids, func(i int) tree { return treeOf(t, node, i) }, h.isBusy)

	return h
}

func (h *harness) isBusy(index int, of, id uint32) bool {
	s, err := h.node.Read(index, gpu.ReadingProcesses)
	if err != nil {
		h.t.Fatal(err)
	}

	for _, p := range s.Processes {
		if p.Instance == gpu.Some(gpu.InstanceID(of)) && p.Compute == gpu.Some(gpu.ComputeID(id)) {
			return true
		}
	}

	return false
}

// decideAt decides what happens at a point of ours. It is the hook of our program.
func (h *harness) decideAt(p point) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()

	c := &h.chance
	if p.GPU == c.dieOn {
		c.points++
	}

	if c.dieAt > 0 && c.points > c.dieAt {
		return die
	}

	if p.After {
		h.judge.passed(p)
	}

	if h.script != nil {
		h.script(p)
	} else {
		h.handOver(p)
	}

	refuse := false

	if p.changes() && !p.After {
		c.changes++
		refuse = c.failAt > 0 && c.changes >= c.failAt && c.changes < c.failAt+c.failures
	}

	if c.dieAt > 0 && c.points == c.dieAt {
		h.kills++
		h.judge.crashed(p)

		return die
	}

	if !p.After {
		h.judge.passed(p)
	}

	if refuse {
		h.judge.refusedByDriver(p)
		return fail
	}

	return proceed
}

// handOver gives the rival its turn on the GPU that the point is about, or does not.
func (h *harness) handOver(p point) {
	odds := h.chance.atRead

	switch {
	case p.Kind == wholeRead || p.Kind == planned:
		return
	case p.changes():
		odds = h.chance.atChange
	}

	if odds > 0 && h.rngs[p.GPU].Float64() < odds {
		h.takeTurn(p.GPU)
	}
}

// takeTurn gives the rival a turn: some calls, or all that its program still has to make.
func (h *harness) takeTurn(index int) {
	if h.alone {
		return
	}

	h.judge.handovers++

	rng := h.rngs[index]
	if rng.IntN(40) == 0 {
		h.judge.note("the rival is killed")
		h.rival.kill()
	}

	calls := 1 + rng.IntN(6)
	if rng.IntN(2) == 0 {
		calls = 64
	}

	for range calls {
		h.orders[index]++
		if m := h.moveRival(order{GPU: index, Seed: h.seed<<32 + h.orders[index]<<8 + uint64(index)}); m.Ended {
			return
		}
	}
}

func (h *harness) moveRival(o order) move {
	m := h.rival.step(o)
	h.judge.moved(m)

	return m
}

// runToEnd runs a program of the rival to its end.
func (h *harness) runToEnd(o order) {
	for {
		if m := h.moveRival(o); m.Ended {
			return
		}
	}
}

// drawChance draws what may happen during the next request.
func (h *harness) drawChance() chance {
	r := h.rng
	c := chance{}

	switch r.IntN(4) {
	case 0:
		c.atChange = 0.25
	case 1:
		c.atRead = 0.01
	case 2:
		c.atRead = 0.003
		c.atChange = 0.1
	}

	if r.IntN(8) == 0 {
		c.dieAt, c.dieOn = 1+r.IntN(500), r.IntN(h.node.Count())
	}

	switch r.IntN(10) {
	case 0, 1:
		c.failAt = 1 + r.IntN(5)
		c.failures = 1
	case 2:
		c.failAt = 1 + r.IntN(5)
		c.failures = 12
	}

	return c
}

// request draws what is asked of our program next.
func (h *harness) request() request {
	for _, op := range h.judge.ops {
		if !op.closed {
			if h.rng.IntN(2) == 0 {
				return request{Kind: doAccept, ID: op.id}
			}

			return request{Kind: doRollback, ID: op.id}
		}
	}

	if n := len(h.judge.ops); n > 0 && h.rng.IntN(6) == 0 && h.judge.ops[n-1].state == api.Succeeded {
		return request{Kind: doRollback, ID: h.judge.ops[n-1].id}
	}

	return request{Kind: doApply, Spec: specs()[h.rng.IntN(len(specs()))]}
}

// makeRequests makes so many requests, with what happens meanwhile.
func (h *harness) makeRequests(requests int) {
	h.t.Helper()
	alive := false

	for n := 0; n < requests && len(h.judge.broken) == 0; n++ {
		h.chance = h.drawChance()
		if !alive {
			alive = h.startProgram()
			continue
		}

		alive = h.makeRequest(h.request())
		if !alive {
			for range h.rng.IntN(3) {
				h.takeTurn(h.rng.IntN(h.node.Count()))
			}
		}
	}

	h.chance = chance{}
	if alive {
		h.ours.end()
	}

	h.judge.finish()
}

// startProgram starts our program and judges what it has made of what it found.
func (h *harness) startProgram() (alive bool) {
	h.judge.note("ours starts")
	return h.ours.start() && h.makeRequest(request{Kind: doLook})
}

func (h *harness) makeRequest(r request) (alive bool) {
	h.requests++
	h.judge.note(fmt.Sprintf("%s %s %v", r.Kind, r.ID, r.Spec))

	if r.Kind == doRollback {
		h.judge.rollingBack(r.ID)
	}

	if op := h.judge.byID(r.ID); r.Kind == doAccept {
		op.accepted = true
	}

	a, alive := h.ours.do(r)
	if alive {
		h.judge.answered(r, a)
		h.last = a
	}

	return alive
}

// report fails the test if a rule was broken, with the calls that led to the first.
func (h *harness) report(t *testing.T) {
	t.Helper()

	if len(h.judge.broken) == 0 {
		return
	}

	log := h.judge.log
	t.Errorf("seed %d: %s\nthe last calls:\n%s", h.seed, strings.Join(h.judge.broken, "\n"),
		strings.Join(log[max(len(log)-*shown, 0):], "\n"))
}

// specs are what operators ask for.
func specs() []api.Spec {
	one := func(index api.Selector, devices map[string]api.DeviceRequest) api.Spec {
		return api.Spec{GPUs: []api.Selector{index}, Devices: devices}
	}
	type devices = map[string]api.DeviceRequest

	return []api.Spec{
		one("0", devices{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 3}}),
		one("0", devices{"3g.20gb": {Count: 2}}),
		one("0", devices{"3g.20gb": {Count: 1}, "2g.10gb": {Count: 1, Compute: []string{"1c", "1c"}}, "1g.5gb": {Count: 1}}),
		one("1", devices{"3g.20gb": {Count: 2}}),
		one("1", devices{"2g.10gb": {Count: 2}, "3g.20gb": {Count: 1, Compute: []string{"1c", "2c"}}}),
		one("1", devices{"7g.40gb": {Count: 1}}),
		one("1", devices{"1g.5gb": {Count: 4}}),
		one("1", devices{}),
		one("all", devices{"3g.20gb": {Count: 2}}),
		one("all", devices{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 1}}),
	}
}
