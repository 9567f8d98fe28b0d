package collector

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func metricsOf(families []*dto.MetricFamily, name string) []*dto.Metric {
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}

	return nil
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}

	return ""
}

// metricValue returns the value of a family's first series, NaN if it has none.
func metricValue(families []*dto.MetricFamily, name string) float64 {
	for _, m := range metricsOf(families, name) {
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}

	return math.NaN()
}

func TestLint(t *testing.T) {
	c := mustNew(t, allOptions())
	s := richNode(3, 7)
	c.Observe(s)

	problems, err := testutil.GatherAndLint(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return c.Gather(s)
	}))
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// What is documented is what is served: every declared family has a series here, with its type and
// within its labels.
func TestFamiliesAreWhatIsServed(t *testing.T) {
	c := mustNew(t, allOptions())
	s := richNode(3, 2)
	split := richInstance(2, 6)
	split.ComputeInstances = append(split.ComputeInstances, split.ComputeInstances[0])
	split.ComputeInstances[1].ID++
	s.GPUs[2].Instances = append(s.GPUs[2].Instances, split)
	s.GPUs[1].Released = gpu.Some(gpu.Release{Since: s.Time, Cause: gpu.ReleasedByOperator})
	c.Observe(s)

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	declared := map[string]FamilyInfo{}
	for _, f := range Families() {
		if _, twice := declared[f.Name]; twice {
			t.Errorf("%s is declared twice", f.Name)
		}

		declared[f.Name] = f
		if len(metricsOf(families, f.Name)) == 0 {
			t.Errorf("%s is declared and not served", f.Name)
		}
	}

	for _, f := range families {
		info, ok := declared[f.GetName()]
		if !ok {
			t.Errorf("%s is served and not declared", f.GetName())
			continue
		}

		if got := strings.ToLower(f.GetType().String()); got != info.Type {
			t.Errorf("%s is a %s, declared as %s", f.GetName(), got, info.Type)
		}

		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(info.Labels, l.GetName()) {
					t.Errorf("%s has the label %s, which is not declared", f.GetName(), l.GetName())
				}
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, test := range []struct {
		opts Options
		want string
	}{
		{Options{PodLabels: "all"}, `pod labels "all": expected container, series, info or off`},
		{Options{PodLabelNames: []string{"a.b", "a/b"}}, `pod label "a/b": "a.b" is shown as label_a_b already`},
		{Options{PodLabelNames: []string{""}}, `pod label "": expected the name of a Kubernetes label`},
		{Options{Disabled: map[string]bool{"gpu": true}}, `collector "gpu": unknown, expected one of [info up memory`},
	} {
		if _, err := New(test.opts); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("error %v, want %s", err, test.want)
		}
	}
}

func TestDisabled(t *testing.T) {
	families, err := mustNew(t, Options{Disabled: map[string]bool{"power": true, "pods": true}}).Gather(richNode(2, 2))
	if err != nil {
		t.Fatal(err)
	}

	off := map[string]bool{}
	for _, f := range Families() {
		off[f.Name] = f.Group == "power" || f.Group == "pods"
	}

	switchedOff := 2

	for _, g := range Groups() {
		if g.OptIn {
			switchedOff++
		}
	}

	for _, f := range families {
		if off[f.GetName()] {
			t.Errorf("%s is served though its collector is off", f.GetName())
		}
	}

	if got, want := len(metricsOf(families, "mig_exporter_collector_success")),
		len(listGroupNames())-switchedOff; got != want {
		t.Errorf("%d collectors report, want %d", got, want)
	}
}

func successByGroup(families []*dto.MetricFamily) map[string]bool {
	of := map[string]bool{}
	for _, m := range metricsOf(families, "mig_exporter_collector_success") {
		of[labelOf(m, "collector")] = m.GetGauge().GetValue() == 1
	}

	return of
}

func TestPanicCostsOneCollector(t *testing.T) {
	c := mustNew(t, Options{DriverUse: func() []gpu.CallUse { panic("no such counter") }})

	families, err := c.Gather(richNode(2, 2))
	if err == nil || !strings.Contains(err.Error(), "collector exporter: panic: no such counter") {
		t.Errorf("error %v does not name the panic", err)
	}

	for name, ok := range successByGroup(families) {
		if ok != (name != "exporter") {
			t.Errorf("success of %s is %v", name, ok)
		}
	}

	if got := metricValue(families, "nvidia_gpu_up"); got != 1 {
		t.Errorf("nvidia_gpu_up is %v, want 1: the others go on", got)
	}
}

func TestBadValuesAreLeftOut(t *testing.T) {
	s := richNode(3, 1)
	s.GPUs[1].Readings.PowerWatts = gpu.Some(math.NaN())
	s.GPUs[2].Readings.EnergyJoules = gpu.Some(-1.0)

	families, err := mustNew(t, Options{}).Gather(s)
	if err == nil {
		t.Error("no error")
	}

	if got := successByGroup(families); got["power"] || !got["memory"] {
		t.Errorf("success %v, want power alone to fail", got)
	}

	for name, want := range map[string]int{"nvidia_gpu_power_watts": 2, "nvidia_gpu_energy_joules_total": 2,
		"nvidia_gpu_power_limit_watts": 3} {
		if got := len(metricsOf(families, name)); got != want {
			t.Errorf("%s has %d series, want %d", name, got, want)
		}
	}
}

// Two devices that say the same of themselves make equal series: one of each is served.
func TestDuplicatesAreLeftOut(t *testing.T) {
	s := newNode(plainGPU(0), plainGPU(0))
	s.GPUs[0].Readings.PowerWatts = gpu.Some(1.0)

	families, err := mustNew(t, Options{}).Gather(s)
	if err == nil {
		t.Error("no error")
	}

	if got := len(metricsOf(families, "nvidia_gpu_up")); got != 1 {
		t.Errorf("nvidia_gpu_up has %d series, want 1", got)
	}

	got := successByGroup(families)
	for group, want := range map[string]bool{"up": false, "info": false, "power": true, "exporter": true} {
		cmptest.Equal(t, "success of "+group, got[group], want)
	}
}

func TestLabelValues(t *testing.T) {
	g := plainGPU(0)
	g.Name = "quote \" backslash \\ newline \n bytes \xff\xfe end"
	c := mustNew(t, fixedOptions("info"))
	expectText(t, renderText(t, c, newNode(g)), `# TYPE nvidia_gpu_info gauge
		nvidia_gpu_info{gpu="0",name="quote \" backslash \\ newline \n bytes `+"\uFFFD"+` end",uuid="GPU-0"} 1`)
}

func TestCreatedTimestamps(t *testing.T) {
	families, err := mustNew(t, Options{}).Gather(richNode(2, 1))
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range Families() {
		if f.Type != "counter" {
			continue
		}

		for _, m := range metricsOf(families, f.Name) {
			created := m.GetCounter().GetCreatedTimestamp()

			switch f.Name {
			case "nvidia_gpu_energy_joules_total", "nvidia_gpu_pcie_replays_total", "nvidia_gpu_nvlink_errors_total",
				"nvidia_gpu_ecc_errors_total":
				if created != nil { // the driver's own: their start is unknown
					t.Errorf("%s: created %v, want none", f.Name, created.AsTime())
				}
			default:
				if want := newCounter(0).Since; !created.AsTime().Equal(want) {
					t.Errorf("%s: created %v, want %v", f.Name, created.AsTime(), want)
				}
			}
		}
	}
}

func TestManyDevices(t *testing.T) {
	const gpus, instances = 2501, 4 // with the compute instances more than 20,000 devices
	c := mustNew(t, Options{Disabled: onlyGroups("up", "info")})

	families, err := c.Gather(richNode(gpus, instances))
	if err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]int{
		"nvidia_gpu_up": gpus, "nvidia_mig_gpu_instance_up": (gpus - 1) * instances,
		"nvidia_mig_compute_instance_info": (gpus - 1) * instances,
	} {
		if got := len(metricsOf(families, name)); got != want {
			t.Errorf("%s has %d series, want %d", name, got, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	c := mustNew(t, Options{DriverUse: someCalls})
	snapshots := []*gpu.Snapshot{richNode(3, 2), richNode(2, 3)}
	var wg sync.WaitGroup
	errs := make(chan error, 8)

	for i := range 8 {
		wg.Go(func() {
			s := snapshots[i%2]
			for range 5 {
				c.Observe(s)

				families, err := c.Gather(s)
				if got := len(metricsOf(families, "nvidia_gpu_up")); err != nil || got != len(s.GPUs) {
					errs <- fmt.Errorf("%d GPUs, want %d; error %w", got, len(s.GPUs), err)
					return
				}
			}
		})
	}

	wg.Wait()
	close(errs)

	for err := range errs {
		t.Error(err)
	}
}
