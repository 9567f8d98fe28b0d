package fleet

import (
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
		"too little":       {slice, advice{reason: advise.ReasonLittleEvidence}, advise.ActionSlice, "", "1g.10gb", false, false},
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

		others := GPU{Action: advise.ActionSlice, Profile: "3g.40gb", hadOthers: true, model: modelNamed("H100-80GB")}
		others.followAdvice(advice{profile: "1g.10gb"}, &o)
		cmptest.Equal(t, name+": it may be what others needed", others.Profile, "1g.10gb")

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
	d.history.advice.profile = "1g.10gb"
	answer := judgeOne(analysisOf(o), d)
	cmptest.Equal(t, "answer", string(answer.Action)+" "+answer.Profile, "slice 3g.40gb")
	cmptest.Equal(t, "decided by the advisor", answer.Advised, false)
}

// TestLapsedAdvice: if an advisor had an answer in the last hour, and has none, it may still refuse what the
// history cannot show.
func TestLapsedAdvice(t *testing.T) {
	d := narrow(weekly())
	d.history.advice.lapsed = true
	s := analysisOf(weekly())
	s.client = &Client{}
	s.gpus = []*fleetGPU{d}
	answer := judgeOne(s, d)
	cmptest.Equal(t, "slice", answer.Action, advise.ActionSlice)
	cmptest.Equal(t, "provisional", answer.Provisional, true)
	cmptest.HasTexts(t, strings.Join(s.report().Notes, "\n"), "Of 1 GPUs the right-sizing advisor had an answer in the last hour")
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
	d.history.advice.reason = advise.ReasonNVLinkUnread
	judgeTogether(analysisOf(o), d, other)

	g := d.answer
	cmptest.Equal(t, "answer", [2]string{string(g.Action), string(g.Reason)}, [2]string{"unknown", "nvlink-unread"})
	cmptest.Equal(t, "read by the history", g.NVLinkUnread, false)
	cmptest.Equal(t, "explanation", g.Explanation, advise.ReasonNVLinkUnread.Summary(o.Advise))
	cmptest.LacksTexts(t, g.Explanation, "history", "DCGM_FI_PROF_NVLINK_TX_BYTES")
}
