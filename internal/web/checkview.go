package web

import "fmt"

// Finding is something that the configuration asks for and that check-node did not find, or could
// not check. check-node prints its state in capitals.
type Finding struct {
	Missing bool   // false: check-node could not check it
	Name    string // "gpu 0 activity"
	Found   string // what check-node saw instead
	Remedy  string // what to change; empty if we don't know it, or if an earlier finding says it
}

// State returns the word for the finding's state.
func (f Finding) State() string {
	if f.Missing {
		return "missing"
	}

	return "unknown"
}

// maxFindings is how many findings the page lists.
const maxFindings = 20

// checkTile returns the tile with the findings of check-node; false if there are no results yet.
func checkTile(opts *Options) (tile, bool) {
	if opts.Findings == nil {
		return tile{}, false
	}

	found := opts.Findings()
	if found == nil {
		return tile{}, false
	}

	missing := 0

	for _, f := range *found {
		if f.Missing {
			missing++
		}
	}

	t := tile{Label: "check-node", Findings: (*found)[:min(len(*found), maxFindings)]}
	t.More = len(*found) - len(t.Findings)
	unknown := len(*found) - missing

	switch {
	case missing > 0:
		t.Value = fmt.Sprintf("%d missing", missing)
		if unknown > 0 {
			t.Note = fmt.Sprintf("%d unknown", unknown)
		}
	case unknown > 0:
		t.Value = fmt.Sprintf("%d unknown", unknown)
	default:
		t.Value = "nothing missing"
	}

	return t, true
}
