package gpu

import (
	"slices"
	"testing"
)

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
