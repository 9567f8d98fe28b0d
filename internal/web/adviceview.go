package web

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// adviceView is what the right-sizing advisor recommends for a GPU, or for a GPU instance of it.
type adviceView struct {
	Device      string // "GPU instance 3"; empty for the GPU
	Text        string
	Why         string
	Latency     string // what is predicted of requests in the recommended profile
	Provisional bool   // there is evidence of less than seven days
	Command     string // shows each step; the page itself changes nothing
}

// recommendation is the part of the report about right-sizing that the page shows, see
// internal/advise.
type recommendation struct {
	GPU         gpu.UUID                `json:"gpu"`
	Index       int                     `json:"index"`
	Instance    gpu.Opt[gpu.InstanceID] `json:"gpuInstance"`
	Action      string                  `json:"action"`
	Explanation string                  `json:"explanation"`
	Recommended string                  `json:"recommendedProfile"`
	Provisional bool                    `json:"provisional"`
	Predicted   struct {
		Latency struct {
			Low      float64 `json:"low"`
			Expected float64 `json:"expected"`
			High     float64 `json:"high"`
		} `json:"latency"`
	} `json:"predicted"`
}

// advice has the recommendations by GPU. The zero advice has none.
type advice map[gpu.UUID][]recommendation

// adviceSource reads the advisor's last report, each report once.
type adviceSource struct {
	report func(gpu.UUID) any // nil: there is no advisor

	mu         sync.Mutex
	lastReport any
	lastAdvice advice // read from lastReport
}

// current returns the last report; nil if there is none, or none that can be read.
func (s *adviceSource) current() advice {
	if s.report == nil {
		return nil
	}

	report := s.report("")
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

// isUnderused reports whether a device is larger than its work needs.
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
			Text:        text,
			Why:         r.Explanation,
			Latency:     r.latencyText(),
			Provisional: r.Provisional,
			Command:     fmt.Sprintf("migctl recommend %d", r.Index),
		}
		if id, ok := r.Instance.Get(); ok {
			view.Device = fmt.Sprintf("GPU instance %d", id)
		}

		views = append(views, view)
	}

	return views
}

// text says what is recommended; it is empty if nothing is to be changed.
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

// unboundLatency stands for a queue that grows without bound, see internal/advise.
const unboundLatency = 1000

func (r *recommendation) latencyText() string {
	l := r.Predicted.Latency

	switch {
	case l.Expected == 0:
		return ""
	case l.Expected >= unboundLatency:
		return "requests would queue without bound"
	default:
		return fmt.Sprintf("a request takes %.1f times as long, between %.1f and %.1f", l.Expected, l.Low, l.High)
	}
}
