package nvmlsource_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

const mediaScenario = `
version: 1
node: {kubernetes: false}
gpus:
  - {model: RTX-PRO-6000}
  - {model: H100-80GB, mig: true, layout: [{gi: "2g.20gb@0", ci: ["1c", "1c"]}, "1g.10gb+me@6"]}
  - {model: A100-40GB, mig: true, layout: ["2g.10gb@0"]}
workloads:
  - {name: video, memory: 1GiB, sm: 4, encoder: 2, decoder: 1, jpeg: 0.4, ofa: 0.25}
  - {name: flow, memory: 1GiB, sm: 4, decoder: 1, jpeg: 0.4, ofa: 0.25}
  - {name: frames, memory: 1GiB, sm: 4, decoder: 1, jpeg: 0.4}
  - {name: film, memory: 1GiB, sm: 4, decoder: 1}
processes:
  - {device: 0, workload: video}
  - {device: 1/2g.20gb@0/0, workload: frames}
  - {device: 1/1g.10gb+me@6, workload: flow}
  - {device: 2/2g.10gb@0, workload: film}
`

const oneInstance = `
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB, mig: true, layout: ["2g.20gb@0"]}]
workloads: [{name: video, memory: 1GiB, sm: 4, decoder: 1, jpeg: 0.4}]
processes: [{device: 0/2g.20gb@0, workload: video}]
`

// mediaNode is the node of mediaScenario, whose GPUs are asked for media engines.
func mediaNode(t *testing.T) (*node, []gpu.UUID) {
	t.Helper()
	return mediaNodeOf(t, mediaScenario)
}

// mediaNodeOf is the same for another scenario.
func mediaNodeOf(t *testing.T, scenario string) (*node, []gpu.UUID) {
	t.Helper()
	n := startNode(t, scenario)
	n.source = nvmlsource.New(n.spy, nvmlsource.Options{
		Now: n.Now, SlowEvery: time.Hour, GPM: true, Logger: log.NewNopLogger(),
	})
	n.cues.Extras.Media = true
	t.Cleanup(func() {
		if err := n.source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})

	return n, n.discover()
}

// poll reads a GPU, and again a second later, when there is a window.
func (n *node) poll(id gpu.UUID) gpu.GPU {
	n.t.Helper()
	n.read(id)
	n.advance(time.Second)

	return n.read(id)
}

// Of a GPU without MIG the driver reports the utilization of its engines; of the GPU instances of a
// Hopper or later GPM does, of the kinds that their profiles have; those of an A100 have none.
func TestMediaEngines(t *testing.T) {
	n, ids := mediaNode(t)
	whole := n.poll(ids[0])
	split := n.poll(ids[1])
	old := n.poll(ids[2])
	cmptest.Equal(t, "a whole GPU", whole.Readings.Media,
		gpu.Media{Encoder: gpu.Some(0.5), Decoder: gpu.Some(0.25), JPEG: gpu.Some(0.1), OFA: gpu.Some(0.25)}, approx())
	cmptest.Equal(t, "a GPU with MIG", split.Readings.Media, gpu.Media{})
	cmptest.Equal(t, "a 2g of two decoders and two JPEG engines", split.Instances[0].Media,
		gpu.Media{Decoder: gpu.Some(0.5), JPEG: gpu.Some(0.2)}, approx())
	cmptest.Equal(t, "a 1g+me of one of each", split.Instances[1].Media,
		gpu.Media{Decoder: gpu.Some(1.0), JPEG: gpu.Some(0.4), OFA: gpu.Some(0.25)}, approx())

	if old.Instances[0].Media != (gpu.Media{}) || len(old.Errors)+len(old.Instances[0].Errors) > 0 {
		t.Errorf("an A100's instance: %+v, errors %v", old.Instances[0].Media, old.Errors)
	}
}

// Nothing is asked for media engines while they are not served, and they are there or gone with the
// poll after that changes.
func TestMediaEnginesOnlyWhenWanted(t *testing.T) {
	n, ids := mediaNode(t)
	n.cues.Extras.Media = false
	calls := func(id gpu.UUID) (g gpu.GPU, media, metrics int) {
		n.advance(time.Second)
		n.spy.taken()
		g = n.read(id)

		made := n.spy.taken()
		for call, times := range made {
			if call != "GetUtilizationRates" && call != "GetProcessUtilization" && strings.HasSuffix(call, "Utilization") {
				media += times
			}
		}

		return g, media, made["GpmMetricsGet"]
	}
	n.poll(ids[0])
	n.poll(ids[1])
	_, off, _ := calls(ids[0])

	split, _, without := calls(ids[1])
	if off != 0 || split.Instances[0].Media != (gpu.Media{}) {
		t.Errorf("not wanted: %d calls, %+v", off, split.Instances[0].Media)
	}

	n.cues.Extras.Media = true
	_, on, _ := calls(ids[0])
	split, underMIG, with := calls(ids[1])
	cmptest.Equal(t, "calls for a whole GPU", on, 4)
	cmptest.Equal(t, "calls for a GPU with MIG", underMIG, 0)
	cmptest.Equal(t, "calls for metrics of two instances", with-without, 2)
	cmptest.Equal(t, "decoders of an instance are read", split.Instances[0].Media.Decoder.Present(), true)
	n.cues.Extras.Media = false

	if split, _, _ := calls(ids[1]); split.Instances[0].Media != (gpu.Media{}) {
		t.Errorf("no longer wanted: %+v", split.Instances[0].Media)
	}
}

// What a driver says of engines that an instance does not have counts for nothing; what is no
// number is dropped.
func TestMediaEnginesThatDoNotTell(t *testing.T) {
	n, ids := mediaNode(t)
	says := func(value float64) nvmlsource.GPMMetric {
		return nvmlsource.GPMMetric{Value: value, Return: nvml.SUCCESS}
	}

	const decoder0, decoder1, decoder2 = uint32(nvml.GPM_METRIC_NVDEC_0_UTIL), uint32(nvml.GPM_METRIC_NVDEC_1_UTIL),
		uint32(nvml.GPM_METRIC_NVDEC_2_UTIL)
	for _, c := range []struct {
		about string
		lies  map[uint32]nvmlsource.GPMMetric
		want  gpu.Opt[float64]
	}{
		{"a third decoder, idle", map[uint32]nvmlsource.GPMMetric{decoder0: says(90), decoder1: says(10), decoder2: says(0)},
			gpu.Some(0.5)},
		{"one of two", map[uint32]nvmlsource.GPMMetric{decoder0: says(90), decoder1: {Return: nvml.ERROR_NOT_SUPPORTED}},
			gpu.Some(0.9)},
		{"one less than nothing", map[uint32]nvmlsource.GPMMetric{decoder0: says(90), decoder1: says(-1)}, gpu.Some(0.9)},
		{"none", map[uint32]nvmlsource.GPMMetric{decoder0: {Return: nvml.ERROR_UNKNOWN},
			decoder1: {Return: nvml.ERROR_UNKNOWN}}, gpu.None[float64]()},
	} {
		n.spy.metrics = c.lies
		gi := n.poll(ids[1]).Instances[0]
		cmptest.Equal(t, c.about, gi.Media, gpu.Media{Decoder: c.want, JPEG: gpu.Some(0.2)}, approx())
		cmptest.Equal(t, c.about+": errors", gi.Errors, nil)
	}
}

// A driver that does not know the metrics is not asked again, and reports activity as before.
func TestMediaEnginesNotSupported(t *testing.T) {
	n, ids := mediaNode(t)

	n.spy.metrics = map[uint32]nvmlsource.GPMMetric{}
	for id := uint32(nvml.GPM_METRIC_NVDEC_0_UTIL); id <= uint32(nvml.GPM_METRIC_NVOFA_1_UTIL); id++ {
		n.spy.metrics[id] = nvmlsource.GPMMetric{Return: nvml.ERROR_NOT_SUPPORTED}
	}

	gi := n.poll(ids[1]).Instances[0]
	cmptest.Equal(t, "media engines", gi.Media, gpu.Media{})
	cmptest.Equal(t, "there is activity", gi.Activity.SM.Present(), true)
	cmptest.Equal(t, "errors", gi.Errors, nil)
	n.cues.Extras.Media = false
	n.advance(time.Second)
	n.spy.taken()
	n.read(ids[1])
	without := n.spy.taken()["GpmMetricsGet"]
	n.cues.Extras.Media = true
	n.advance(time.Second)
	n.read(ids[1])

	if with := n.spy.taken()["GpmMetricsGet"]; with != without {
		t.Errorf("%d metrics calls, want %d: the driver has said that it does not support them", with, without)
	}
}

// asksFor reports whether a call asks for a metric.
func asksFor(metrics []nvmlsource.GPMMetric, id nvml.GpmMetricId) bool {
	return slices.ContainsFunc(metrics, func(m nvmlsource.GPMMetric) bool { return m.ID == uint32(id) })
}

// A driver may refuse a call as a whole for one metric that it does not know, or for their number.
// That is no error, costs the kind of engine that the metric is of, and is asked again as seldom as
// all that is not supported. The instance has decoders and JPEG engines.
func TestMediaEnginesOfRefusedCalls(t *testing.T) {
	ofMedia := func(metrics []nvmlsource.GPMMetric) bool {
		return asksFor(metrics, nvml.GPM_METRIC_NVDEC_0_UTIL) || asksFor(metrics, nvml.GPM_METRIC_NVJPG_0_UTIL)
	}

	decoder := gpu.Some(0.5)

	jpeg := gpu.Some(0.2)
	for _, c := range []struct {
		about   string
		refused func([]nvmlsource.GPMMetric) bool
		want    gpu.Media
		calls   int // of a poll, when it is known what is refused
	}{
		{"nothing", func([]nvmlsource.GPMMetric) bool { return false }, gpu.Media{Decoder: decoder, JPEG: jpeg}, 1},
		{"decoders", func(m []nvmlsource.GPMMetric) bool { return asksFor(m, nvml.GPM_METRIC_NVDEC_7_UTIL) },
			gpu.Media{JPEG: jpeg}, 1},
		{"many", func(m []nvmlsource.GPMMetric) bool { return ofMedia(m) && len(m) > 8 },
			gpu.Media{Decoder: decoder, JPEG: jpeg}, 2},
		{"all", ofMedia, gpu.Media{}, 0},
	} {
		for _, ret := range []nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED} {
			n, ids := mediaNodeOf(t, oneInstance)
			id := ids[0]
			calls := 0
			refused := c.refused
			n.spy.refuses = func(metrics []nvmlsource.GPMMetric) nvml.Return {
				if ofMedia(metrics) {
					calls++
				}

				if refused(metrics) {
					return ret
				}

				return nvml.SUCCESS
			}
			n.poll(id)

			for range 2 {
				calls = 0
				n.advance(time.Second)
				g := n.read(id)
				gi := g.Instances[0]
				about := fmt.Sprintf("%s refused with %d: ", c.about, ret)
				cmptest.Equal(t, about+"media engines", gi.Media, c.want, approx())
				cmptest.Equal(t, about+"there is activity", gi.Activity.SM.Present(), true)
				cmptest.Equal(t, about+"errors of the instance", gi.Errors, nil)
				cmptest.Equal(t, about+"errors of the GPU", g.Errors, nil)
				cmptest.Equal(t, about+"calls", calls, c.calls)
			}

			refused = func([]nvmlsource.GPMMetric) bool { return false }
			n.advance(10 * time.Minute)
			cmptest.Equal(t, c.about+", no longer refused", n.poll(id).Instances[0].Media,
				gpu.Media{Decoder: decoder, JPEG: jpeg}, approx())
		}
	}
}

// A call that fails is an error of the media engines, of each poll anew, and none of activity.
func TestMediaEnginesOfFailedCalls(t *testing.T) {
	n, ids := mediaNode(t)

	n.spy.refuses = func(metrics []nvmlsource.GPMMetric) nvml.Return {
		if asksFor(metrics, nvml.GPM_METRIC_NVDEC_0_UTIL) {
			return nvml.ERROR_UNKNOWN
		}

		return nvml.SUCCESS
	}
	for range 2 {
		gi := n.poll(ids[1]).Instances[0]
		cmptest.Equal(t, "errors", gi.Errors, []gpu.ReadError{{Reading: gpu.ReadingMedia, Err: gpu.ErrDriver}})

		if gi.Media != (gpu.Media{}) || !gi.Activity.SM.Present() {
			t.Errorf("%+v, activity %+v", gi.Media, gi.Activity)
		}
	}

	n.spy.refuses = nil
	if gi := n.poll(ids[1]).Instances[0]; !gi.Media.Decoder.Present() || len(gi.Errors) > 0 {
		t.Errorf("and well again: %+v, errors %v", gi.Media, gi.Errors)
	}
}
