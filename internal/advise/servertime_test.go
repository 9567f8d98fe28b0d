package advise

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// replica is what one pod of a Deployment shows: when it comes, when it goes, and what its server
// answers in each minute, counted from the begin of the story.
type replica struct {
	from, until int // minutes; until 0: it stays
	answerAt    func(minute int) gpu.ServerFigures
}

// always answers with a tenth of the cache.
func always(int) gpu.ServerFigures { return usesCache(0.1) }

// never does not answer.
func never(int) gpu.ServerFigures { return gpu.ServerFigures{} }

// until answers until some hours have passed.
func until(hours int) func(int) gpu.ServerFigures {
	return func(minute int) gpu.ServerFigures {
		if minute >= 60*hours {
			return gpu.ServerFigures{}
		}

		return usesCache(0.1)
	}
}

// tgi answers as TGI does, which does not say how much of its cache is used.
func tgi() gpu.ServerFigures {
	return gpu.ServerFigures{Kind: gpu.ServerTGI, Running: gpu.Some(64.), Waiting: gpu.Some(900.)}
}

// showReplicas shows replicas, each on a GPU of its own, for some minutes from a minute on. Their pods are
// annotated with the memory of their model.
func showReplicas(t *testing.T, a *Advisor, list []replica, from, minutes int) *gpu.Snapshot {
	t.Helper()

	var s *gpu.Snapshot
	gib := vllmStart(72)
	free := make([]gpu.GPU, len(list))
	held := make([]gpu.GPU, len(list))

	for i := range list {
		holder := pod("ml", "Deployment/a")
		holder.PodUID = fmt.Sprintf("uid-%d", i)
		holder.Pod = fmt.Sprintf("a-%d", i)
		holder.Rightsizing = modelMemory(14)
		held[i] = wholeGPU(t, "H100-80GB", i, load{busy: 0.5, sm: 0.01}, holder)
		free[i] = unheld(held[i : i+1])[0]
	}

	for minute := from; minute < from+minutes; minute++ {
		s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), Hostname: "node-a",
			GPUs: slices.Clone(free)}

		for i, r := range list {
			age := minute - max(r.from, 1)
			if age < 0 || r.until > 0 && minute >= r.until {
				continue
			}

			g := held[i]
			g.Readings.Memory.Used = gpu.Some(uint64(gib[min(age, len(gib)-1)] * (1 << 30)))
			s.GPUs[i] = g

			if answer := r.answerAt(minute); age >= len(gib) && answer.Kind != "" {
				s.Servers = append(s.Servers, gpu.PodServer{
					PodUID: g.Holders[0].PodUID, Time: s.Time, ServerFigures: answer})
			}
		}

		a.Observe(s)
	}

	return s
}

// TestSilentServers: what a server says counts only if each replica has said it for nearly all of the time
// that it held its device, since the first of them answered.
func TestSilentServers(t *testing.T) {
	const day = 24 * 60
	last := int(longEnough.Minutes())
	known := answer{ActionSlice, ReasonNone, "3g.40gb"}
	unknown := answer{ActionKeep, ReasonPreallocated, ""}

	some := func(hoursOfDay int) func(int) gpu.ServerFigures {
		return func(minute int) gpu.ServerFigures {
			if minute%day >= 60*hoursOfDay {
				return gpu.ServerFigures{}
			}

			return usesCache(0.1)
		}
	}
	all := func(count int, r replica) []replica { return slices.Repeat([]replica{r}, count) }

	for about, c := range map[string]struct {
		replicas []replica
		want     answer
		says     string
	}{
		"always answers":       {all(2, replica{answerAt: always}), known, "at most 10 %"},
		"silent 18 h a day":    {all(1, replica{answerAt: some(6)}), unknown, "is known for"},
		"silent an hour a day": {all(1, replica{answerAt: some(23)}), known, ""},
		"silent 2 h a day":     {all(1, replica{answerAt: some(22)}), unknown, "for 8."},
		"down for a day":       {all(1, replica{answerAt: until(7 * 24)}), unknown, "the exporter's log"},
		"six, for 5 h":         {all(6, replica{answerAt: until(5)}), unknown, "is known for 4.8 h"},
		"one of six is silent": {append(all(5, replica{answerAt: always}), replica{answerAt: never}), unknown, "100 % of the time"},
		"one starts":           {[]replica{{answerAt: always}, {from: last - 20, answerAt: never}}, known, ""},
		"one was silent":       {[]replica{{answerAt: always}, {from: day, until: 3 * day, answerAt: never}}, unknown, ""},
		"one follows the other": {[]replica{{until: 4 * day, answerAt: always}, {from: 4 * day, answerAt: always}},
			answer{ActionKeep, ReasonNoGain, ""}, "3g.40gb would do"}, // beside the GPU that is free now
	} {
		t.Run(about, func(t *testing.T) {
			a := New(fastOptions())
			devices := recommend(a, showReplicas(t, a, c.replicas, 0, last)).Devices
			r := devices[len(devices)-1]

			if about == "one was silent" || about == "one starts" {
				r = devices[0] // the other one has gone, or has shown no memory yet
			}

			cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, c.want)
			cmptest.HasTexts(t, r.Explanation, c.says)
		})
	}
}

// TestHoursOfReplicas: three replicas that answer at once for ten hours are ten hours.
func TestHoursOfReplicas(t *testing.T) {
	a := New(fastOptions())
	s := showReplicas(t, a, slices.Repeat([]replica{{answerAt: always}}, 3), 0, 600)
	hours := recommend(a, s).Devices[0].Evidence.Server.AskedHours

	if hours > 10 || hours < 9.5 {
		t.Errorf("known for %v h; expected nearly 10", hours)
	}
}

// TestKindOfServerChanges: what one kind of server has said is not known of another, nor are the weights
// that its starts have shown.
func TestKindOfServerChanges(t *testing.T) {
	change := func(from, to gpu.ServerFigures, minute int) []replica {
		return []replica{{answerAt: func(at int) gpu.ServerFigures {
			if at < minute {
				return from
			}

			return to
		}}}
	}
	sglang := usesCache(0.05)
	sglang.Kind = gpu.ServerSGLang
	last := int(longEnough.Minutes())

	for about, c := range map[string]struct {
		replicas    []replica
		want        answer
		provisional bool
		says        string
	}{
		"to TGI": {change(usesCache(0.1), tgi(), 3*24*60), answer{ActionKeep, ReasonPreallocated, ""}, false,
			"TGI reserves"},
		"to SGLang": {change(usesCache(0.9), sglang, 3*24*60), answer{ActionSlice, ReasonNone, "3g.40gb"}, true,
			"SGLang says of itself that at most 5 %"},
		"to SGLang today": {change(usesCache(0.1), sglang, last-20*60), answer{ActionKeep, ReasonPreallocated, ""}, false,
			"too short"},
		"back from TGI": {change(tgi(), usesCache(0.1), 3*24*60), answer{ActionSlice, ReasonNone, "3g.40gb"}, true, ""},
	} {
		a := New(fastOptions())
		r := recommend(a, showReplicas(t, a, c.replicas, 0, last)).Devices[0]
		cmptest.Equal(t, about, answer{r.Action, r.Reason, r.Recommended}, c.want)
		cmptest.HasTexts(t, r.Explanation, c.says)

		if r.Action == ActionSlice {
			cmptest.Equal(t, about+": provisional", r.Provisional, c.provisional)
		}
	}

	a := New(fastOptions())
	a.now = start()
	w := &workload{Starts: starts{Containers: lastStarts{Loads: &loads{Weights: [keptStarts]float32{14}}}}}
	before := a.addAnswer(w, &gpu.PodServer{PodUID: "a", Time: start(), ServerFigures: usesCache(0.1)}, serverSample{})
	cmptest.Equal(t, "weights of the first kind", w.Starts.Containers.Loads.Weights[0], 14)
	a.addAnswer(w, &gpu.PodServer{PodUID: "a", Time: start(), ServerFigures: tgi()}, before)

	if w.Starts.Containers.Loads != nil {
		t.Errorf("weights %v of the kind before", w.Starts.Containers.Loads.Weights)
	}
}

// TestServersOfRarePolls: a server that is asked as often as its GPU is read is known, however rarely.
func TestServersOfRarePolls(t *testing.T) {
	const interval = 5 * time.Minute

	o := DefaultOptions()
	o.MaxGap = 3 * interval
	a := New(o)
	holder := pod("ml", "Deployment/a")
	holder.Rightsizing = modelMemory(14)
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.01, gib: 72}, holder)
	a.Observe(&gpu.Snapshot{Time: start().Add(-interval), GPUs: unheld([]gpu.GPU{g})})

	var s *gpu.Snapshot
	for at := start(); at.Before(start().Add(longEnough)); at = at.Add(interval) {
		s = &gpu.Snapshot{Time: at, GPUs: []gpu.GPU{g}, Servers: []gpu.PodServer{
			{PodUID: holder.PodUID, Time: at.Add(-20 * time.Second), ServerFigures: usesCache(0.1)}}}
		a.Observe(s)
	}

	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, r.Explanation, answer{r.Action, r.Reason, r.Recommended}, answer{ActionSlice, ReasonNone, "3g.40gb"})
}

// TestSilenceOverRestart: a pod that ran on while the exporter did not was silent, and what older versions
// have kept without its silence does not count.
func TestSilenceOverRestart(t *testing.T) {
	const days = 9 * 24 * 60
	replicas := []replica{{answerAt: always}}

	for about, c := range map[string]struct {
		away   int // minutes
		older  bool
		silent float64 // hours, of those of 7 full days and of today
		want   Reason
	}{
		"ten minutes":   {10, false, 1. / 6, ReasonNone},
		"six hours":     {6 * 60, false, 6, ReasonNone},
		"older version": {1, true, 0, ReasonPreallocated},
	} {
		a := New(fastOptions())
		showReplicas(t, a, replicas, 0, days)

		if c.older {
			for _, w := range a.workloads {
				w.Reserve.Since = 0
				w.Reserve.Replicas = nil
			}
		}

		var file bytes.Buffer
		if err := a.Checkpoint().Write(&file); err != nil {
			t.Fatal(err)
		}

		kept, err := ReadCheckpoint(&file)
		if err != nil {
			t.Fatal(err)
		}

		b := New(fastOptions())
		b.Restore(kept)
		s := showReplicas(t, b, replicas, days+c.away, 60)
		r := recommend(b, s).Devices[0]
		cmptest.Equal(t, about+": "+r.Explanation, r.Reason, c.want)

		for _, w := range b.workloads {
			held := w.Reserve.Replicas[0].sums(b.now)
			silent := float64(held.Held-held.Asked) / 3600

			if silent < c.silent || silent > c.silent+0.1 {
				t.Errorf("%s: silent for %v h; expected %v", about, silent, c.silent)
			}
		}
	}
}

// TestOldReplicasAreOne: the times of replicas that have gone add up if there are too many of them.
func TestOldReplicasAreOne(t *testing.T) {
	r := reserve{Since: start().Unix()}

	for i := range maxPods + 10 {
		r.hold(fmt.Sprint(i), 60, start().Add(time.Duration(i)*time.Minute))
	}

	held := float32(0)
	for i := range r.Replicas {
		held += r.Replicas[i].sums(start()).Held
	}

	cmptest.Equal(t, "replicas", len(r.Replicas), maxPods)
	cmptest.Equal(t, "held", held, 60*(maxPods+10))

	r.hold("new", 60, start().Add(9*24*time.Hour))
	cmptest.Equal(t, "replicas after nine days", len(r.Replicas), 1)
}

// TestClockOfServers: the days of a server shift with the clock, as those of its workload do.
func TestClockOfServers(t *testing.T) {
	a := New(fastOptions())
	showReplicas(t, a, []replica{{answerAt: always}}, 0, 600)

	for _, w := range a.workloads {
		before := w.Reserve.sums(a.now)
		silent := w.Reserve.silence(a.now, 1)
		a.followClock(a.now.Add(-20 * 24 * time.Hour))
		cmptest.Equal(t, "sums", w.Reserve.sums(a.now), before)
		cmptest.Equal(t, "silence", w.Reserve.silence(a.now, 1), silent)
		cmptest.Equal(t, "answered", isRecent(w.Reserve.Last, a.now), true)
		a.followClock(a.now.Add(20 * 24 * time.Hour))
	}
}
