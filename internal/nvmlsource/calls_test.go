package nvmlsource_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

var update = flag.Bool("update", false, "rewrite the tables of driver calls in docs/performance.md")

const (
	performancePage = "../../docs/performance.md"
	tableBegins     = "<!-- driver calls: go test ./internal/nvmlsource -run TestDocs -update -->\n"
	tableEnds       = "<!-- end of driver calls -->\n"
	slowTier        = 15 * time.Second
)

// bench is the node of testdata/scenarios/h100-56.yaml: eight GPUs in seven instances each.
type bench struct {
	*sim.Node
	t      *testing.T
	calls  *calls
	source *nvmlsource.Source
}

// repartitionAt is when another client repartitions the bench's GPU 0; no slow tier is due then.
const repartitionAt = 100 * time.Second

// newBench changes the scenario where edit is not nil.
func newBench(t *testing.T, edit func(scenario string) string) *bench {
	t.Helper()

	text, err := os.ReadFile("../../testdata/scenarios/h100-56.yaml")
	if err != nil {
		t.Fatal(err)
	}

	layoutChanged := fmt.Sprintf("  - {at: %s, gpu: 0, kind: external-reconfigure, layout: [\"3g.40gb@4\", "+
		"\"1g.10gb@0\", \"1g.10gb@1\"]}\n", repartitionAt)

	head, pods, found := strings.Cut(string(text), "pods:\n")
	if !found {
		t.Fatal("no pods in the scenario")
	}

	whole := head + layoutChanged + "pods:\n" + pods
	if edit != nil {
		whole = edit(whole)
	}

	scenario, err := sim.Parse("bench.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	b := &bench{Node: n, t: t, calls: &calls{made: map[call]int{}, devices: map[any]string{}}}
	b.source = nvmlsource.New(nvmlsource.Intercept(simnvml.New(n), b.calls),
		nvmlsource.Options{Now: n.Now, SlowEvery: slowTier, Logger: log.NewNopLogger()})
	t.Cleanup(func() {
		if err := b.source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}

		n.Close()
	})

	return b
}

// poll reads the node as the loop does, after a time, and returns the calls that were made for
// that: each of them once.
func (b *bench) poll(after time.Duration) map[call]int {
	b.t.Helper()

	if err := b.Advance(after); err != nil {
		b.t.Fatal(err)
	}

	b.AwaitHandled(b.t.Context())
	counted := b.source.DriverCalls()

	inventory, err := b.source.Discover()
	if err != nil {
		b.t.Fatal(err)
	}

	for _, found := range inventory.GPUs {
		g, err := b.source.Read(found.UUID)
		if err != nil || len(g.Errors) > 0 {
			b.t.Fatalf("GPU %d: %v, errors %v", found.Index, err, g.Errors)
		}

		cmptest.Equal(b.t, "the GPU is up", g.Up, true)
	}

	made := b.calls.taken()

	total := 0
	for c, times := range made {
		total += times
		if times > 1 {
			b.t.Errorf("%s of %s with arguments %q is called %d times in one poll", c.function, c.entity, c.arguments, times)
		}
	}

	if counted = b.source.DriverCalls() - counted; uint64(total) != counted {
		b.t.Errorf("%d calls were made, %d were counted", total, counted)
	}

	return made
}

// No call is made twice for one entity in a poll, which poll checks; between two slow tiers polls
// make the same calls, and a slow tier the same ones as the slow tier before.
func TestEveryPollOfATierMakesTheSameCalls(t *testing.T) {
	b := newBench(t, nil)
	b.poll(0)
	b.poll(0) // the first one found that events are delivered, after its scan
	lists := 0
	var fast, slow map[call]int

	for second := 1; second <= 4*15; second++ {
		made := b.poll(time.Second)

		last := &fast
		if second%15 == 0 {
			last = &slow
		}

		for c := range made {
			if c.function != "nvmlDeviceGetMPSComputeRunningProcesses" {
				continue
			}

			if second%60 != 0 {
				t.Errorf("the clients of MPS are listed after %d s", second)
			}

			delete(made, c)
			lists++
		}

		if *last == nil {
			*last = made
		}

		if !maps.Equal(*last, made) {
			t.Fatalf("the poll after %d s makes other calls than the one of its tier before: %d and %d", second, len(made),
				len(*last))
		}
	}

	cmptest.Equal(t, "lists of MPS clients in a minute", lists, b.Count())

	for c := range fast {
		if slow[c] == 0 {
			t.Errorf("the slow tier leaves out %s of %s", c.function, c.entity)
		}
	}
}

// staticFacts are asked of a GPU once: nothing but a change of its MIG mode or a new handle makes
// them new.
func staticFacts() []string {
	return []string{
		"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetArchitecture",
		"nvmlDeviceGetSerial",
		"nvmlDeviceGetVbiosVersion", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetNumGpuCores",
		"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlDeviceGetGpuInstancePossiblePlacements",
	}
}

// treeDetails are asked of an instance once in a layout of its GPU.
func treeDetails() []string {
	return []string{"nvmlDeviceGetName", "nvmlDeviceGetAttributes", "nvmlGpuInstanceGetComputeInstances"}
}

// A layout change makes the details of its own GPU's instances new, once, and nothing else.
func TestStaticFactsAreReadOncePerLayout(t *testing.T) {
	b := newBench(t, nil)

	first := b.poll(0)
	for i := range b.Count() {
		for _, function := range staticFacts() {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(first)), func(c call) bool {
				return c.function == function && (c.entity == fmt.Sprintf("GPU %d", i) || c.entity == ofNode)
			}) {
				t.Errorf("the first poll makes no call of %s for GPU %d", function, i)
			}
		}
	}

	b.poll(repartitionAt - 2*time.Second)
	before := b.poll(time.Second)

	made := b.poll(time.Second)
	for c := range made {
		own := strings.Contains(c.entity, "GPU 0")
		if !own && before[c] == 0 {
			t.Errorf("a layout change of GPU 0 makes a call of %s of %s", c.function, c.entity)
		}

		if c.function == "nvmlDeviceGetNumGpuCores" {
			continue // the driver did not support it under MIG, which a reported change may end
		}

		if (kindOf(c.entity) == "GPU" || c.entity == ofNode) && slices.Contains(staticFacts(), c.function) {
			t.Errorf("%s of %s is asked again after a layout change", c.function, c.entity)
		}
	}

	for _, function := range treeDetails() {
		asked := 0

		for c := range made {
			if c.function == function && kindOf(c.entity) != "GPU" {
				asked++
			}
		}

		if asked != 3 {
			t.Errorf("%s is asked %d times of a GPU that was partitioned into three instances", function, asked)
		}
	}

	for c := range b.poll(time.Second) {
		if kindOf(c.entity) != "GPU" && slices.Contains(treeDetails(), c.function) {
			t.Errorf("%s of %s is asked again in the same layout", c.function, c.entity)
		}
	}
}

// kindOf is what an entity is: node, GPU, GPU-instance or MIG-device.
func kindOf(entity string) string {
	kind, _, _ := strings.Cut(entity, " ")
	return kind
}

// row is a line of the table: how often a function is called for all entities of a kind, at the
// start, and in a poll of each tier.
type row struct {
	kind, function    string
	start, slow, fast int
}

// tableOfCalls is the table of docs/performance.md.
func tableOfCalls(b *bench) string {
	start := b.poll(0)
	b.poll(time.Second)
	fast := b.poll(time.Second)
	slow := b.poll(slowTier)
	rows := map[[2]string]*row{}
	var total row

	for c := range start {
		key := [2]string{kindOf(c.entity), c.function}
		if rows[key] == nil {
			rows[key] = &row{kind: key[0], function: key[1]}
		}

		for _, r := range []*row{rows[key], &total} {
			r.start++
			r.slow += slow[c]
			r.fast += fast[c]
		}
	}

	if total.slow != len(slow) || total.fast != len(fast) {
		b.t.Error("a later poll makes a call that the first did not")
	}

	kinds := []string{ofNode, "GPU", "GPU-instance", "MIG-device"}
	var text strings.Builder
	text.WriteString("| of | function | first poll | poll of the slow tier | any other poll |\n|---|---|--:|--:|--:|\n")

	for _, r := range slices.SortedFunc(maps.Values(rows), func(a, b *row) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)), cmp.Compare(b.fast, a.fast),
			cmp.Compare(b.slow, a.slow), cmp.Compare(a.function, b.function))
	}) {
		fmt.Fprintf(&text, "| %s | %s | %s |\n", strings.ReplaceAll(r.kind, "-", " "), r.function,
			counts(r.start, r.slow, r.fast))
	}

	fmt.Fprintf(&text, "| **all** | | %s |\n", counts(total.start, total.slow, total.fast))

	return text.String()
}

// counts writes numbers of calls as cells, none as an empty one.
func counts(numbers ...int) string {
	var cells []string

	for _, n := range numbers {
		cell := ""
		if n > 0 {
			cell = fmt.Sprint(n)
		}

		cells = append(cells, cell)
	}

	return strings.Join(cells, " | ")
}

// TestDocsDriverCalls holds the tables of docs/performance.md to the calls that are made. With
// -update it rewrites them.
func TestDocsDriverCalls(t *testing.T) {
	for _, table := range []struct{ begins, ends, want string }{
		{tableBegins, tableEnds, tableOfCalls(newBench(t, nil))},
		{stepsBegin, stepsEnd, tableOfSteps(t)},
	} {
		page, err := os.ReadFile(performancePage)
		if err != nil {
			t.Fatal(err)
		}

		before, rest, begins := strings.Cut(string(page), table.begins)

		got, after, ends := strings.Cut(rest, table.ends)
		switch {
		case !begins || !ends:
			t.Errorf("%s has no table between %q and %q", performancePage, table.begins, table.ends)
		case *update:
			if err := os.WriteFile(performancePage, []byte(before+table.begins+table.want+table.ends+after), 0o644); err != nil {
				t.Error(err)
			}
		case got != table.want:
			t.Errorf("a table in %s is out of date (make docs rewrites it); it is\n%s", performancePage, table.want)
		}
	}
}
