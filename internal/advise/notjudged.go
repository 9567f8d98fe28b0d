package advise

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// NotJudged is a GPU that has no answer because it could not be read, or has not been read yet.
type NotJudged struct {
	GPU   gpu.UUID `json:"gpu,omitempty"` // empty if it is not known
	Index int      `json:"index"`
	Model string   `json:"model,omitempty"`
	Why   string   `json:"why"` // "it could not be read: GPU is lost"
}

// String says why the GPU has no answer.
func (n *NotJudged) String() string { return fmt.Sprintf("GPU %d is not judged: %s", n.Index, n.Why) }

// canJudge reports whether a GPU was read, so that we can say something about it.
func canJudge(g *gpu.GPU) bool { return g.UUID != "" && g.Up }

// notJudged returns the GPUs of a Snapshot that could not be read, or have not been read yet, by index.
func notJudged(s *gpu.Snapshot) []NotJudged {
	var list []NotJudged

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if canJudge(g) {
			continue
		}

		n := NotJudged{GPU: g.UUID, Index: g.Index, Model: g.Name, Why: "it does not answer"}
		if len(g.Errors) > 0 {
			n.Why = "it could not be read: " + g.Errors[0].Err.Error()
		}

		list = append(list, n)
	}

	for _, index := range s.Unread {
		list = append(list, NotJudged{Index: index, Why: "it has not been read yet"})
	}

	slices.SortStableFunc(list, func(a, b NotJudged) int { return cmp.Compare(a.Index, b.Index) })

	return list
}
