package web

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// collectParameter is the query parameter that picks a collector, as node_exporter has it. It may be repeated.
const collectParameter = "collect[]"

// maxSelections is the number of encoded selections that are kept of a Snapshot.
const maxSelections = 8

// selection is the set of collectors that a scrape asks for. Its zero value is all of them and the fresh families.
type selection struct {
	key   string   // equal for equal sets
	names []string // sorted, without duplicates
}

// selected reads the selection out of a query. An error says what is wrong and what was expected.
func selected(query string, metrics Metrics) (selection, error) {
	if query == "" {
		return selection{}, nil
	}
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return selection{}, fmt.Errorf("query: %w", err)
	}
	for name := range parameters {
		// Without the brackets, or as an exclusion, it would be ignored, and everything be served.
		if name != collectParameter && (strings.HasPrefix(name, "collect") || strings.HasPrefix(name, "exclude")) {
			return selection{}, fmt.Errorf("query parameter %.64q is not supported, expected %q", name, collectParameter)
		}
	}
	names := parameters[collectParameter]
	if len(names) == 0 {
		return selection{}, nil
	}
	if err := metrics.CheckCollectors(names); err != nil {
		return selection{}, fmt.Errorf("query parameter %q: %w", collectParameter, err)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return selection{key: strings.Join(names, ","), names: names}, nil
}

// all reports whether everything is asked for.
func (s selection) all() bool { return len(s.names) == 0 }

// recent keeps the values of the keys that were asked for last. Its zero value is empty.
type recent[K comparable, V any] struct{ entries []recentEntry[K, V] } // the last one first

type recentEntry[K comparable, V any] struct {
	key   K
	value V
}

// get returns the value of a key. If it is not kept, create returns it, and the value that was asked for longest ago is
// dropped if there are more than limit.
func (r *recent[K, V]) get(key K, limit int, create func() V) V {
	at := slices.IndexFunc(r.entries, func(e recentEntry[K, V]) bool { return e.key == key })
	if at < 0 {
		r.entries = append(r.entries, recentEntry[K, V]{key, create()})
		at = len(r.entries) - 1
	}
	entry := r.entries[at]
	copy(r.entries[1:], r.entries[:at])
	r.entries[0] = entry
	if len(r.entries) > limit {
		r.entries[limit] = recentEntry[K, V]{} // for the garbage collector
		r.entries = r.entries[:limit]
	}
	return entry.value
}
