package web

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// collectParameter is the query parameter that selects a collector, as in node_exporter. It may be
// repeated.
const collectParameter = "collect[]"

// maxSelections is how many encoded selections of a Snapshot are kept.
const maxSelections = 8

// selection is the set of collectors that a scrape requests. The zero selection has all collectors and
// the fresh families.
type selection struct {
	key   string   // equal for equal sets
	names []string // sorted, without duplicates
}

// parseSelection returns the selection of a query string. An error says what is wrong and what was
// expected.
func parseSelection(query string, metrics Metrics) (selection, error) {
	if query == "" {
		return selection{}, nil
	}

	parameters, err := url.ParseQuery(query)
	if err != nil {
		return selection{}, fmt.Errorf("query: %w", err)
	}

	for name := range parameters {
		// If we ignored collect without the brackets, or an exclusion, we would serve all metrics,
		// which is not what the scrape asks for. Other parameters are ignored.
		if name != collectParameter &&
			(strings.HasPrefix(name, "collect") || strings.HasPrefix(name, "exclude")) {
			return selection{}, fmt.Errorf(
				"query parameter %.64q is not supported, expected %q",
				name,
				collectParameter,
			)
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

// isAll reports whether all collectors are requested.
func (s selection) isAll() bool { return len(s.names) == 0 }

// recent keeps the values of the keys that were requested last. Its zero value is empty.
type recent[K comparable, V any] struct{ entries []recentEntry[K, V] } // the last requested first

type recentEntry[K comparable, V any] struct {
	key   K
	value V
}

// get returns the value of a key. If it is not kept, get calls create, and drops the least recently
// requested value if there are more than limit.
func (r *recent[K, V]) get(key K, limit int, create func() V) V {
	at := slices.IndexFunc(r.entries, func(e recentEntry[K, V]) bool { return e.key == key })
	if at < 0 {
		r.entries = append(r.entries, recentEntry[K, V]{key, create()})
		at = len(r.entries) - 1
	}

	// Move the entry to the front.
	entry := r.entries[at]
	copy(r.entries[1:], r.entries[:at])
	r.entries[0] = entry

	if len(r.entries) > limit {
		r.entries[limit] = recentEntry[K, V]{} // for the garbage collector
		r.entries = r.entries[:limit]
	}

	return entry.value
}
