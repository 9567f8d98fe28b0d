package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestAdvisorHasTheLastWord: what the advisor of a node says of its GPU replaces what the history
// says.
func TestAdvisorHasTheLastWord(t *testing.T) {
	slice := GPU{Action: advise.ActionSlice, Profile: "1g.10gb", StretchP95: &advise.Stretch{Low: 1, Expected: 1, High: 2},
		Explanation: "fits", Decided: &advise.Decided{}, StartWith: &advise.PredictedServer{}, model: modelNamed("H100-80GB")}
	kept := GPU{Action: advise.ActionKeep, Reason: advise.ReasonBusy, Explanation: "busy", model: modelNamed("H100-80GB")}
	decodes := GPU{Action: advise.ActionKeep, Reason: advise.ReasonMedia, Explanation: "media", model: modelNamed("H100-80GB")}
	shared := GPU{Action: advise.ActionShare, Reason: advise.ReasonStretch}

	for name, c := range map[string]struct {
		g                   GPU
		said                advice
		action              advise.Action
		reason              advise.Reason
		profile             string
		provisional, decide bool
	}{
		"none":             {slice, advice{}, advise.ActionSlice, "", "1g.10gb", false, false},
		"agrees":           {slice, advice{profile: "1g.10gb"}, advise.ActionSlice, "", "1g.10gb", false, true},
		"another profile":  {slice, advice{profile: "3g.40gb"}, advise.ActionSlice, "", "3g.40gb", false, true},
		"unknown profile":  {slice, advice{profile: "9g.99gb"}, advise.ActionSlice, "", "", false, true},
		"candidate":        {kept, advice{profile: "1g.10gb"}, advise.ActionSlice, "", "1g.10gb", false, true},
		"provisional":      {slice, advice{reason: advise.ReasonProvisional}, advise.ActionSlice, "", "1g.10gb", true, true},
		"provisional, too": {kept, advice{reason: advise.ReasonProvisional}, advise.ActionSlice, "", "", true, true},
		"rejected":         {slice, advice{reason: "start-unseen"}, advise.ActionKeep, "start-unseen", "", false, true},
		"not checked":      {slice, advice{reason: advise.ReasonMediaNotChecked}, advise.ActionSlice, "", "1g.10gb", false, true},
		"not checked, too": {kept, advice{reason: advise.ReasonMediaNotChecked}, advise.ActionSlice, "", "", false, true},
		"media engines":    {decodes, advice{reason: advise.ReasonMediaNotChecked}, advise.ActionKeep, advise.ReasonMedia, "", false, false},
		"not measured":     {slice, advice{reason: advise.ReasonNoActivity}, advise.ActionUnknown, advise.ReasonNoActivity, "", false, true},
		"to share":         {shared, advice{reason: advise.ReasonStretch}, advise.ActionShare, advise.ReasonStretch, "", false, true},
	} {
		g := c.g
		g.followAdvice(c.said, &Options{Advise: advise.DefaultOptions(), Window: 7 * 24 * time.Hour})

		if g.Action != c.action || g.Reason != c.reason || g.Profile != c.profile || g.Provisional != c.provisional ||
			g.Advised != c.decide {
			t.Errorf("%s: %+v", name, g)
		}

		isUnchecked := c.said.reason == advise.ReasonMediaNotChecked && c.decide
		cmptest.Equal(t, name+": not checked", g.NotChecked, isUnchecked)
		cmptest.Equal(t, name+": final", g.isFinal(), c.action == advise.ActionSlice && !c.provisional && !isUnchecked)

		if (g.Action != advise.ActionSlice || g.Profile != "1g.10gb") &&
			(g.StretchP95 != nil || g.Decided != nil || g.StartWith != nil) {
			t.Errorf("%s: what is expected is of another profile", name)
		}

		if g.Action == advise.ActionKeep && g.Explanation == "fits" {
			t.Errorf("%s: %s", name, g.Explanation)
		}
	}
}

// TestRefusalsThatAnAdvisorCannotKnow: a refusal by a longer history than the advisor has, or by
// stricter options than it has by default, stands.
func TestRefusalsThatAnAdvisorCannotKnow(t *testing.T) {
	strict := advise.DefaultOptions()
	strict.Strict = true

	for name, o := range map[string]Options{
		"longer": {Advise: advise.DefaultOptions(), Window: 30 * 24 * time.Hour},
		"strict": {Advise: strict, Window: 7 * 24 * time.Hour},
	} {
		g := GPU{Action: advise.ActionKeep, Reason: advise.ReasonMemory, model: modelNamed("H100-80GB")}
		g.followAdvice(advice{profile: "1g.10gb"}, &o)

		if g.Action != advise.ActionKeep || g.Reason != advise.ReasonMemory || g.Advised {
			t.Errorf("%s: %+v", name, g)
		}

		for _, reason := range []advise.Reason{advise.ReasonProvisional, advise.ReasonMediaNotChecked} {
			g.followAdvice(advice{reason: reason}, &o)
			cmptest.Equal(t, name+", "+string(reason), g.Reason, advise.ReasonMemory)
		}

		larger := GPU{Action: advise.ActionSlice, Profile: "3g.40gb", Provisional: true, model: modelNamed("H100-80GB")}
		larger.followAdvice(advice{profile: "1g.10gb"}, &o)

		if larger.Profile != "3g.40gb" || !larger.Provisional || larger.Advised {
			t.Errorf("%s: a larger slice: %+v", name, larger)
		}

		larger.followAdvice(advice{profile: "9g.99gb"}, &o)
		cmptest.Equal(t, name+": the advisor's is unknown", larger.Advised, true)

		larger = GPU{Action: advise.ActionSlice, Profile: "3g.40gb", model: modelNamed("H100-80GB")}
		larger.followAdvice(advice{profile: "4g.40gb"}, &o)
		cmptest.Equal(t, name+": the advisor's is larger", larger.Profile, "4g.40gb")

		for _, reason := range []advise.Reason{advise.ReasonMedia, advise.ReasonNVLink, advise.ReasonMultiGPU} {
			others := GPU{Action: advise.ActionKeep, Reason: reason, hadOthers: true, model: modelNamed("H100-80GB")}
			others.followAdvice(advice{profile: "1g.10gb"}, &o)
			cmptest.Equal(t, name+": it may be what others needed: "+string(reason), others.Profile, "1g.10gb")
		}

		media := GPU{Action: advise.ActionSlice, Profile: "1g.10gb+me", NotChecked: true, model: modelNamed("H100-80GB")}
		media.followAdvice(advice{profile: "1g.10gb"}, &o)
		cmptest.Equal(t, name+": media engines", media.Profile, "1g.10gb+me")

		unseen := GPU{Action: advise.ActionKeep, Reason: advise.ReasonStartUnseen, model: modelNamed("H100-80GB")}
		unseen.followAdvice(advice{profile: "1g.10gb"}, &o)

		if unseen.Profile != "1g.10gb" || !unseen.Advised {
			t.Errorf("%s: a start that the advisor has seen: %+v", name, unseen)
		}
	}
}

// TestMonthlyUseWithAnAdvisor: memory that the workload used three weeks ago counts beside the answer of an
// advisor that has forgotten it, whose answer shows that a start was seen.
func TestMonthlyUseWithAnAdvisor(t *testing.T) {
	o := weekly()
	o.Window = 30 * 24 * time.Hour
	d := narrow(o)
	d.history.arrived = false
	d.history.memory[9*24] = 30 << 30
	d.history.advice = advice{at: o.End, profile: "1g.10gb"}
	answer := judgeOne(analysisOf(o), d)
	cmptest.Equal(t, "answer", string(answer.Action)+" "+answer.Profile, "slice 3g.40gb")
	cmptest.Equal(t, "decided by the advisor", answer.Advised, false)
}

// TestMonthlyUseOfOthers: beside the advisor's answer, what counts is what pods of the owner did that has the
// GPU now, not what others did on it.
func TestMonthlyUseOfOthers(t *testing.T) {
	const a, b, month = "Deployment/a", "Deployment/b", 30 * dayOfSteps

	o := weekly()
	o.Window = 30 * 24 * time.Hour

	for about, c := range map[string]struct {
		change func(*history)
		want   string
	}{
		"little":                            {func(*history) {}, "1g.10gb true"},
		"30 GiB of the owner":               {func(h *history) { h.memory[9*24] = 30 << 30 }, "3g.40gb false"},
		"75 GiB of another":                 {func(h *history) { h.memory[5*24] = 75 << 30 }, "1g.10gb true"},
		"an unnamed holder's, maybe its":    {func(h *history) { h.memory[20] = 30 << 30 }, "3g.40gb false"},
		"30 GiB, always in another's hours": {nil, "3g.40gb false"},
		"several GPUs, maybe of another":    {func(h *history) { h.multi = true }, "1g.10gb true"},
		"wide kernels of another": {func(h *history) {
			for at := 5 * dayOfSteps; at < 5*dayOfSteps+7; at++ {
				h.busy[at], h.sms[at] = 1, 1
			}
		}, "1g.10gb true"},
	} {
		d := stayed(o, []stay{
			{"a-1", a, 6, 200}, {"a-1", a, 300, 5 * dayOfSteps}, {"b-1", b, 5 * dayOfSteps, 5*dayOfSteps + 7},
			{"a-2", a, 5*dayOfSteps + 7, month},
		}, func(h *history) {
			holds(200, 300)(h)

			if c.change != nil {
				c.change(h)
			}
		})

		if c.change == nil {
			d = stayed(o, inTurns(a, b, month), func(h *history) {
				h.memory[9*24] = 30 << 30
				h.memory[0] = 0
			})
		}

		d.history.advice = advice{at: o.End, profile: "1g.10gb"}
		g := judgeOne(analysisOf(o), d)
		cmptest.Equal(t, about, fmt.Sprint(g.Profile, " ", g.Advised), c.want)
	}
}

// inTurns returns stays of pods of two owners that share each hour from the second one on.
func inTurns(owner, other string, steps int) []stay {
	var list []stay
	for at := stepsPerHour; at < steps; at += stepsPerHour {
		list = append(list, stay{"b-1", other, at, at + 2}, stay{"a-1", owner, at + 2, at + stepsPerHour})
	}

	return list
}

// TestLastWord: what an advisor said last counts while nothing else has had the GPU since: it says nothing
// of a GPU that nothing holds, nor for a day after a restart. Once others may have had it, it counts no more;
// but what it refused may be refused again.
func TestLastWord(t *testing.T) {
	const a, b = "Deployment/a", "Deployment/b"

	all := []stay{{"a-1", a, 6, weekOfSteps - 20}}
	other := append(slices.Clone(all), stay{"b-1", b, weekOfSteps - 10, weekOfSteps})

	for about, c := range map[string]struct {
		stays  []stay
		change func(*history)
		said   advice
		steps  int // before the end
		want   string
	}{
		"refused, and scaled to 0": {all, nil, advice{reason: advise.ReasonLatency}, 21, "keep latency  advised"},
		"advised, and scaled to 0": {all, nil, advice{profile: "3g.40gb"}, 21, "slice  3g.40gb advised"},
		"restarted":                {[]stay{{"a-1", a, 6, weekOfSteps}}, nil, advice{reason: advise.ReasonLatency}, 100, "keep latency  advised"},
		"of another":               {other, nil, advice{reason: advise.ReasonLatency}, 21, tooLittle},
		"of one that came back":    {append(slices.Clone(other), stay{"a-2", a, weekOfSteps - 5, weekOfSteps}), nil, advice{reason: advise.ReasonLatency}, 21, "keep latency  advised"},
		"something without a name": {all, holds(weekOfSteps-9, weekOfSteps), advice{reason: advise.ReasonLatency}, 21, provisional},
		"from before the window":   {all, nil, advice{reason: advise.ReasonLatency}, weekOfSteps + 5, provisional},
		"of another, minutes ago": {
			[]stay{{"a-1", a, 6, weekOfSteps - 2}, {"b-1", b, weekOfSteps - 2, weekOfSteps}}, nil, advice{profile: "3g.40gb"}, 3, tooLittle,
		},
		"of another, a minute ago": {
			[]stay{{"a-1", a, 6, weekOfSteps - 1}, {"b-1", b, weekOfSteps - 1, weekOfSteps}}, nil, advice{profile: "3g.40gb"}, 2, tooLittle,
		},
		"of another, in the step of its last scrape": {
			[]stay{{"a-1", a, 6, weekOfSteps - 20}, {"b-1", b, weekOfSteps - 21, weekOfSteps}}, nil, advice{profile: "3g.40gb"}, 21, tooLittle,
		},
		"of a pod without an owner": {
			[]stay{{"n", "", 6, weekOfSteps - 20}, {"b-1", b, weekOfSteps - 20, weekOfSteps}}, nil, advice{profile: "3g.40gb"}, 21, provisional,
		},
		"of the same pod without an owner": {
			[]stay{{"n", "", 6, weekOfSteps - 20}}, nil, advice{profile: "3g.40gb"}, 21, "slice  3g.40gb advised",
		},
		"of another job": {
			[]stay{{"x-1", "Job/x", 6, weekOfSteps - 20}, {"y-1", "Job/y", weekOfSteps - 20, weekOfSteps}}, nil, advice{profile: "3g.40gb"}, 21,
			provisional,
		},
		"of what had no name":         {nil, holds(6, weekOfSteps), advice{profile: "3g.40gb"}, 21, provisional},
		"now, of what has no name":    {nil, holds(6, weekOfSteps), advice{profile: "3g.40gb"}, 0, "slice  3g.40gb advised"},
		"on one that another has now": {other, nil, advice{profile: "3g.40gb"}, 0, "slice  3g.40gb advised"},
	} {
		o := weekly()
		d := stayed(o, c.stays, c.change)
		d.history.advice = c.said
		d.history.advice.at = o.End.Add(-time.Duration(c.steps) * step)
		g := judgeOne(analysisOf(o), d)

		got := fmt.Sprintf("%s %s %s", g.Action, g.Reason, g.Profile)
		if g.Provisional {
			got += " provisional"
		}

		if g.Advised {
			got += " advised"
		}

		cmptest.Equal(t, about, got, c.want)
	}
}

// TestLapsedAdvice: the report says of how many GPUs an advisor's answer is about another workload.
func TestLapsedAdvice(t *testing.T) {
	d := narrow(weekly())
	d.history.advice.lapsed = true
	s := analysisOf(weekly())
	s.client = &Client{}
	s.gpus = []*fleetGPU{d}
	answer := judgeOne(s, d)
	cmptest.Equal(t, "slice", answer.Action, advise.ActionSlice)
	cmptest.Equal(t, "provisional", answer.Provisional, true)
	cmptest.HasTexts(t, strings.Join(s.report().Notes, "\n"), "Of 1 GPUs the right-sizing advisor had an answer in the last day")
}

// TestAdviceBesideNoJudgment: where the history cannot judge a GPU, or not as a whole, its advisor can.
func TestAdviceBesideNoJudgment(t *testing.T) {
	for about, change := range map[string]func(*fleetGPU){
		"unknown model":                func(d *fleetGPU) { d.name = "NVIDIA GB200" },
		"MIG mode for a time":          func(d *fleetGPU) { d.history.mig = true },
		"of several models":            func(d *fleetGPU) { d.modelCount = 2 },
		"neither busy time nor shares": func(d *fleetGPU) { lose(d.history, 0, 168) },
	} {
		d := narrow(weekly())
		d.history.advice = advice{at: weekly().End, profile: "1g.24gb"}
		change(d)
		g := judgeOne(analysisOf(weekly()), d)
		cmptest.Equal(t, about, fmt.Sprint(g.Action, g.Reason, g.Advised, g.isFinal()), "slicetrue true")

		d.history.advice.at = weekly().End.Add(-hour) // it may be in MIG mode by now, or gone
		g = judgeOne(analysisOf(weekly()), d)
		cmptest.Equal(t, about+", an hour ago", fmt.Sprint(g.Action, g.Advised), "keepfalse")
	}
}

// TestMediaStayUnchecked: an advisor that answers "provisional" has checked the media engines for its
// own profile, which it does not name. That of the history may have fewer.
func TestMediaStayUnchecked(t *testing.T) {
	g := GPU{Action: advise.ActionSlice, Profile: "1g.10gb", NotChecked: true, model: modelNamed("H100-80GB")}
	g.followAdvice(advice{reason: advise.ReasonProvisional}, &Options{Advise: advise.DefaultOptions(), Window: 7 * 24 * time.Hour})

	if !g.NotChecked || !g.Provisional {
		t.Errorf("%+v", g)
	}
}

// TestUnreadByTheAdvisor: if the advisor of a node could not read NVLink, the answer says so in the
// advisor's words. Those of the history would send the operator after traffic that may be in it.
func TestUnreadByTheAdvisor(t *testing.T) {
	o := weekly()
	d, other := narrow(o), narrow(o)
	d.history.advice = advice{at: o.End, reason: advise.ReasonNVLinkUnread}
	judgeTogether(analysisOf(o), d, other)

	g := d.answer
	cmptest.Equal(t, "answer", [2]string{string(g.Action), string(g.Reason)}, [2]string{"unknown", "nvlink-unread"})
	cmptest.Equal(t, "read by the history", g.NVLinkUnread, false)
	cmptest.Equal(t, "explanation", g.Explanation, advise.ReasonNVLinkUnread.Summary(o.Advise))
	cmptest.LacksTexts(t, g.Explanation, "history", "DCGM_FI_PROF_NVLINK_TX_BYTES")
}
