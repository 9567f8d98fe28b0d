package collector

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// protoTemplate is a delimited protobuf exposition of a layout. In most families only the values
// change between Snapshots, and the value of a gauge or a counter always takes eight bytes, so we
// overwrite these. The library encodes the other families each time.
type protoTemplate struct {
	format   expfmt.Format
	groupOf  groupFunc
	families []protoFamily
}

// protoFamily is a family of a template.
type protoFamily struct {
	libraryFamily
	// slots are the offsets of the values in encoded. Both are nil if the library encodes the
	// family each time: if it has histograms, which vary in length, or series of several groups,
	// because its encoding begins with a length that depends on the selection.
	slots []int
	group int // of all its series, if there are slots
}

// valueSize is the length of a double in protobuf.
const valueSize = 8

// newProtoTemplate returns nil if it cannot find the values. It takes ownership of the families.
func newProtoTemplate(
	families []libraryFamily,
	format expfmt.Format,
	groupOf groupFunc,
) seriesTemplate {
	t := &protoTemplate{
		format:   format,
		groupOf:  groupOf,
		families: make([]protoFamily, len(families)),
	}
	for i, f := range families {
		t.families[i] = protoFamily{libraryFamily: f, group: groupOf(f.GetName(), f.Metric[0])}

		varies := slices.ContainsFunc(f.Metric, func(m *dto.Metric) bool {
			return m.Histogram != nil || groupOf(f.GetName(), m) != t.families[i].group
		})
		switch {
		case varies:
			t.families[i].encoded = nil
		case !t.families[i].findSlots(format):
			return nil
		}
	}

	return t
}

// findSlots finds where the values are: the library encodes the family again with all bits of the
// values inverted, and only these bytes differ. It returns false unless there is one value for each
// metric. It replaces the pointers in the metrics, so the values of the series stay.
func (f *protoFamily) findSlots(format expfmt.Format) bool {
	for _, m := range f.Metric {
		if m.Gauge != nil {
			m.Gauge.Value = invertBits(m.Gauge.Value)
		} else {
			m.Counter.Value = invertBits(m.Counter.Value)
		}
	}

	var other bytes.Buffer
	if expfmt.NewEncoder(&other, format).Encode(f.MetricFamily) != nil ||
		other.Len() != len(f.encoded) {
		return false
	}

	f.MetricFamily = nil // free its memory
	offset := 0

	for range f.series {
		for offset < len(f.encoded) && f.encoded[offset] == other.Bytes()[offset] {
			offset++
		}

		if offset+valueSize > len(f.encoded) {
			return false
		}

		f.slots = append(f.slots, offset)
		offset += valueSize
	}

	return true
}

func invertBits(value *float64) *float64 {
	v := math.Float64frombits(^math.Float64bits(*value))
	return &v
}

// renderMetrics implements seriesTemplate.
func (t *protoTemplate) renderMetrics(dst *bytes.Buffer, m metrics, selected groupSelection) error {
	encoder := expfmt.NewEncoder(dst, t.format)
	for i := range t.families {
		f := &t.families[i]
		if f.slots != nil {
			if selected.includes(f.group) {
				f.renderFamily(dst, m)
			}

			continue
		}

		for j, k := range f.series {
			if err := m[k].Write(f.Metric[j]); err != nil {
				return err
			}
		}

		if family := selected.filter(f.MetricFamily, t.groupOf); family != nil {
			if err := encoder.Encode(family); err != nil {
				return err
			}
		}
	}

	return nil
}

// renderFamily appends the family with the values of the metrics in its slots.
func (f *protoFamily) renderFamily(dst *bytes.Buffer, m metrics) {
	before := dst.Len()
	dst.Write(f.encoded)

	family := dst.Bytes()[before:]
	for i, offset := range f.slots {
		binary.LittleEndian.PutUint64(family[offset:], math.Float64bits(m[f.series[i]].value))
	}
}
