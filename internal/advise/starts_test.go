package advise

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// stage is what a GPU shows for some minutes: the memory in GiB that what holds it uses, if
// anything does.
type stage struct {
	minutes int
	gib     float64
	change  func(*gpu.GPU)
}

// held is a stage of a pod, free one of a GPU that nothing holds, gone one that is not observed.
func held(minutes int, gib float64) stage { return stage{minutes: minutes, gib: gib} }

func heldBy(uid string, minutes int, gib float64) stage {
	return stage{minutes, gib, func(g *gpu.GPU) { g.Holders[0].PodUID = uid }}
}

func free(minutes int) stage {
	return stage{minutes, 0, func(g *gpu.GPU) { g.Holders, g.Allocated = nil, gpu.Some(false) }}
}

func gone(minutes int) stage { return stage{minutes, 0, func(g *gpu.GPU) { g.UUID = "" }} }

// restart is a stage without time, in which the exporter is restarted with its evidence.
func restart() stage { return stage{} }

func runs(pid uint32, minutes int, gib float64) stage {
	return stage{minutes, gib, func(g *gpu.GPU) { g.Readings.Processes = gpu.Some([]gpu.Process{{PID: pid}}) }}
}

// play shows a GPU in stages, a minute at a time, and returns the last Snapshot.
func play(t testing.TB, a *Advisor, at time.Time, stages ...stage) *gpu.Snapshot {
	t.Helper()

	var s *gpu.Snapshot

	for _, stage := range stages {
		g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.01, gib: stage.gib}, pod("ml", "Deployment/a"))
		if stage.change != nil {
			stage.change(&g)
		}

		for range stage.minutes {
			s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{g}}
			if at = at.Add(time.Minute); g.UUID != "" {
				a.Observe(s)
			}
		}
	}

	return s
}

// playOver is as play, and returns the Advisor that there is after the restarts of the exporter.
func playOver(t testing.TB, a *Advisor, at time.Time, stages ...stage) (*Advisor, *gpu.Snapshot) {
	t.Helper()

	var s *gpu.Snapshot

	for _, stage := range stages {
		if stage.minutes == 0 {
			evidence := a.Checkpoint()
			a = New(fastOptions())
			a.Restore(evidence)

			continue
		}

		s = play(t, a, at, stage)
		at = s.Time.Add(time.Minute)
	}

	return a, s
}

// seenStart is how many starts of the workload were seen, and the largest use of memory in them, in
// GiB.
type seenStart struct {
	count int
	gib   float64
}

func startCases() map[string]struct {
	stages []stage
	want   seenStart
} {
	const day = 24 * 60
	undescribed := stage{1, 3, func(g *gpu.GPU) { g.Holders[0].Undescribed, g.Holders[0].Workload = true, "" }}
	undescribedNext := func(gib float64) stage {
		return stage{1, gib, func(g *gpu.GPU) {
			h := &g.Holders[0]
			h.PodUID, h.Undescribed, h.Workload = "uid-2", true, ""
		}}
	}
	unread := stage{10, 8, func(g *gpu.GPU) { g.Readings.Processes = gpu.None[[]gpu.Process]() }}
	unnamed := stage{5, 30, func(g *gpu.GPU) { g.Holders, g.Allocated = nil, gpu.None[bool]() }}
	small := func(s stage) stage { s.gib = 0.9; return s }
	idles := []stage{free(1), runs(1, 100, 8), runs(2, 5, 60), runs(2, 100, 8), runs(9, day+10, 0.5)}
	idleInTurns := append([]stage{}, idles[:4]...)

	for pid := uint32(9); pid < 12; pid++ {
		idleInTurns = append(idleInTurns, runs(pid, day+10, 0.5))
	}

	workers := []stage{free(1), runs(1, 5, 60), runs(1, 100, 8)}

	for pid := uint32(2); pid < 10; pid++ {
		workers = append(workers, runs(pid, 2*60, 8))
	}

	builds := []stage{held(5, 20), held(1, 60), held(1, 0)}
	fails := append([]stage{free(1)}, builds...)

	for range 10 {
		fails = append(fails, held(5, 10), held(1, 20), held(1, 0))
	}

	grows := func(minutes int, gib float64) []stage {
		var list []stage
		for minute := range minutes {
			list = append(list, heldBy("uid-2", 1, gib*float64(minute+1)/float64(minutes)))
		}

		return list
	}
	serves := heldBy("uid-1", 9*day, 8)

	process := func(minutes int, gib float64) stage {
		return stage{minutes, gib, func(g *gpu.GPU) {
			g.Holders, g.Allocated = nil, gpu.None[bool]()
			g.Readings.Processes = gpu.Some([]gpu.Process{{PID: 7}})
		}}
	}

	labeled := stage{60, 8, func(g *gpu.GPU) { g.Holders[0].Rightsizing.Workload = "b" }}

	return map[string]struct {
		stages []stage
		want   seenStart
	}{
		"falls by a tenth":                  {[]stage{free(1), held(5, 30), held(62, 26)}, seenStart{1, 30}},
		"falls, and grows within the hour":  {[]stage{free(1), held(5, 30), held(40, 20), held(5, 50), held(40, 40)}, seenStart{}},
		"falls, and ends":                   {[]stage{free(1), held(5, 30), held(1, 26), free(1)}, seenStart{1, 30}},
		"falls by less":                     {[]stage{free(1), held(5, 30), held(30, 28)}, seenStart{}},
		"flat for an hour":                  {[]stage{free(1), held(62, 8)}, seenStart{1, 8}},
		"flat for less":                     {[]stage{free(1), held(58, 8)}, seenStart{}},
		"grows for an hour and more":        {[]stage{free(1), held(40, 8), held(40, 20), held(40, 30), held(62, 34)}, seenStart{1, 34}},
		"grows in rounds":                   {[]stage{free(1), held(5, 20), held(5, 12), held(5, 33), held(200, 9)}, seenStart{1, 33}},
		"grows long after its start":        {[]stage{free(1), held(5, 20), held(200, 12), held(5, 33)}, seenStart{1, 20}},
		"was there, and is described later": {[]stage{small(undescribed), held(9*day, 0.9)}, seenStart{}},
		"was there, and is named later":     {[]stage{small(unnamed), held(9*day, 0.9)}, seenStart{}},
		"was named late, and then loads":    {[]stage{small(unnamed), held(5, 0.9), held(5, 30), held(62, 8)}, seenStart{1, 30}},
		"came to memory of the driver":      {[]stage{small(free(1)), held(2*day, 0.9)}, seenStart{1, 0.9}},
		"was there before the exporter":     {[]stage{held(9*day, 8)}, seenStart{}},
		"came while nothing was observed":   {[]stage{free(1), gone(5), held(9*day, 8)}, seenStart{}},
		"was not observed in its start":     {[]stage{free(1), held(5, 8), gone(5), held(9*day, 8)}, seenStart{0, 8}},
		"used memory before it was named":   {[]stage{free(1), unnamed, held(9*day, 30)}, seenStart{}},
		"is described a poll after a restart": {[]stage{free(1), held(5, 10), restart(), small(undescribed), held(62, 8)},
			seenStart{0, 10}},
		"was building, and is described later": {[]stage{undescribed, held(5, 60), held(1, 0), held(62, 8)}, seenStart{0, 8}},
		"was described a poll later":           {[]stage{free(1), undescribed, held(62, 8)}, seenStart{1, 8}},
		"its label changes while it starts":    {[]stage{free(1), held(5, 30), held(5, 20), labeled}, seenStart{1, 30}},
		"its label changes":                    {[]stage{held(100, 8), labeled, held(100, 8)}, seenStart{}},
		"takes the place of another": {[]stage{heldBy("uid-1", 100, 8), heldBy("uid-2", 5, 30), heldBy("uid-2", 62, 8)},
			seenStart{1, 30}},
		"is restarted":                        {[]stage{held(100, 8), held(1, 0.3), held(5, 30), held(62, 8)}, seenStart{1, 30}},
		"is restarted between two polls":      {[]stage{runs(7, 100, 8), runs(8, 5, 30), runs(8, 62, 8)}, seenStart{1, 30}},
		"has a process that idles":            {idles, seenStart{3, 60}},
		"has processes that idle":             {idleInTurns, seenStart{5, 60}},
		"replaces its worker again and again": {workers, seenStart{9, 60}},
		"prepares, and then serves": {[]stage{free(1), runs(7, 5, 30), runs(7, 1, 60), runs(8, 5, 20), runs(8, 62, 8)},
			seenStart{1, 60}},
		"waits, builds, and then serves":           {slices.Concat([]stage{free(1), held(90, 0)}, builds, []stage{held(62, 8)}), seenStart{1, 60}},
		"is restarted, builds, and then serves":    {slices.Concat([]stage{held(300, 8), held(1, 0)}, builds, []stage{held(62, 8)}), seenStart{1, 60}},
		"is restarted, and checks before it loads": {[]stage{held(300, 6), held(1, 0), held(1, 0.4), held(1, 0), held(5, 20)}, seenStart{}},
		"is restarted, and checks an hour before":  {[]stage{held(300, 6), held(1, 0), held(1, 0.4), held(62, 0), held(5, 20)}, seenStart{0, 0.4}},
		"is deleted before it loads":               {[]stage{heldBy("uid-1", 9*day, 6), heldBy("uid-2", 3, 0.5), free(1)}, seenStart{}},
		"is deleted while it loads":                {[]stage{heldBy("uid-1", 9*day, 6), heldBy("uid-2", 9, 3), free(1)}, seenStart{}},
		"is not described when it takes the place of another": {[]stage{heldBy("uid-1", 9*day, 6), undescribedNext(0.4),
			heldBy("uid-2", 5, 0.4)}, seenStart{}},
		"ends while it is not observed":  {[]stage{free(1), held(5, 10), gone(60), held(9, 0), free(1)}, seenStart{0, 10}},
		"ends in a gap, and serves then": {[]stage{free(1), held(5, 10), gone(5), held(1, 0), held(62, 8)}, seenStart{0, 10}},
		"is a notebook whose kernel was lost": {[]stage{held(20, 8), restart(), held(10, 8), held(10, 0), held(20, 20),
			held(10, 0), held(30, 8), held(10, 0), held(20, 30), held(61, 0), held(1, 0)}, seenStart{1, 30}},
		"is restarted in a gap, and builds": {[]stage{free(1), runs(1, 300, 8), gone(5), runs(2, 5, 60), runs(3, 1, 0), runs(3, 62, 8)},
			seenStart{1, 8}},
		"builds in a gap, and serves then":           {[]stage{free(1), held(5, 10), gone(20), held(1, 10), held(1, 0), held(62, 8)}, seenStart{0, 10}},
		"is restarted long after a gap in a start":   {[]stage{free(1), held(5, 60), gone(20), held(9*day, 6), held(1, 0), held(62, 6)}, seenStart{1, 60}},
		"is not observed while it waits":             {[]stage{free(1), held(5, 0), gone(5), held(5, 30), held(62, 8)}, seenStart{}},
		"is not observed, and waits on":              {[]stage{free(1), held(5, 0), gone(5), held(5, 0), held(5, 30), held(62, 8)}, seenStart{1, 30}},
		"frees its memory, and loads it again":       {[]stage{runs(7, 9*day, 30), runs(7, 60, 0.5), runs(7, 62, 20)}, seenStart{0, 20}},
		"follows another one beside one that stays":  {[]stage{twoRun(300, 30.5), runs(7, 1, 0.5), twoRun(5, 20), twoRun(62, 20)}, seenStart{1, 20}},
		"has processes that cannot always be read":   {[]stage{runs(7, 100, 8), unread, runs(8, 100, 8)}, seenStart{}},
		"builds, fails for an hour, and then serves": {append(fails, held(62, 8)), seenStart{1, 60}},
		"is not observed after the peak of its start": {[]stage{free(1), held(5, 10), held(62, 8), heldBy("uid-2", 5, 60), gone(20),
			heldBy("uid-2", 62, 8)}, seenStart{1, 60}},
		"is replaced while it is not observed": {[]stage{free(1), held(5, 10), held(62, 8), heldBy("uid-2", 5, 60), gone(20),
			heldBy("uid-3", 62, 8)}, seenStart{1, 60}},
		"is not observed after a context grew":  {[]stage{free(1), held(day+60, 0.5), held(5, 60), gone(20), held(62, 8)}, seenStart{1, 60}},
		"prepares, runs once, and ends later":   {[]stage{free(1), held(70, 0), held(30, 20), held(2, 0), free(1)}, seenStart{1, 20}},
		"prepares, runs once, and holds on":     {[]stage{free(1), held(70, 0), held(30, 20), held(60, 0)}, seenStart{1, 20}},
		"was there with little, and ends":       {[]stage{held(30, 0.9), held(10, 0), free(1)}, seenStart{}},
		"is not observed, and ends":             {[]stage{free(1), held(5, 30), gone(20), held(5, 8), held(2, 0), free(1)}, seenStart{0, 30}},
		"came as a process, while not observed": {[]stage{free(1), gone(20), process(1, 0.9), runs(7, 9*day, 0.9)}, seenStart{}},
		"was there as a process":                {[]stage{process(1, 0.9), runs(7, 9*day, 0.9)}, seenStart{}},
		"is a process before its start":         {[]stage{free(1), process(1, 0.9), runs(7, 5, 30), runs(7, 62, 8)}, seenStart{1, 30}},
		"has another worker":                    {[]stage{runs(7, 100, 8), {5, 30, twoProcesses}, runs(8, 5, 8)}, seenStart{}},
		"ends early, as a short job":            {[]stage{free(1), held(10, 8), free(1)}, seenStart{1, 8}},
		"is killed while it loads":              {[]stage{free(1), held(5, 10), held(1, 20), held(1, 0)}, seenStart{}},
		"holds a context for a day":             {[]stage{free(1), held(day+2, 0.5)}, seenStart{1, 0.5}},
		"holds a context for less":              {[]stage{free(1), held(day-2, 0.5)}, seenStart{}},
		"held a context before":                 {[]stage{held(2*day, 0.5)}, seenStart{}},
		"held a context, and then loads":        {[]stage{held(200, 0.5), held(5, 30), held(62, 8)}, seenStart{1, 30}},
		"held a context, and grows little":      {[]stage{held(200, 0.9), held(200, 1.2)}, seenStart{}},
		"held nothing before it loads":          {[]stage{held(200, 0), held(5, 30), held(62, 8)}, seenStart{1, 30}},
		"holds nothing":                         {[]stage{free(1), held(9*day, 0)}, seenStart{}},
		"is killed, and then deleted before it loads": {slices.Concat([]stage{serves}, grows(3, 8),
			[]stage{heldBy("uid-2", 2, 0.5), free(1)}), seenStart{}},
		"is killed, checks, and is then deleted before it loads": {slices.Concat([]stage{serves}, grows(3, 8),
			[]stage{heldBy("uid-2", 2, 0.5), heldBy("uid-2", 1, 0), heldBy("uid-2", 2, 0.5), free(1)}), seenStart{0, 8}},
		"builds, and is deleted before it serves":   {[]stage{free(1), held(5, 60), held(5, 20), held(2, 0.5), free(1)}, seenStart{1, 60}},
		"builds over a restart, and serves then":    {[]stage{free(1), held(5, 10), restart(), held(1, 10), held(1, 0), held(62, 8)}, seenStart{0, 10}},
		"ends over a restart, and serves then":      {[]stage{free(1), held(5, 10), restart(), held(1, 0), held(62, 8)}, seenStart{0, 10}},
		"serves over a restart, and again then":     {[]stage{free(1), held(62, 8), restart(), held(1, 0), held(62, 9)}, seenStart{2, 9}},
		"is restarted long after a restart":         {[]stage{free(1), held(5, 10), restart(), held(62, 8), held(1, 0), held(62, 8)}, seenStart{1, 10}},
		"sleeps over a restart":                     {[]stage{runs(7, 9*day, 30), runs(7, 60, 0.5), restart(), runs(7, 5, 0.5), runs(7, 62, 20)}, seenStart{0, 20}},
		"built when it was first seen":              {[]stage{held(5, 60), held(1, 0), held(62, 8)}, seenStart{0, 8}},
		"came while nothing was observed, and ends": {[]stage{free(1), gone(5), held(5, 60), held(1, 0), held(62, 8)}, seenStart{0, 8}},
		"sleeps in its first hour":                  {[]stage{free(1), runs(7, 5, 60), runs(7, 15, 30), runs(7, 60, 0.5), runs(7, 62, 30)}, seenStart{1, 60}},
		"sleeps in its first hour, and for long":    {[]stage{free(1), runs(7, 5, 60), runs(7, 15, 30), runs(7, day+2, 0.5)}, seenStart{1, 60}},
		"was there with little, and frees it":       {[]stage{runs(7, 9, 0.9), runs(7, 62, 0.2), runs(7, 62, 2)}, seenStart{}},
		"is evicted while it grows":                 {slices.Concat([]stage{serves}, grows(70, 30), []stage{free(1)}), seenStart{0, 30}},
		"grows all its life, for a day":             {slices.Concat([]stage{serves}, grows(day+60, 30), []stage{free(1)}), seenStart{1, 30}},
		"is the first one, and ends at a context":   {[]stage{free(1), held(3, 0.4), free(1)}, seenStart{}},
		"is a small job, as all for a day":          {[]stage{free(1), held(9, 0.4), free(day), heldBy("uid-2", 9, 0.4), free(1)}, seenStart{1, 0.4}},
		"has waited before it loads":                {[]stage{free(1), held(300, 0), held(5, 30), held(62, 8)}, seenStart{1, 30}},
	}
}

func twoRun(minutes int, gib float64) stage { return stage{minutes, gib, twoProcesses} }

func twoProcesses(g *gpu.GPU) { g.Readings.Processes = gpu.Some([]gpu.Process{{PID: 7}, {PID: 8}}) }

// TestStarts: a start counts once all of it was seen, with its largest use of memory.
func TestStarts(t *testing.T) {
	for about, c := range startCases() {
		a, _ := playOver(t, New(fastOptions()), start(), c.stages...)

		var got seenStart
		for _, w := range a.workloads {
			got.count += w.Starts.seen()
			got.gib = max(got.gib, w.Starts.peak()/1024)
		}

		if got.count != c.want.count || got.gib < c.want.gib-0.01 || got.gib > c.want.gib+0.01 {
			t.Errorf("%s: %+v, want %+v", about, got, c.want)
		}
	}
}

// TestStartIsNeeded: what a start needed is needed in a slice, where the container starts again,
// however long ago it was; five later ones take its place.
func TestStartIsNeeded(t *testing.T) {
	const day = 24 * 60
	a := New(fastOptions())
	s := play(t, a, start(), free(1), held(5, 30), held(20*day, 8))
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "after 20 days", r.Recommended, "3g.40gb")
	cmptest.Equal(t, "needs GiB", r.Evidence.MemoryBytes/(1<<30), 30)
	cmptest.Equal(t, "grows by", r.Evidence.MemoryTrend, 0)

	a = restarted(t, a, s)

	at := s.Time.Add(time.Minute)
	for i := range keptStarts + 1 { // the first of them came while the exporter was away
		s = play(t, a, at, heldBy(fmt.Sprint("uid-", i), 5, 8.1), heldBy(fmt.Sprint("uid-", i), 2*day, 8))
		at = s.Time.Add(time.Minute)
	}

	cmptest.Equal(t, "after five others", recommend(a, s).Devices[0].Recommended, "3g.40gb")

	s = play(t, a, at, heldBy("uid-last", 2*day, 8))
	cmptest.Equal(t, "once that has held", recommend(a, s).Devices[0].Recommended, "1g.10gb")
}

// TestProcessesPushOutNoStart: however many processes follow in the containers of a workload, on however
// many GPUs and over restarts of the exporter, what the start of a container needed stays.
func TestProcessesPushOutNoStart(t *testing.T) {
	const replicas, hours = keptStarts + 3, 3

	a := New(fastOptions())
	at := start()
	show := func(minutes int, gib float64, pid uint32) *gpu.Snapshot {
		var gpus []gpu.GPU

		for i := range replicas {
			h := pod("ml", "Deployment/a")
			h.Pod, h.PodUID = fmt.Sprint("a-", i), fmt.Sprint("uid-", i)
			g := wholeGPU(t, "H100-80GB", i, load{busy: 0.5, sm: 0.01, gib: gib}, h)
			g.Readings.Processes = gpu.Some([]gpu.Process{{PID: pid}})
			gpus = append(gpus, g)
		}

		s := observeFor(a, at, time.Duration(minutes)*time.Minute, gpus...)
		at = s.Time.Add(time.Minute)

		return s
	}

	show(5, 60, 1)

	s := show(100, 8, 1)
	for pid := range uint32(2 * keptStarts) {
		s = show(60*hours, 8, pid+2)
		if pid%2 == 0 {
			a = restarted(t, a, s)
		}
	}

	e := recommend(a, s).Devices[0].Evidence
	cmptest.Equal(t, "needs GiB", e.StartMemory/(1<<30), 60)
}

// TestLargestOfTheLastProcesses: of processes that follow in a container, the largest of the last five
// counts.
func TestLargestOfTheLastProcesses(t *testing.T) {
	w := &workload{}
	add := func(again bool, gib float64) {
		(&starting{of: w, again: again, peak: gib * 1024, used: 1024}).count()
	}

	for i, want := range []float64{30, 70, 70, 70, 70, 70, 30, 40, 40} {
		add(true, []float64{30, 70, 30, 30, 30, 30, 30, 40, 10}[i])
		cmptest.Equal(t, fmt.Sprint("after process ", i), w.Starts.peak()/1024, want)
	}

	for range keptStarts - 1 {
		add(false, 20)
	}

	add(true, 25)
	cmptest.Equal(t, "once four containers have started, and another process", w.Starts.peak()/1024, 40)

	for range keptStarts {
		add(false, 20)
	}

	cmptest.Equal(t, "once five containers have started", w.Starts.peak()/1024, 20)
	add(true, 25)
	cmptest.Equal(t, "and another process", w.Starts.peak()/1024, 25)

	w = &workload{}

	for _, gib := range []float64{70, 30, 30, 65, 30, 30} {
		add(true, gib)
	}

	cmptest.Equal(t, "the largest of the last five is not the first", w.Starts.peak()/1024, 65)
}

// TestProcessGrowsAfterAnother: a process that had the size of a context for a day, and grows then, does not
// hide what another one needed meanwhile.
func TestProcessGrowsAfterAnother(t *testing.T) {
	w := &workload{}
	idles := &starting{of: w, again: true, peak: 500, used: 500}
	idles.count()

	for range 2 {
		(&starting{of: w, again: true, peak: 60 << 10, used: 8 << 10}).count()
	}

	idles.open = true
	(&starting{open: true, of: w, again: true, number: 1, peak: 70 << 10}).raise(w)

	idles.peak = 2 << 10
	idles.count()
	cmptest.Equal(t, "what another one had used when it was lost, in GiB", w.Starts.Processes.Peaks[0]/1024, 70)
	w.Starts.Processes.Peaks[0] = 0
	cmptest.Equal(t, "the largest, in GiB", w.Starts.peak()/1024, 60)

	for range keptStarts {
		(&starting{of: w, again: true, peak: 4 << 10}).count()
	}

	idles.peak = 9 << 10
	idles.count()
	cmptest.Equal(t, "once five others have started", w.Starts.peak()/1024, 9)
}

// TestStartBeforeMIG: what a start had used when its GPU was given MIG mode counts.
func TestStartBeforeMIG(t *testing.T) {
	a := New(fastOptions())
	s := play(t, a, start(), free(1), held(5, 10), held(62, 8), heldBy("uid-2", 5, 60), gone(20))
	observeFor(a, s.Time.Add(time.Minute), 0, slicedGPU(t, "H100-80GB", "3g.40gb", load{}))

	for _, w := range a.workloads {
		if w.Key.Profile == "" {
			cmptest.Equal(t, "the largest, in GiB", w.Starts.peak()/1024, 60)
		}
	}
}

// TestStartGrows: a workload that uses more than after its last start needs as much more in the
// next one.
func TestStartGrows(t *testing.T) {
	a := New(fastOptions())
	s := play(t, a, start(), free(1), held(5, 16), held(200, 8), held(20*24*60, 12))
	e := recommend(a, s).Devices[0].Evidence
	cmptest.Equal(t, "seen, GiB", e.MemoryBytes/(1<<30), 16)
	cmptest.Equal(t, "needs, GiB", needBytes(e, 0.5)/(1<<30), 30)
}

// TestStartIsNoGrowth: a start that needs much, after days that needed little, is no memory that
// grows.
func TestStartIsNoGrowth(t *testing.T) {
	a := New(fastOptions())
	s := play(t, a, start(), free(1), held(5*24*60, 8), held(1, 0), held(5, 16), held(120, 8))
	e := recommend(a, s).Devices[0].Evidence
	cmptest.Equal(t, "grows by", e.MemoryTrend, 0)
	cmptest.Equal(t, "needs GiB", e.MemoryBytes/(1<<30), 16)
}

// TestUnseenStart: a workload that was there before the exporter is no candidate, and the answer
// says what to do. As soon as a replica has been restarted, it is.
func TestUnseenStart(t *testing.T) {
	const day = 24 * 60
	a := New(fastOptions())
	s := play(t, a, start(), held(9*day, 6))
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "before", answer{r.Action, r.Reason, r.Recommended}, answer{ActionKeep, ReasonStartUnseen, ""})
	cmptest.HasTexts(t, r.Explanation, "6.0 GiB", "Restart one replica")
	cmptest.Equal(t, "confidence", r.Confidence, 0.5)
	cmptest.Equal(t, "packed", recommend(a, s).Packing == nil, true)

	s = play(t, a, s.Time.Add(time.Minute), heldBy("uid-new", 5, 6.3), heldBy("uid-new", 62, 6))
	r = recommend(a, s).Devices[0]
	cmptest.Equal(t, "after a restart", answer{r.Action, r.Reason, r.Recommended}, answer{ActionSlice, "", "1g.10gb"})
	cmptest.Equal(t, "confidence", r.Confidence, 1)
}

// TestStartUnderWay: a start whose memory has dipped may still need more.
func TestStartUnderWay(t *testing.T) {
	const day = 24 * 60
	a := New(fastOptions())
	s := play(t, a, start(), held(9*day, 6))
	s = play(t, a, s.Time.Add(time.Minute), heldBy("uid-new", 2, 2), heldBy("uid-new", 2, 1.5))
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "in a dip", answer{r.Action, r.Reason, r.Recommended}, answer{ActionKeep, ReasonStartUnseen, ""})
	cmptest.HasTexts(t, r.Explanation, "not grown for an hour")

	s = play(t, a, s.Time.Add(time.Minute), heldBy("uid-new", 40, 30), heldBy("uid-new", 62, 6))
	r = recommend(a, s).Devices[0]
	cmptest.Equal(t, "an hour later", answer{r.Action, r.Reason, r.Recommended}, answer{ActionSlice, "", "3g.40gb"})
	cmptest.Equal(t, "starts", r.Evidence.Starts, 1)
}

// oldWorkload is what version 0.1 kept of a workload, of what matters here.
type oldWorkload struct {
	Key                           Key
	First, Last, Reference        time.Time
	Busy, Width, Bandwidth, Power histogram
	Days                          [keptDays]struct {
		Day                    int32
		Observed, Held, Memory float32
	}
	Observed float64
}

// TestOldEvidenceHasNoStarts: evidence from before starts were followed says nothing of them.
func TestOldEvidenceHasNoStarts(t *testing.T) {
	a := New(fastOptions())
	s := play(t, a, start(), free(1), held(9*24*60, 8))
	cmptest.Equal(t, "of today", recommend(a, s).Devices[0].Action, ActionSlice)

	now := a.Checkpoint()

	old := struct {
		Node      string
		GPUs      []gpu.UUID
		Time      time.Time
		Workloads []oldWorkload
	}{Node: now.Node, GPUs: now.GPUs, Time: now.Time}
	for _, w := range now.Workloads {
		o := oldWorkload{Key: w.Key, First: w.First, Last: w.Last, Reference: w.Reference, Busy: w.Busy, Width: w.Width,
			Bandwidth: w.Bandwidth, Power: w.Power, Observed: w.Observed}
		for i, d := range w.Days {
			o.Days[i].Day, o.Days[i].Observed, o.Days[i].Held, o.Days[i].Memory = d.Day, d.Observed, d.Held, d.Memory
		}

		old.Workloads = append(old.Workloads, o)
	}

	var file bytes.Buffer
	_, _ = io.WriteString(&file, checkpointHeader)

	z := gzip.NewWriter(&file)
	if err := gob.NewEncoder(z).Encode(&old); err != nil {
		t.Fatal(err)
	}

	if err := z.Close(); err != nil {
		t.Fatal(err)
	}

	c, err := ReadCheckpoint(&file)
	if err != nil || len(c.Dropped()) > 0 {
		t.Fatal(err, c.Dropped())
	}

	a = New(fastOptions())
	a.Restore(c)
	s.Time = s.Time.Add(time.Minute)
	a.Observe(s)
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "of old evidence", answer{r.Action, r.Reason, r.Recommended}, answer{ActionKeep, ReasonStartUnseen, ""})
	cmptest.Equal(t, "memory, GiB", r.Evidence.MemoryBytes/(1<<30), 8)
}

// TestConfidence: what is known least decides.
func TestConfidence(t *testing.T) {
	known := Evidence{ObservedHours: 200, CoverageRatio: 1, BusyMinutes: 500, Starts: 1, MemoryBytes: 8 << 30}
	for about, c := range map[string]struct {
		change func(*Evidence)
		want   float64
	}{
		"all is known":      {func(*Evidence) {}, 1},
		"half a week":       {func(e *Evidence) { e.ObservedHours = 84 }, 0.5},
		"gaps":              {func(e *Evidence) { e.CoverageRatio = 0.96 }, 0.96},
		"15 minutes busy":   {func(e *Evidence) { e.BusyMinutes = 15 }, 0.25},
		"never busy":        {func(e *Evidence) { e.BusyMinutes = 0 }, 0},
		"no start":          {func(e *Evidence) { e.Starts = 0 }, 0.5},
		"memory that grows": {func(e *Evidence) { e.MemoryTrend = 1 << 30 }, 0.8},
		"a day, no start":   {func(e *Evidence) { e.ObservedHours, e.Starts = 16.8, 0 }, 0.1},
	} {
		e := known
		c.change(&e)
		cmptest.Equal(t, about, confidence(&e), c.want)
	}
}

// moves are what a workload does on a slice after a move from a whole GPU, and what the advisor
// says of it.
func moves() map[string]struct {
	profile string
	stages  []stage
	want    answer
} {
	keep := answer{Action: ActionKeep, Reason: ReasonLittleEvidence}
	grow := answer{Action: ActionGrow, Reason: ReasonNotUp, Profile: "3g.40gb"}

	return map[string]struct {
		profile string
		stages  []stage
		want    answer
	}{
		"comes up":                         {"1g.20gb", []stage{held(5, 8), held(20, 4)}, keep},
		"loads for most of an hour":        {"1g.20gb", []stage{held(20, 2), held(20, 3), held(15, 4)}, keep},
		"is killed once":                   {"1g.20gb", []stage{held(3, 5), held(2, 9), held(4, 0)}, grow},
		"is killed again and again":        {"1g.20gb", []stage{held(3, 9), held(1, 15), held(4, 0), held(3, 9), held(1, 15), held(5, 0)}, grow},
		"is killed and restarted at once":  {"1g.20gb", []stage{held(3, 5), held(1, 9), held(1, 0.4), held(2, 9)}, grow},
		"comes up the second time":         {"1g.20gb", []stage{held(3, 5), held(1, 9), held(1, 0), held(3, 9), held(9, 4)}, grow},
		"has been up for an hour since":    {"1g.20gb", []stage{held(3, 5), held(1, 9), held(1, 0), held(3, 9), held(62, 4)}, keep},
		"is killed when it has loaded":     {"1g.20gb", []stage{held(3, 5), held(30, 9), held(1, 0), held(3, 9)}, grow},
		"holds no memory":                  {"1g.20gb", []stage{held(31, 0)}, grow},
		"holds none for some minutes":      {"1g.20gb", []stage{held(25, 0)}, keep},
		"comes up, and is restarted later": {"1g.20gb", []stage{held(90, 4), held(1, 0), held(4, 4)}, keep},
		"comes up, and unloads its model":  {"1g.20gb", []stage{held(90, 4), held(120, 0)}, keep},
		"comes up, and is killed twice": {"1g.20gb", []stage{held(90, 4), held(1, 0), held(90, 4), held(1, 0), held(200, 4)},
			grow},
		"comes up, and loses its memory":     {"1g.20gb", []stage{held(90, 4), held(241, 0)}, grow},
		"is lost in its start, and ends":     {"1g.20gb", []stage{held(5, 10), restart(), held(5, 10), held(31, 0)}, grow},
		"unloads, as it never did":           {"1g.20gb", []stage{held(2, 0), held(5, 4), held(10, 0), restart(), held(31, 0)}, grow},
		"unloads before it is lost":          {"1g.20gb", []stage{held(2, 0), held(5, 4), held(5, 0), held(5, 4), restart(), held(31, 0)}, grow},
		"is lost, has been up, and is empty": {"1g.20gb", []stage{held(5, 10), restart(), held(90, 10), held(31, 0)}, keep},
		"needs a whole GPU": {"4g.40gb", []stage{held(31, 0)},
			answer{Action: ActionGrow, Reason: ReasonNotUp, Profile: "7g.80gb"}},
	}
}

// TestMovesThatFail: a container that did not come up in its slice must grow. It is never idle.
func TestMovesThatFail(t *testing.T) {
	for about, c := range moves() {
		a := New(fastOptions())
		s := play(t, a, start(), held(2*24*60, 4))

		at := s.Time.Add(time.Minute)

		for _, stage := range c.stages {
			if stage.minutes == 0 {
				a = restarted(t, a, s)
				continue
			}

			g := slicedGPU(t, "H100-80GB", c.profile, load{gib: stage.gib}, pod("ml", "Deployment/a"))
			g.Instances[0].Holders[0].PodUID = "uid-moved"
			s = observeFor(a, at, time.Duration(stage.minutes-1)*time.Minute, g)
			at = s.Time.Add(time.Minute)
		}

		r := a.Recommend(s).Devices[0]
		cmptest.Equal(t, about, answer{r.Action, r.Reason, r.Recommended}, c.want)
	}
}

// TestUsualEndings: what ended early on the whole GPU, too, and did not fail there, is no failed
// move.
func TestUsualEndings(t *testing.T) {
	notebook := []stage{held(40, 4), held(1, 0.3), held(40, 4), held(1, 0.3), held(40, 4)}
	job := []stage{heldBy("uid-1", 10, 1), heldBy("uid-1", 1, 4), free(1), heldBy("uid-2", 10, 1), heldBy("uid-2", 1, 4)}

	prepares := []stage{held(3, 5), held(1, 9), held(1, 0.3), held(70, 4)}
	killed := append(slices.Clone(prepares[:3]), prepares...)

	service := []stage{held(200, 4)}
	for about, c := range map[string]struct {
		before, after []stage
		want          Action
	}{
		"notebook":                  {notebook, notebook, ActionKeep},
		"notebook, restarted idle":  {notebook, []stage{held(2, 0), held(5, 4), held(10, 0), restart(), held(31, 0)}, ActionKeep},
		"service, restarted empty":  {service, []stage{held(2, 0), held(5, 4), held(10, 0), restart(), held(31, 0)}, ActionGrow},
		"service, as if a notebook": {service, notebook, ActionGrow},
		"job":                       {job, append(job, free(1), heldBy("uid-3", 2, 1)), ActionKeep},
		"prepares its data":         {prepares, prepares[:3], ActionKeep},
		"prepares it twice":         {prepares, killed[:6], ActionGrow},
		"service, as if it did":     {service, prepares[:3], ActionGrow},
		"service, as if a job":      {service, append(job, free(1), heldBy("uid-3", 2, 1)), ActionGrow},
	} {
		a := New(fastOptions())
		s := play(t, a, start(), append([]stage{free(1)}, c.before...)...)
		s = play(t, a, s.Time.Add(time.Minute), free(1))
		at := s.Time.Add(time.Minute)

		for _, stage := range c.after {
			if stage.minutes == 0 {
				a = restarted(t, a, s)
				continue
			}

			g := slicedGPU(t, "H100-80GB", "1g.20gb", load{gib: stage.gib}, pod("ml", "Deployment/a"))
			if stage.change != nil {
				g.Holders = g.Instances[0].Holders
				stage.change(&g)
				g.Instances[0].Holders, g.Holders = g.Holders, nil
				g.Instances[0].Allocated = g.Allocated
			}

			s = observeFor(a, at, time.Duration(stage.minutes-1)*time.Minute, g)
			at = s.Time.Add(time.Minute)
		}

		cmptest.Equal(t, about, a.Recommend(s).Devices[0].Action, c.want)
	}
}

// TestStartOfABatchJob: a job's start goes on when its first process comes.
func TestStartOfABatchJob(t *testing.T) {
	job := func(minutes int, gib float64, list ...gpu.Process) stage {
		return stage{minutes, gib, func(g *gpu.GPU) {
			g.Holders, g.Jobs, g.Readings.Processes = nil, []string{"4711"}, gpu.Some(list)
		}}
	}
	a := New(fastOptions())
	play(t, a, start(), free(1), job(3, 0), job(62, 8, gpu.Process{PID: 7}))

	for _, w := range a.workloads {
		cmptest.Equal(t, "starts", w.Starts,
			starts{
				Containers:   lastStarts{Seen: 1, Peaks: [keptStarts]float32{8 << 10}, Levels: [keptStarts]float32{8 << 10}},
				SinceProcess: 1, Least: 8 << 10,
			})
	}
}

// TestSliceThatIsHeldAndEmpty: a workload that was nowhere else and holds nothing gets no advice to
// grow, and is not idle.
func TestSliceThatIsHeldAndEmpty(t *testing.T) {
	g := slicedGPU(t, "H100-80GB", "1g.20gb", load{}, pod("ml", "Deployment/a"))
	r := recommendFor(fastOptions(), longEnough, g)
	cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, answer{ActionKeep, ReasonNotUp, ""})
}

// TestStartsOfSlices: a slice is not made smaller before a start in it was seen.
func TestStartsOfSlices(t *testing.T) {
	g := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.05, gib: 3}, pod("ml", "Deployment/a"))

	a := New(fastOptions())

	s := &gpu.Snapshot{}
	for minute := range 9 * 24 * 60 {
		s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), Hostname: "node-a", GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	r := a.Recommend(s).Devices[0]
	cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, answer{ActionKeep, ReasonStartUnseen, ""})
}

// TestSliceReadLate: what holds a slice that the first Snapshots could not read may have been there before.
func TestSliceReadLate(t *testing.T) {
	for about, unread := range map[string]func(g *gpu.GPU){
		"the slice does not answer": func(g *gpu.GPU) { g.Instances[0].Up = false },
		"it is not read whether MIG is on": func(g *gpu.GPU) {
			g.MIG.Enabled, g.Instances = gpu.None[bool](), nil
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver}}
		},
		"the layout is not read": func(g *gpu.GPU) {
			g.Instances = nil
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver}}
		},
	} {
		a := New(fastOptions())
		s := &gpu.Snapshot{}

		for minute := range 24 * 60 {
			g := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.05, gib: 3}, pod("ml", "Deployment/a"))
			if minute < 2 {
				unread(&g)
			}

			s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), Hostname: "node-a", GPUs: []gpu.GPU{g}}
			a.Observe(s)
		}

		if r := a.Recommend(s).Devices[0]; r.Evidence.Starts != 0 {
			t.Errorf("%s: %d starts were seen", about, r.Evidence.Starts)
		}
	}
}

// TestStartGoesOnOverARestart: a start that was going on when the exporter ended is not seen, but what it
// had used counts with the last one that was.
func TestStartGoesOnOverARestart(t *testing.T) {
	before := New(fastOptions())
	last := play(t, before, start(), free(1), held(5, 10), held(62, 8), heldBy("uid-2", 5, 60))

	after := New(fastOptions())
	after.Restore(before.Checkpoint())
	play(t, after, last.Time.Add(time.Minute), heldBy("uid-2", 62, 8))

	for _, w := range after.workloads {
		cmptest.Equal(t, "starts", w.Starts.seen(), 1)
		cmptest.Equal(t, "the largest use of memory in them, in GiB", w.Starts.peak()/1024, 60)
	}

	for _, w := range before.workloads {
		cmptest.Equal(t, "the largest use of memory before, in GiB", w.Starts.peak()/1024, 10)
	}
}

// TestLostStartStays: what a container's start had used when it was lost is not pushed out by its workers.
func TestLostStartStays(t *testing.T) {
	stages := []stage{free(1), runs(1, 5, 10), runs(1, 62, 8), runs(2, 62, 8)}
	of := func(s stage) stage {
		change := s.change
		s.change = func(g *gpu.GPU) { change(g); g.Holders[0].PodUID = "uid-2" }

		return s
	}
	stages = append(stages, of(runs(3, 5, 60)), gone(20))

	for pid := uint32(4); pid < 14; pid++ {
		stages = append(stages, of(runs(pid, 2*60, 7.9)))
	}

	a := New(fastOptions())
	play(t, a, start(), stages...)

	for _, w := range a.workloads {
		cmptest.Equal(t, "the largest use of memory in a start, in GiB", w.Starts.peak()/1024, 60)
		cmptest.Equal(t, "need of a start with memory of 20 GiB, in GiB", w.Starts.need(20<<10)/1024, 60)
	}
}

// TestWorkersOverRestarts: a worker of which we saw no beginning is no start of its container, nor is the one
// that follows.
func TestWorkersOverRestarts(t *testing.T) {
	a := New(fastOptions())
	last := play(t, a, start(), free(1), runs(1, 5, 60), runs(1, 100, 8))

	for n := range uint32(7) {
		next := New(fastOptions())
		next.Restore(a.Checkpoint())
		a = next

		var stages []stage
		for worker := range uint32(6) {
			stages = append(stages, runs(10*n+worker+2, 30, 0.9))
		}

		last = play(t, a, last.Time.Add(20*time.Minute), stages...)
	}

	for _, w := range a.workloads {
		cmptest.Equal(t, "the largest use of memory in a start, in GiB", w.Starts.peak()/1024, 60)
	}
}

// TestEmptyContainerOverARestart: a container that holds nothing when the exporter is restarted is no new
// one, however many polls its description takes.
func TestEmptyContainerOverARestart(t *testing.T) {
	for _, polls := range []int{1, 3} {
		for _, uid := range []string{"", "uid-a"} {
			undescribed := stage{polls, 0, func(g *gpu.GPU) {
				h := &g.Holders[0]
				h.PodUID, h.Undescribed, h.Workload = uid, true, ""
			}}
			about := fmt.Sprintf("%d polls, UID %q", polls, uid)

			for _, w := range workloadsAfter(t, undescribed, held(1, 0), held(5, 30), held(62, 8)) {
				cmptest.Equal(t, about+": starts of containers", w.Starts.Containers.Seen, 0)
				cmptest.Equal(t, about+": starts of processes", w.Starts.seen(), 1)
			}

			for _, w := range workloadsAfter(t, free(1), undescribed, held(1, 0), held(5, 30), held(62, 8)) {
				cmptest.Equal(t, about+": starts of new containers", w.Starts.Containers.Seen, 1)
			}
		}
	}
}

// workloadsAfter returns the workloads of which there is evidence after stages.
func workloadsAfter(t *testing.T, stages ...stage) map[Key]*workload {
	t.Helper()

	a, _ := playOver(t, New(fastOptions()), start(), stages...)
	if len(a.workloads) == 0 {
		t.Fatal("there is no workload")
	}

	return a.workloads
}

// TestUndescribedInAGap: a pod that took the place of another one in a gap has come unseen, although it is
// described a poll later.
func TestUndescribedInAGap(t *testing.T) {
	undescribed := stage{1, 0.4, func(g *gpu.GPU) {
		h := &g.Holders[0]
		h.PodUID, h.Undescribed, h.Workload = "uid-2", true, ""
	}}

	for _, w := range workloadsAfter(t, held(100, 8), gone(20), undescribed, heldBy("uid-2", 5, 20),
		heldBy("uid-2", 62, 8)) {
		cmptest.Equal(t, "starts of containers", w.Starts.Containers.Seen, 0)
	}
}

// TestEmptyBeforeItsPodIsListed: a GPU without memory in use is free only if it is known that nothing holds it.
// Until the kubelet has listed its pods, one of them may have been there for long.
func TestEmptyBeforeItsPodIsListed(t *testing.T) {
	unlisted := stage{1, 0, func(g *gpu.GPU) { g.Holders, g.Allocated = nil, gpu.None[bool]() }}

	for about, c := range map[string]struct {
		first stage
		want  int32
	}{"not listed": {unlisted, 0}, "free": {free(1), 1}} {
		for _, w := range workloadsAfter(t, c.first, held(5, 0), held(5, 30), held(62, 8)) {
			cmptest.Equal(t, about+": starts of containers", w.Starts.Containers.Seen, c.want)
			cmptest.Equal(t, about+": starts", w.Starts.seen(), 1)
		}
	}
}

// TestLostStartIsNotSettled: what a start that was lost goes on using is no use between starts, until it has
// been up for an hour.
func TestLostStartIsNotSettled(t *testing.T) {
	for about, lost := range map[string]stage{"a gap": gone(20), "a restart": restart()} {
		a, s := playOver(t, New(fastOptions()), start(), free(1), held(5, 30), held(70, 8), free(1), heldBy("uid-2", 5, 30),
			lost, heldBy("uid-2", 30, 30), heldBy("uid-2", 90, 8))
		e := recommend(a, s).Devices[0].Evidence
		cmptest.Equal(t, about+": settled, GiB", e.settledBytes/(1<<30), 8)
		cmptest.Equal(t, about+": needs, GiB", e.startNeed/(1<<30), 30)
	}

	for _, w := range workloadsAfter(t, held(90, 12)) {
		cmptest.Equal(t, "of a pod that is older, GiB", w.sums(start()).Settled/1024, 12)
		cmptest.Equal(t, "least, GiB", w.Starts.Least/1024, 12)
	}
}

// TestLevelOfAContext: a start that ends with a context has settled where the process before had: the next
// one needs no more than it.
func TestLevelOfAContext(t *testing.T) {
	for about, stages := range map[string][]stage{
		"sleeps for long":           {runs(7, 24*60+2, 0.5), runs(7, 5, 0.5)},
		"ends with another process": {runs(8, 2, 0.5), free(1)},
	} {
		stages = append([]stage{free(1), runs(7, 5, 60), runs(7, 15, 30)}, stages...)

		for _, w := range workloadsAfter(t, stages...) {
			cmptest.Equal(t, about+": need with 30 GiB, in GiB", w.Starts.need(30<<10)/1024, 60)
		}
	}
}

// TestSleepIsNoEnd: a server that frees its memory in its first hour was not restarted.
func TestSleepIsNoEnd(t *testing.T) {
	for _, w := range workloadsAfter(t, free(1), runs(7, 5, 60), runs(7, 15, 30), runs(7, 60, 0.5)) {
		cmptest.Equal(t, "runs again", w.Starts.RunsAgain, false)
	}
}

// TestDoubtfulStartStays: what a container loads that held nothing after a gap may be its own start, which its
// workers do not push out.
func TestDoubtfulStartStays(t *testing.T) {
	of := func(s stage) stage {
		change := s.change
		s.change = func(g *gpu.GPU) { change(g); g.Holders[0].PodUID = "uid-2" }

		return s
	}
	stages := []stage{free(1), runs(1, 5, 10), runs(1, 62, 8), gone(20), of(runs(3, 2, 0)), of(runs(3, 5, 60)),
		of(runs(3, 62, 8))}

	for pid := range uint32(2 * keptStarts) {
		stages = append(stages, of(runs(pid+4, 2*60, 7.9)))
	}

	for _, w := range workloadsAfter(t, stages...) {
		cmptest.Equal(t, "the largest use of memory in a start, in GiB", w.Starts.peak()/1024, 60)
		cmptest.Equal(t, "starts of containers", w.Starts.Containers.Seen, 1)
	}
}
