package promtest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exposition is a text exposition, read without the engine's parser: what the checks expect is
// worked out from it and never by PromQL.
type exposition map[string]*dto.MetricFamily

// series is one gauge or counter.
type series struct {
	labels map[string]string // without empty ones, which are none
	value  float64
}

func readExposition(text []byte) (exposition, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))

	return families, err
}

// of returns the series of a family whose labels have all the given values ("name=value").
func (x exposition) of(family string, want ...string) []series {
	var all []series

	for _, m := range x[family].GetMetric() {
		s := series{labels: map[string]string{}, value: m.GetGauge().GetValue() + m.GetCounter().GetValue()}
		for _, l := range m.GetLabel() {
			if l.GetValue() != "" {
				s.labels[l.GetName()] = l.GetValue()
			}
		}

		if s.has(want) {
			all = append(all, s)
		}
	}

	return all
}

func (s series) has(want []string) bool {
	for _, w := range want {
		name, value, _ := strings.Cut(w, "=")
		if s.labels[name] != value {
			return false
		}
	}

	return true
}

// key joins the values of the named labels.
func (s series) key(names []string) string {
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = name + "=" + s.labels[name]
	}

	return strings.Join(values, ",")
}

// without returns the labels but the named ones.
func (s series) without(names []string) map[string]string {
	rest := maps.Clone(s.labels)
	for _, name := range names {
		delete(rest, name)
	}

	return rest
}

// plain returns the families with this prefix that are gauges or counters and whose series all
// carry these labels.
func (x exposition) plain(prefix string, carry []string) []string {
	var names []string

	for name, family := range x {
		kind := family.GetType()
		if !strings.HasPrefix(name, prefix) || kind != dto.MetricType_GAUGE && kind != dto.MetricType_COUNTER {
			continue
		}

		lacks := func(s series) bool {
			return slices.ContainsFunc(carry, func(label string) bool { return s.labels[label] == "" })
		}
		if !slices.ContainsFunc(x.of(name), lacks) {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return names
}

func TestExpositionIsReadAsWritten(t *testing.T) {
	x, err := readExposition([]byte("# TYPE nvidia_gpu_up gauge\n" +
		`nvidia_gpu_up{gpu="0",uuid="GPU-0",pod=""} 1` + "\n" +
		`nvidia_gpu_up{gpu="1",uuid="GPU-1"} 0` + "\n" +
		"# TYPE nvidia_gpu_odd gauge\n" +
		`nvidia_gpu_odd{gpu="1"} 0` + "\n"))
	if err != nil {
		t.Fatal(err)
	}

	if got, want := fmt.Sprint(x.of("nvidia_gpu_up")), "[{map[gpu:0 uuid:GPU-0] 1} {map[gpu:1 "+
		"uuid:GPU-1] 0}]"; got != want {
		t.Errorf("series %s, want %s", got, want)
	}

	if got := x.of("nvidia_gpu_up", "gpu=1"); len(got) != 1 || got[0].value != 0 {
		t.Errorf("with gpu=1: %v", got)
	}

	if got := x.plain("nvidia_gpu_", []string{"gpu", "uuid"}); !slices.Equal(got, []string{"nvidia_gpu_up"}) {
		t.Errorf("families with gpu and uuid: %v", got)
	}
}
