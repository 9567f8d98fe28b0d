package web

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// adviceView is what the right-sizing advisor recommends for a GPU, or for a GPU instance of it.
type adviceView struct {
	Device   string // "GPU instance 3"; empty for the GPU
	Text     string // the advice in a sentence
	Why      string
	Slowdown string // how much longer requests would take in the recommended profile, if we know
	NotFinal string // why the advice is not final; empty if it is
	Command  string // the migctl command that lists the steps; the page itself changes nothing
}

// recommendation decodes what the page shows of one of the report's devices. We read it from the
// report's JSON (see internal/advise), so that this package doesn't depend on the advisor.
type recommendation struct {
	GPU         gpu.UUID                `json:"gpu"`
	Index       int                     `json:"index"`
	Instance    gpu.Opt[gpu.InstanceID] `json:"gpuInstance"`
	Action      string                  `json:"action"`
	Explanation string                  `json:"explanation"`
	Recommended string                  `json:"recommendedProfile"`
	Provisional bool                    `json:"provisional"`
	NotChecked  bool                    `json:"mediaNotChecked"`
	Predicted   struct {
		// Slowdown is how many times as long a request takes; it is 0 if that is not predicted.
		Slowdown struct {
			Low      float64 `json:"low"`
			Expected float64 `json:"expected"`
			High     float64 `json:"high"`
		} `json:"latency"`
	} `json:"predicted"`
}

// advice has the recommendations by GPU. The zero advice has none.
type advice map[gpu.UUID][]recommendation

// adviceSource decodes the advisor's last report, each report once.
type adviceSource struct {
	report func(gpu.UUID) any // Options.Recommendations; nil without an advisor

	mu         sync.Mutex
	lastReport any    // a pointer: equal pointers are the same report
	lastAdvice advice // decoded from lastReport
}

// current returns the advice of the last report, or nil. It is nil without an advisor, before the
// first report, and for a report that we can't decode.
func (s *adviceSource) current() advice {
	if s.report == nil {
		return nil
	}

	report := s.report(allGPUs)
	if report == nil {
		return nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.lastReport != report {
		s.lastReport = report
		s.lastAdvice = readAdvice(report)
	}

	return s.lastAdvice
}

func readAdvice(report any) advice {
	var doc struct {
		Devices []recommendation `json:"devices"`
	}

	text, err := json.Marshal(report)
	if err != nil || json.Unmarshal(text, &doc) != nil {
		return nil
	}

	all := advice{}
	for _, r := range doc.Devices {
		all[r.GPU] = append(all[r.GPU], r)
	}

	return all
}

// isUnderused reports whether a device is larger than its work needs: a GPU, or the given GPU
// instance of it.
func (a advice) isUnderused(id gpu.UUID, instance gpu.Opt[gpu.InstanceID]) bool {
	for _, r := range a[id] {
		if r.Instance == instance && (r.Action == "slice" || r.Action == "shrink" || r.Action == "idle") {
			return true
		}
	}

	return false
}

// viewsOf returns what is recommended for a GPU and its instances. A device that should stay as it
// is has no entry.
func (a advice) viewsOf(g *gpu.GPU) []adviceView {
	var views []adviceView

	for _, r := range a[g.UUID] {
		text := r.text()
		if text == "" {
			continue
		}

		view := adviceView{
			Text:     text,
			Why:      r.Explanation,
			Slowdown: r.slowdownText(),
			NotFinal: r.whyNotFinal(),
			Command:  fmt.Sprintf("migctl recommend %d", r.Index),
		}
		if id, ok := r.Instance.Get(); ok {
			view.Device = fmt.Sprintf("GPU instance %d", id)
		}

		views = append(views, view)
	}

	return views
}

// text says what is recommended. It is empty for the other actions, which ask for no change.
func (r *recommendation) text() string {
	switch r.Action {
	case "slice":
		return "A slice " + r.Recommended + " does its work."
	case "share":
		return "It could be shared: a slice would slow its work too much."
	case "shrink":
		return "The smaller profile " + r.Recommended + " does its work."
	case "grow":
		if r.Recommended == "" {
			return "It is too small, and no larger profile is offered."
		}

		return "It is too small: profile " + r.Recommended + " would do."
	case "idle":
		return "Its container has held memory for a day, and nothing has run."
	}

	return ""
}

// whyNotFinal says why the advice is not final; it is empty if it is. A test holds it against
// advise.WhyNotFinal.
func (r *recommendation) whyNotFinal() string {
	switch {
	case r.NotChecked:
		return "media not checked"
	case r.Provisional:
		return "provisional"
	}

	return ""
}

// unboundedSlowdown is the number by which internal/advise reports a queue that grows without bound.
const unboundedSlowdown = 1000

func (r *recommendation) slowdownText() string {
	s := r.Predicted.Slowdown

	switch {
	case s.Expected == 0:
		return ""
	case s.Expected >= unboundedSlowdown:
		return "requests would queue without bound"
	default:
		return fmt.Sprintf("a request takes %.1f times as long, between %.1f and %.1f", s.Expected, s.Low, s.High)
	}
}
