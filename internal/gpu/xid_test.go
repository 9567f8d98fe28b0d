package gpu

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestXIDTableIsDocumented: docs/faults.md has a row for each XID of the table, with its scope.
func TestXIDTableIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}

	scopes := map[XIDScope]string{XIDOfApplication: "application", XIDOfChannel: "channel", XIDOfGPU: "GPU"}

	for number, x := range xidTable() {
		counted := "each report"
		if x.PerChannel {
			counted = "a burst"
		}

		row := fmt.Sprintf("| %d | %s | %s | %s |\n", number, x.Name, scopes[x.Scope], counted)
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/faults.md lacks %q", row)
		}
	}
}

func TestWatchedXIDsHaveNames(t *testing.T) {
	watched := WatchedXIDs()
	if !slices.IsSorted(watched) {
		t.Errorf("%v is not in order", watched)
	}

	for _, xid := range watched {
		if XIDName(xid) == "" {
			t.Errorf("XID %d has no name", xid)
		}
	}

	if name := XIDName(9999); name != "" {
		t.Errorf("XID 9999 is %q, want no name", name)
	}
}
