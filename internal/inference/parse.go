package inference

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Bounds of what is read: the bytes of a text, the lines that count, and the bytes of each line. A
// server with a few models has dozens of lines. The parser compares each label of a line with those
// before it, so we also bound the sum of the squares of the numbers of labels: 2,000 lines may have
// 16 labels each.
const (
	MaxBytes         = 1 << 20
	maxLines         = 2000
	maxLine          = 4 << 10
	maxSquaredLabels = 1 << 19
)

// ErrNoServer is the error for metrics of none of the servers that are known.
var ErrNoServer = errors.New("has no metrics of vLLM, SGLang, TGI or Triton")

// Parse returns what metrics in Prometheus' text format say. It parses only the lines of known
// metrics, without their types and the buckets of histograms, so that its memory is bounded
// whatever the text is. It leaves out values that no server can have, such as NaN. The error is
// ErrNoServer, or says what is wrong with the text.
func Parse(text []byte) (gpu.ServerFigures, error) {
	if len(text) > MaxBytes {
		return gpu.ServerFigures{}, fmt.Errorf("has more than %d bytes", MaxBytes)
	}

	known, err := knownLines(text)
	if err != nil {
		return gpu.ServerFigures{}, err
	}

	parser := expfmt.NewTextParser(model.LegacyValidation)

	families, err := parser.TextToMetricFamilies(known)
	if err != nil {
		return gpu.ServerFigures{}, fmt.Errorf("is not in Prometheus' text format: %.200w", err)
	}

	for _, s := range servers() {
		if found, ok := s.readFigures(families); ok {
			return found, nil
		}
	}

	return gpu.ServerFigures{}, ErrNoServer
}

// knownLines returns the lines with samples of known metrics.
func knownLines(text []byte) (io.Reader, error) {
	names := map[string]bool{}
	for _, name := range Names() {
		names[name] = true
	}

	var known bytes.Buffer
	lines := 0
	squaredLabels := 0

	for line := range bytes.Lines(text) {
		name := line
		if end := bytes.IndexAny(line, "{ \t\n"); end >= 0 {
			name = line[:end]
		}

		if !names[string(name)] {
			continue
		}

		if lines++; lines > maxLines || len(line) > maxLine {
			return nil, fmt.Errorf(
				"has more than %d lines of its server's metrics, or one of more than %d bytes",
				maxLines,
				maxLine,
			)
		}

		labels := bytes.Count(line, []byte("=")) // at most, since a value may have some
		if squaredLabels += labels * labels; squaredLabels > maxSquaredLabels {
			return nil, fmt.Errorf(
				"has too many labels; expected 16 at most in each of %d lines",
				maxLines,
			)
		}

		known.Write(line)
	}

	if n := known.Len(); n > 0 && known.Bytes()[n-1] != '\n' {
		known.WriteByte('\n') // the parser wants it
	}

	return &known, nil
}

// readFigures returns what a server's metrics say; false if there are none.
func (s *server) readFigures(families map[string]*dto.MetricFamily) (gpu.ServerFigures, bool) {
	var all sums
	found := false

	for _, m := range s.metrics {
		if all[m.figure].Present() {
			continue // a better metric of the same figure came before
		}

		for _, sample := range families[m.name].GetMetric() {
			if m.label != "" && labelOf(sample, m.label) != m.value {
				continue
			}

			found = true

			factor := m.factor
			if factor == 0 {
				factor = 1
			}

			all.add(m.figure, sample.GetUntyped().GetValue()*factor)
		}
	}

	if !found {
		return gpu.ServerFigures{}, false
	}

	result := all.serverFigures(s.kind)
	s.addConfiguration(&result, families[s.info].GetMetric())

	return result, true
}

// addConfiguration adds what the labels of an info metric say: the size of the cache, of all
// engines together, and the share of memory that vLLM reserves.
func (s *server) addConfiguration(f *gpu.ServerFigures, infos []*dto.Metric) {
	tokens := 0.

	for _, info := range infos {
		blocks := numberOf(info, s.blocks)

		size := numberOf(info, s.blockTokens)
		if cacheTokens.isUsable(blocks * size) {
			tokens += blocks * size
		}

		share := numberOf(info, "gpu_memory_utilization")
		if s.kind == gpu.ServerVLLM && share > 0 && share <= 1 {
			f.Fraction = gpu.Some(share)
		}
	}

	if tokens > 0 && !f.CacheTokens.Present() {
		f.CacheTokens = gpu.Some(tokens)
	}
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}

	return ""
}

// numberOf returns the number in a label, 0 if there is none, as in "None".
func numberOf(m *dto.Metric, label string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(labelOf(m, label)), 64)
	if err != nil {
		return 0
	}

	return v
}
