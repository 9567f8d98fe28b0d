package promtest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/promql"
)

// Documented queries that no golden answers, word for word.
const (
	teamJoin = `nvidia_gpu_power_watts * on (uuid) group_left (namespace, pod, container, label_team)` +
		` nvidia_gpu_pod_info{sharing="exclusive",confirmed="true"}`
	dcgmTeamJoin = `DCGM_FI_DEV_FB_USED * on (namespace, pod, container) group_left (label_team)` +
		` max by (namespace, pod, container, label_team) ({__name__=~"nvidia_(gpu|mig_gpu_instance|mig_compute_instance)_pod_info",confirmed="true"})`
	mostMemory   = `histogram_quantile(1, increase(nvidia_mig_gpu_instance_memory_used_distribution_bytes[1h]))`
	partAbove80  = `histogram_fraction(0.8, +Inf, increase(nvidia_mig_gpu_instance_sm_activity_distribution[1h]))`
	teamFamilies = `# TYPE nvidia_gpu_power_watts gauge
nvidia_gpu_power_watts{uuid="GPU-0"} 300
nvidia_gpu_power_watts{uuid="GPU-1"} 90
# TYPE nvidia_gpu_pod_info gauge
nvidia_gpu_pod_info{uuid="GPU-0",namespace="ml",pod="a",container="m",sharing="exclusive",confirmed="true",label_team="red"} 1
nvidia_gpu_pod_info{uuid="GPU-1",namespace="ml",pod="b",container="m",sharing="exclusive",confirmed="false",label_team="blue"} 1
# TYPE nvidia_mig_compute_instance_pod_info gauge
nvidia_mig_compute_instance_pod_info{uuid="GPU-2",gpu_instance="1",namespace="ml",pod="c",container="m",sharing="exclusive",confirmed="true",label_team="red"} 1
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{UUID="GPU-0",namespace="ml",pod="a",container="m"} 7000
DCGM_FI_DEV_FB_USED{UUID="GPU-2",GPU_I_ID="1",namespace="ml",pod="c",container="m"} 900
DCGM_FI_DEV_FB_USED{UUID="GPU-3"} 5
`
)

// Queries of docs/compatibility.md for other programs, word for word.
const (
	kedaQuery     = `avg(nvidia_gpu_container_sm_activity_ratio{namespace="llm",pod=~"chat-.*"})`
	openCostQuery = `sum by (namespace, pod) (increase(nvidia_gpu_container_energy_estimate_joules_total[1d]))`
)

// TestQueriesOfOtherProgramsAnswer: KEDA gets one number, OpenCost a share for each pod.
func TestQueriesOfOtherProgramsAnswer(t *testing.T) {
	t.Parallel()

	page := readFile(t, "../../docs/compatibility.md")
	for _, query := range []string{kedaQuery, openCostQuery} {
		if !strings.Contains(page, query+"`") {
			t.Errorf("docs/compatibility.md has no %s", query)
		}
	}

	e := NewPrometheus(t)
	text := []byte(readFile(t, goldens+"/b200-power.prom"))
	e.AddScrape(t, scraped(), Text, text)
	e.AddScrape(t, scraped().Add(time.Minute), Text, text)

	if got := e.Query(t, kedaQuery); len(got) != 1 || got[0].F <= 0 || got[0].F > 1 {
		t.Errorf("KEDA: got %v, want the mean activity of two pods", got)
	}

	shares := e.Query(t, openCostQuery)
	if len(shares) == 0 {
		t.Error("OpenCost: no pod has a share")
	}

	for _, share := range shares {
		if share.Metric.Get("pod") == "" || share.Metric.Get("namespace") == "" {
			t.Errorf("OpenCost: %v names no pod", share.Metric)
		}
	}
}

func TestTeamsAreJoined(t *testing.T) {
	t.Parallel()
	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Text, []byte(teamFamilies))

	of := func(pairs ...string) string {
		labels := map[string]string{"namespace": "ml", "container": "m", "label_team": "red"}
		for i := 0; i < len(pairs); i += 2 {
			labels[pairs[i]] = pairs[i+1]
		}

		return fmt.Sprint(labels)
	}
	if err := errors.Join(
		expect(e, teamJoin, map[string]float64{of("uuid", "GPU-0", "pod", "a"): 300}),
		expect(e, dcgmTeamJoin, map[string]float64{
			of("UUID", "GPU-0", "pod", "a"): 7000, of("UUID", "GPU-2", "GPU_I_ID", "1", "pod", "c"): 900,
		}),
	); err != nil {
		t.Error(err)
	}
}

// TestDistributionsAnswer: buckets are an eighth of a power of two, so the most memory is the upper end of the
// highest one that grew, and the part above 80 % is exact at a bucket's end.
func TestDistributionsAnswer(t *testing.T) {
	t.Parallel()

	if !strings.Contains(readFile(t, "../../docs/metrics.md"), partAbove80) {
		t.Errorf("docs/metrics.md has no %s", partAbove80)
	}

	e := NewPrometheus(t)

	for i := range 4 {
		n := int64(10 * i)
		e.AddScrape(t, scraped().Add(time.Duration(i)*10*time.Minute), Protobuf, encode(t,
			// 2^33 is 8 GiB; bucket k ends at 2^(k/8).
			histogram("nvidia_mig_gpu_instance_memory_used_distribution_bytes", 8*33, []int64{3 * n, 0, n}),
			// Buckets -7 to 0 end at 0.545, 0.595, 0.648, 0.707, 0.771, 0.841, 0.917 and 1: 0.8 is within that of 0.841.
			histogram("nvidia_mig_gpu_instance_sm_activity_distribution", -7, []int64{6 * n, 0, 0, 0, 0, 0, 0, 2 * n}),
		))
	}

	if err := errors.Join(
		expect(e, mostMemory, map[string]float64{"map[]": math.Exp2(33 + 2.0/8)}),
		expect(e, partAbove80, map[string]float64{"map[]": 0.25}),
	); err != nil {
		t.Error(err)
	}
}

// histogram has counts in the buckets from the first on, of schema 3.
func histogram(name string, first int32, counts []int64) *dto.MetricFamily {
	h := &dto.Histogram{
		Schema: new(int32(3)), ZeroThreshold: new(1e-128), ZeroCount: new(uint64(0)), SampleSum: new(1.0),
		PositiveSpan: []*dto.BucketSpan{{Offset: &first, Length: new(uint32(len(counts)))}},
	}

	total := uint64(0)

	last := int64(0)
	for _, n := range counts {
		h.PositiveDelta = append(h.PositiveDelta, n-last)
		total = total + uint64(n)
		last = n
	}

	h.SampleCount = &total

	return &dto.MetricFamily{Name: &name, Type: dto.MetricType_HISTOGRAM.Enum(), Metric: []*dto.Metric{{Histogram: h}}}
}

func encode(t *testing.T, families ...*dto.MetricFamily) []byte {
	t.Helper()
	var body bytes.Buffer

	enc := expfmt.NewEncoder(&body, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
	}

	return body.Bytes()
}

// queryValue returns the value of an expression that must have one sample.
func (e *Prometheus) queryValue(t testing.TB, expr string) float64 {
	t.Helper()

	value, err := singleValue(e.Eval(expr))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}

	return value
}

// singleValue returns the value of a result that has one sample.
func singleValue(v promql.Vector, err error) (float64, error) {
	if err != nil {
		return 0, err
	}

	if len(v) != 1 {
		return 0, fmt.Errorf("got %v, want one sample", v)
	}

	return v[0].F, nil
}
