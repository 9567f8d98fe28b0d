package collector

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// heldGPUs are a GPU that one pod has, a GPU that two share, and a GPU whose only GPU instance has
// two compute instances of a pod each.
func heldGPUs() *gpu.Snapshot {
	whole := plainGPU(0)
	shared := plainGPU(1)
	split := migGPU()
	whole.Holders = []gpu.Holder{exclusiveHolder("whole")}
	shared.Holders = []gpu.Holder{replicaHolder("one", "0"), replicaHolder("two", "1")}
	split.Instances[0].ComputeInstances[0].Holders = []gpu.Holder{exclusiveHolder("left")}
	split.Instances[0].ComputeInstances[1].Holders = []gpu.Holder{exclusiveHolder("right")}
	split.Allocated, split.Instances[0].Allocated = gpu.Some(true), gpu.Some(true)
	split.Instances[0].ComputeInstances[0].Allocated, split.Instances[0].ComputeInstances[1].Allocated = gpu.Some(true),
		gpu.Some(true)

	return newNode(whole, shared, split)
}

const heldInfo = `# TYPE nvidia_gpu_pod_info gauge
	nvidia_gpu_pod_info{confirmed="true",container="main",gpu="0",namespace="ml",pod="whole",resource="nvidia.com/gpu",sharing="exclusive",uuid="GPU-0",workload="Deployment/train"} 1
	nvidia_gpu_pod_info{confirmed="true",container="main",gpu="1",namespace="ml",pod="one",replica="0",resource="nvidia.com/gpu",sharing="time-slicing",uuid="GPU-1"} 1
	nvidia_gpu_pod_info{confirmed="true",container="main",gpu="1",namespace="ml",pod="two",replica="1",resource="nvidia.com/gpu",sharing="time-slicing",uuid="GPU-1"} 1
	`

const leftInfo = `confirmed="true",container="main",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",namespace="ml",pod="left",resource="nvidia.com/gpu",sharing="exclusive",uuid="GPU-2",workload="Deployment/train"`
const rightInfo = `confirmed="true",container="main",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-b",namespace="ml",pod="right",resource="nvidia.com/gpu",sharing="exclusive",uuid="GPU-2",workload="Deployment/train"`

const heldComputes = `# TYPE nvidia_mig_compute_instance_pod_info gauge
	nvidia_mig_compute_instance_pod_info{compute_instance="0",` + leftInfo + `} 1
	nvidia_mig_compute_instance_pod_info{compute_instance="1",` + rightInfo + `} 1
	# TYPE nvidia_mig_gpu_instance_allocated gauge
	nvidia_mig_gpu_instance_allocated{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 1`

const bareAllocated = `# TYPE nvidia_mig_compute_instance_allocated gauge
	nvidia_mig_compute_instance_allocated{compute_instance="0",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",uuid="GPU-2"} 1
	nvidia_mig_compute_instance_allocated{compute_instance="1",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-b",uuid="GPU-2"} 1
	`

const gpuAllocated = `# TYPE nvidia_gpu_allocated gauge
	nvidia_gpu_allocated{gpu="2",uuid="GPU-2"} 1
	`

func TestPodsOfTwoComputeInstancesAndOfSharedDevices(t *testing.T) {
	for _, test := range []struct {
		mode PodLabelMode
		want string
	}{
		{PodLabelsContainer, gpuAllocated + heldInfo + bareAllocated + heldComputes},
		{PodLabelsSeries, gpuAllocated + heldInfo + bareAllocated + heldComputes},
		{PodLabelsInfo, gpuAllocated + heldInfo + bareAllocated + heldComputes},
		{PodLabelsOff, gpuAllocated + bareAllocated +
			strings.TrimSpace(heldComputes[strings.Index(heldComputes, "# TYPE nvidia_mig_gpu"):])},
	} {
		t.Run(string(test.mode), func(t *testing.T) {
			opts := fixedOptions("pods")
			opts.PodLabels = test.mode
			expectText(t, renderText(t, mustNew(t, opts), heldGPUs()), test.want)
		})
	}
}

// TestHolderOnSeries: a holder is on no series that says what its device is. Mode series adds it to
// what says how the device that was given away is used, and to nothing else.
func TestHolderOnSeries(t *testing.T) {
	s := heldGPUs()
	whole := &s.GPUs[0]
	gi := &s.GPUs[2].Instances[0]
	whole.Readings.PowerWatts, whole.Readings.PowerLimitWatts = gpu.Some(100.0), gpu.Some(300.0)
	gi.PowerWatts, gi.ComputeInstances[0].PowerWatts = gpu.Some(20.0), gpu.Some(9.0)
	same := exclusiveHolder("both")
	same.Name = "" // two containers of one pod
	gi.Holders = []gpu.Holder{same}

	for mode, labels := range map[PodLabelMode][2]string{
		PodLabelsContainer: {`gpu="0",uuid="GPU-0"`, `gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"`},
		PodLabelsSeries: {`container="main",gpu="0",namespace="ml",pod="whole",uuid="GPU-0"`,
			`gpu="2",gpu_instance="1",mig_profile="3g.20gb",namespace="ml",pod="both",uuid="GPU-2"`},
	} {
		opts := fixedOptions("power")
		opts.PodLabels = mode
		expectText(t, renderText(t, mustNew(t, opts), s), `# TYPE nvidia_gpu_power_limit_watts gauge
			nvidia_gpu_power_limit_watts{gpu="0",uuid="GPU-0"} 300
			# TYPE nvidia_gpu_power_watts gauge
			nvidia_gpu_power_watts{`+labels[0]+`} 100
			# TYPE nvidia_mig_gpu_instance_power_estimate_watts gauge
			nvidia_mig_gpu_instance_power_estimate_watts{`+labels[1]+`} 20`)
		opts = fixedOptions("up")

		opts.PodLabels = mode
		if got := renderText(t, mustNew(t, opts), s); strings.Contains(got, "pod=") {
			t.Errorf("%s: a pod is on what says whether devices answer:\n%s", mode, got)
		}
	}
}

// TestChosenPodLabels are on the info series alone: they can come late, and the series of a device
// must not change with them.
func TestChosenPodLabels(t *testing.T) {
	s := newNode(plainGPU(0))
	s.GPUs[0].Holders = []gpu.Holder{exclusiveHolder("whole")}
	s.GPUs[0].Allocated = gpu.Some(true)
	opts := fixedOptions("pods")
	opts.PodLabelNames = []string{"app.kubernetes.io/name", "team"}
	expectText(t, renderText(t, mustNew(t, opts), s), `# TYPE nvidia_gpu_allocated gauge
		nvidia_gpu_allocated{gpu="0",uuid="GPU-0"} 1
		# TYPE nvidia_gpu_pod_info gauge
		nvidia_gpu_pod_info{confirmed="true",container="main",gpu="0",label_app_kubernetes_io_name="train",namespace="ml",pod="whole",resource="nvidia.com/gpu",sharing="exclusive",uuid="GPU-0",workload="Deployment/train"} 1`)
}

// TestUnconfirmedHolders shows the holders of each series of a device, as pod:confirmed, and the
// pod on its own series.
func TestUnconfirmedHolders(t *testing.T) {
	with := func(h gpu.Holder, change func(*gpu.Holder)) gpu.Holder {
		change(&h)
		return h
	}
	unconfirmed := func(h gpu.Holder) gpu.Holder { return with(h, func(h *gpu.Holder) { h.Unconfirmed = "not listed" }) }
	undescribed := func(h gpu.Holder) gpu.Holder { return with(h, func(h *gpu.Holder) { h.Undescribed = true }) }

	unknown := func(h gpu.Holder) gpu.Holder { return with(h, func(h *gpu.Holder) { h.Sharing = gpu.SharingUnknown }) }
	for _, test := range []struct {
		name    string
		holders []gpu.Holder
		info    string
		series  string
	}{
		{"the only one", []gpu.Holder{unconfirmed(exclusiveHolder("a"))}, "a:false", "a"},
		{"a successor", []gpu.Holder{unconfirmed(exclusiveHolder("a")), exclusiveHolder("b")}, "a:false b:true", "b"},
		{"several before it", []gpu.Holder{unconfirmed(exclusiveHolder("a")), unconfirmed(exclusiveHolder("b")),
			exclusiveHolder("c")}, "a:false b:false c:true", "c"},
		{"two", []gpu.Holder{unconfirmed(exclusiveHolder("a")), unconfirmed(exclusiveHolder("b"))}, "a:false b:false", ""},
		{"of a replica", []gpu.Holder{unconfirmed(replicaHolder("a", "0"))}, "a:false", ""},
		{"beside a replica", []gpu.Holder{unconfirmed(exclusiveHolder("a")), replicaHolder("b", "0")}, "a:false b:true", ""},
		{"not described yet", []gpu.Holder{undescribed(exclusiveHolder("a"))}, "", ""},
		{"a successor that is not described yet",
			[]gpu.Holder{unconfirmed(exclusiveHolder("a")), undescribed(exclusiveHolder("b"))}, "a:false", ""},
		{"unknown", []gpu.Holder{unknown(exclusiveHolder("a")), unknown(exclusiveHolder("b"))}, "a:true b:true", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newNode(plainGPU(0))
			s.GPUs[0].Holders, s.GPUs[0].Readings.PowerWatts = test.holders, gpu.Some(1.0)
			opts := fixedOptions("pods", "power")
			opts.PodLabels = PodLabelsSeries

			families, err := mustNew(t, opts).Gather(s)
			if err != nil {
				t.Fatal(err)
			}

			var info []string
			for _, m := range metricsOf(families, "nvidia_gpu_pod_info") {
				info = append(info, labelOf(m, "pod")+":"+labelOf(m, "confirmed"))
			}

			slices.Sort(info)

			if got := strings.Join(info, " "); got != test.info {
				t.Errorf("info series %q, want %q", got, test.info)
			}

			if got := labelOf(metricsOf(families, "nvidia_gpu_power_watts")[0], "pod"); got != test.series {
				t.Errorf("the series name the pod %q, want %q", got, test.series)
			}
		})
	}
}

// The joins need one confirmed exclusive holder of a device at most: of several none is served. The
// others stay.
func TestSeveralExclusiveHolders(t *testing.T) {
	s := newNode(plainGPU(0), plainGPU(1))
	s.GPUs[0].Holders = []gpu.Holder{exclusiveHolder("old"), exclusiveHolder("new"), replicaHolder("shared", "3")}
	s.GPUs[1].Holders = []gpu.Holder{exclusiveHolder("other")}

	families, err := mustNew(t, fixedOptions("pods")).Gather(s)
	if err == nil || !strings.Contains(err.Error(), "2 confirmed exclusive holders") {
		t.Errorf("error %v does not name the two holders", err)
	}

	if got := metricValue(families, "mig_exporter_collector_success"); got != 0 {
		t.Errorf("success is %v, want 0", got)
	}

	var pods []string
	for _, m := range metricsOf(families, "nvidia_gpu_pod_info") {
		pods = append(pods, labelOf(m, "pod"))
	}

	if got := strings.Join(pods, " "); got != "other shared" && got != "shared other" {
		t.Errorf("pods %q, want other and shared", got)
	}
}

// TestCountersGoOnWithoutABeginningForTheNextHolder: with mode series a counter of a device's use
// goes on when its pod changes, but has no beginning under the new pod's labels, which would lay
// all that came before to it.
func TestCountersGoOnWithoutABeginningForTheNextHolder(t *testing.T) {
	for _, tt := range []struct {
		name  string
		since time.Time
		want  bool
	}{
		{"holds it since the counter began", newCounter(7).Since, true},
		{"came later", newCounter(7).Since.Add(time.Second), false},
	} {
		g := migGPU()
		holder := exclusiveHolder("p")
		holder.Since = tt.since
		g.Instances[0].Holders, g.Instances[0].EnergyJoules = []gpu.Holder{holder}, gpu.Some(newCounter(7))
		opts := fixedOptions("power")
		opts.PodLabels = PodLabelsSeries

		families, err := mustNew(t, opts).Gather(newNode(g))
		if err != nil {
			t.Fatal(err)
		}

		m := metricsOf(families, "nvidia_mig_gpu_instance_energy_estimate_joules_total")[0].GetCounter()
		if m.GetValue() != 7 || (m.CreatedTimestamp != nil) != tt.want {
			t.Errorf("%s: %v", tt.name, m)
		}
	}
}

// TestGPUWithoutAHandle has its index, that it is down and its errors; anything more would be of no
// GPU at all.
func TestGPUWithoutAHandle(t *testing.T) {
	s := &gpu.Snapshot{Time: testEpoch(), GPUs: []gpu.GPU{{Facts: gpu.Facts{Index: 3}, Totals: gpu.Totals{
		ReadErrors: []gpu.ErrorCount{{Reading: gpu.ReadingDevice, Reason: gpu.ReasonLost, Counter: gpu.Counter{Value: 2}}},
	}}}}
	c := mustNew(t, Options{Now: testEpoch})

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range families {
		name := f.GetName()
		switch {
		case !strings.HasPrefix(name, "nvidia_gpu_"):
		case name == "nvidia_gpu_up" && f.Metric[0].GetGauge().GetValue() == 0:
		case name == "nvidia_gpu_read_errors_total" && f.Metric[0].GetCounter().GetValue() == 2:
		default:
			t.Errorf("%s is served: %v", name, f.Metric)
		}
	}
}
