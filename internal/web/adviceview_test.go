package web

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// advised is a report as internal/advise writes it.
const advised = `{"devices":[
	{"gpu":"GPU-5c1f6a2e-0000-4d1b-9f00-000000000000","index":0,"action":"slice","recommendedProfile":"2g.10gb",
		"explanation":"busy 12 % of the time","predicted":{"latency":{"low":1.1,"expected":1.3,"high":1.6}}},
	{"gpu":"GPU-5c1f6a2e-0000-4d1b-9f00-000000000002","index":2,"gpuInstance":1,"action":"shrink",
		"recommendedProfile":"1g.5gb","provisional":true,"predicted":{"latency":{"expected":1000}}},
	{"gpu":"GPU-5c1f6a2e-0000-4d1b-9f00-000000000002","index":2,"gpuInstance":7,"action":"keep","reason":"busy"}]}`

// TestAdvice: the page shows what is recommended, why, what is predicted, and the command that
// shows the steps; a device that should stay has none of it.
func TestAdvice(t *testing.T) {
	report := new(json.RawMessage)
	*report = json.RawMessage(advised)
	page := showPage(t, Options{State: true, Recommendations: func(gpu.UUID) any { return report }}, nodeFixture())

	text := pageText(page)
	cmptest.HasTexts(t, text, "GPU 0 A100-SXM4-40GB row remap pending 2 XIDs 1 unavailable event 2 recovery events underused",
		"Right-sizing A slice 2g.10gb does its work. Expected: a request takes 1.3 times as long, between 1.1 and 1.6. "+
			"busy 12 % of the time Each step is shown by migctl recommend 0",
		"Right-sizing, GPU instance 1 provisional The smaller profile 1g.5gb does its work. Expected: requests would queue "+
			"without bound. Each step is shown by migctl recommend 2")
	cmptest.LacksTexts(t, text, "GPU instance 7 provisional", "Right-sizing, GPU instance 7")
	cmptest.Equal(t, "underused", len(regexp.MustCompile(`data-is="[^"]*underused"`).FindAllString(page, -1)), 2)
	cmptest.LacksTexts(t, page, "<form method", "<button") // the page changes nothing
}

// TestWhatIsNotFinal: the page says why a recommendation is not final, by the rule of the advisor,
// which metrics and migctl follow.
func TestWhatIsNotFinal(t *testing.T) {
	words := map[advise.Reason]string{
		advise.ReasonNone: "", advise.ReasonProvisional: "provisional", advise.ReasonMediaNotChecked: "media not checked",
	}

	for _, r := range []advise.Recommendation{
		{}, {Provisional: true}, {NotChecked: true}, {Provisional: true, NotChecked: true},
	} {
		r.GPU = "GPU-5c1f6a2e-0000-4d1b-9f00-000000000000"
		r.Action = advise.ActionSlice
		report := &advise.Report{Devices: []advise.Recommendation{r}}
		page := pageText(showPage(t, Options{State: true, Recommendations: func(gpu.UUID) any { return report }}, nodeFixture()))

		title := strings.TrimSpace("Right-sizing "+words[r.WhyNotFinal()]) + " A slice"
		cmptest.HasTexts(t, page, title)
	}
}

// TestAdviceIsReadOnce: a report is decoded when it is new; none, or one that cannot be read, is no
// advice.
func TestAdviceIsReadOnce(t *testing.T) {
	report := new(json.RawMessage)
	*report = json.RawMessage(advised)

	source := adviceSource{report: func(gpu.UUID) any { return report }}
	cmptest.Equal(t, "GPUs", len(source.current()), 2)

	*report = nil // what it was is kept
	cmptest.Equal(t, "GPUs", len(source.current()), 2)

	report = new(json.RawMessage)
	*report = json.RawMessage(`{"devices":[{"gpu":1}]}`)
	cmptest.Equal(t, "GPUs", len(source.current()), 0)

	for name, none := range map[string]*adviceSource{
		"no advisor": {}, "no report yet": {report: func(gpu.UUID) any { return nil }},
	} {
		if got := none.current(); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
