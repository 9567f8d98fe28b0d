package collector

import (
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// labels are the labels of a series; nil is none. They are shared between series and their pairs
// are never modified.
type labels = *labelSet

// labelSet is a set of labels and the sets that extend it. The sets of a Collector form a tree that
// is kept between Snapshots: while the name and the holder of a device do not change, its series
// have the identical set. Collector.mu guards everything but pairs.
type labelSet struct {
	pairs     []*dto.LabelPair // sorted by name
	extension []string         // the arguments of extend
	children  []*labelSet
	next      int  // index of the likely next child: extend is called in the same order each time
	used      bool // since the last dropUnused
}

// extend returns the labels together with more, given as alternating names and values. A label with
// an empty value is left out, which means the same to Prometheus. Invalid UTF-8 becomes U+FFFD,
// because a label value must be UTF-8. The pairs are not retained.
func (l *labelSet) extend(pairs ...string) labels {
	if l == nil {
		return (&labelSet{}).extend(pairs...)
	}

	for i := range l.children {
		at := (l.next + i) % len(l.children)
		if child := l.children[at]; slices.Equal(child.extension, pairs) {
			l.next = at + 1
			child.used = true

			return child
		}
	}

	child := &labelSet{
		used:      true,
		pairs:     slices.Clone(l.pairs),
		extension: make([]string, len(pairs)),
	}
	for i := range pairs {
		child.extension[i] = strings.Clone(pairs[i])
	}

	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			value := strings.ToValidUTF8(child.extension[i+1], "\uFFFD")
			child.pairs = append(
				child.pairs,
				&dto.LabelPair{Name: &child.extension[i], Value: &value},
			)
		}
	}

	slices.SortFunc(child.pairs, func(a, b *dto.LabelPair) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	l.children = append(l.children, child)

	return child
}

// dropUnused drops the sets that were not used since the last call.
func (l *labelSet) dropUnused() {
	l.children = slices.DeleteFunc(l.children, func(c *labelSet) bool { return !c.used })
	for _, child := range l.children {
		child.dropUnused()
		child.used = false
	}

	l.next = 0
}

// pairList returns the pairs, none for nil.
func (l *labelSet) pairList() []*dto.LabelPair {
	if l == nil {
		return nil
	}

	return l.pairs
}

// equal reports whether two sets have the same names and values. Equal sets of one tree are usually
// identical.
func (l *labelSet) equal(other labels) bool {
	return l == other ||
		slices.EqualFunc(l.pairList(), other.pairList(), func(a, b *dto.LabelPair) bool {
			return a.GetName() == b.GetName() && a.GetValue() == b.GetValue()
		})
}
