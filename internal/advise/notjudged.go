package advise

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// NotJudged is a GPU that has no answer because it could not be read.
type NotJudged struct {
	GPU   gpu.UUID `json:"gpu,omitempty"`
	Index int      `json:"index"`
	Model string   `json:"model,omitempty"`
	Why   string   `json:"why"` // "GPU is lost"
}

// String says why the GPU has no answer.
func (n *NotJudged) String() string {
	return fmt.Sprintf("GPU %d could not be read, and is not judged: %s", n.Index, n.Why)
}

// canJudge reports whether a GPU was read, so that we can say something about it.
func canJudge(g *gpu.GPU) bool { return g.UUID != "" && g.Up }

// notJudged returns the GPUs of a Snapshot that could not be read.
func notJudged(s *gpu.Snapshot) []NotJudged {
	var list []NotJudged

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if canJudge(g) {
			continue
		}

		n := NotJudged{GPU: g.UUID, Index: g.Index, Model: g.Name, Why: "it does not answer"}
		if len(g.Errors) > 0 {
			n.Why = g.Errors[0].Err.Error()
		}

		list = append(list, n)
	}

	return list
}

// unknownNotes says which GPUs a report lacks because the driver has not listed them yet, or because their
// first reading is under way.
func unknownNotes(s *gpu.Snapshot) []string {
	var list []string
	if why := s.WhyUnknown(); why != "" {
		list = append(list, "it is not known yet which GPUs this node has: "+why)
	}

	if len(s.Unread) > 0 {
		indexes := make([]string, 0, len(s.Unread))
		for _, index := range s.Unread {
			indexes = append(indexes, strconv.Itoa(index))
		}

		verbs := "GPUs have not been read yet, and are"
		if len(s.Unread) == 1 {
			verbs = "GPU has not been read yet, and is"
		}

		note := fmt.Sprintf("%d %s not judged: index %s", len(s.Unread), verbs, strings.Join(indexes, ", "))
		list = append(list, note)
	}

	return list
}
