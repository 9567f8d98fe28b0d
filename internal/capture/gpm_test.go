package capture

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// profiledFake says something else in every window, of each of its entities.
type profiledFake struct {
	*fakeDriver
	windows, allocated, freed int
}

type profiledDevice struct {
	*fakeDevice
	lib *profiledFake
}

type fakeSample struct {
	lib *profiledFake
	of  string
}

func (s *fakeSample) Free() nvml.Return {
	s.lib.freed++
	return nvml.SUCCESS
}

func (d *profiledFake) DeviceGetHandleByIndex(int) (nvmlsource.Device, nvml.Return) {
	return profiledDevice{d.device, d}, nvml.SUCCESS
}

func (d *profiledFake) GpmSampleAlloc() (nvmlsource.GPMSample, nvml.Return) {
	d.allocated++
	return &fakeSample{lib: d}, nvml.SUCCESS
}

func (d *profiledFake) GpmMetricsGet(before, after nvmlsource.GPMSample, metrics []nvmlsource.GPMMetric) nvml.Return {
	from := before.(*fakeSample)

	to := after.(*fakeSample)
	if from.of == "" || from.of != to.of {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	d.windows++
	for i := range metrics {
		metrics[i].Value, metrics[i].Return = float64(d.windows)+float64(i)/3, nvml.SUCCESS
	}

	metrics[0].Return = nvml.ERROR_NOT_SUPPORTED
	metrics[1].Value = math.NaN()

	return nvml.SUCCESS
}

func (d profiledDevice) GpmQueryDeviceSupport() (bool, nvml.Return) { return true, nvml.SUCCESS }

func (d profiledDevice) GpmSampleGet(s nvmlsource.GPMSample) nvml.Return {
	s.(*fakeSample).of = "GPU"
	return nvml.SUCCESS
}

func (d profiledDevice) GpmMigSampleGet(id int, s nvmlsource.GPMSample) nvml.Return {
	if id > 2 {
		return nvml.ERROR_NO_PERMISSION
	}

	s.(*fakeSample).of = fmt.Sprint("GI ", id)

	return nvml.SUCCESS
}

func (d profiledDevice) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return []nvml.ProcessUtilizationSample{{Pid: realPID, TimeStamp: uint64(d.lib.windows), SmUtil: 40}}, nvml.SUCCESS
}

// profile asks of the fake what a reading asks, as text.
func profile(t *testing.T, lib nvmlsource.Library) string {
	t.Helper()
	var out strings.Builder
	d := firstGPU(t, lib)
	supported, ret := d.GpmQueryDeviceSupport()
	fmt.Fprintln(&out, supported, ret)

	used, ret := d.GetProcessUtilization(7)
	for i := range used {
		used[i].Pid = 0 // a pseudonym in one of them
	}

	fmt.Fprintln(&out, used, ret)

	for id := range 4 {
		var samples [2]nvmlsource.GPMSample
		for i := range samples {
			sample, ret := lib.GpmSampleAlloc()
			if samples[i] = sample; ret != nvml.SUCCESS {
				t.Fatal(ret)
			}

			if id == 0 {
				ret = d.GpmSampleGet(sample)
			} else {
				ret = d.GpmMigSampleGet(id, sample)
			}

			fmt.Fprintln(&out, id, ret)
		}

		metrics := []nvmlsource.GPMMetric{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 9999}}
		fmt.Fprintln(&out, lib.GpmMetricsGet(samples[0], samples[1], metrics))

		for _, m := range metrics {
			if m.Return != nvml.SUCCESS {
				m.Value = 0 // means nothing then
			}

			fmt.Fprintln(&out, m)
		}

		for _, s := range samples {
			fmt.Fprintln(&out, s.Free())
		}
	}

	return out.String()
}

// TestReplaysActivity: the metrics of each window, of each entity, come back in order, with the
// codes; every sample of the driver's is freed; process ids are pseudonyms.
func TestReplaysActivity(t *testing.T) {
	fake := &profiledFake{fakeDriver: newFake()}
	rec := NewRecorder(fake, start())
	var want []string

	for i := range 3 {
		if i > 0 {
			next(t, rec, start().Add(time.Duration(i)*time.Second))
		}

		firstGPU(t, rec.Library()).GetComputeRunningProcesses()
		want = append(want, profile(t, rec.Library()))
	}

	if fake.allocated == 0 || fake.allocated != fake.freed {
		t.Errorf("%d samples made, %d freed", fake.allocated, fake.freed)
	}

	if want[0] == want[1] || !strings.Contains(want[0], "NaN") {
		t.Fatalf("the fake says nothing:\n%s", want[0])
	}

	recording := rewritten(t, rec.Recording(realHost, "test", false).Pseudonymize())
	replay := NewReplay(recording, true)

	for i, text := range want {
		if i > 0 {
			if err := replay.Advance(time.Hour); err != nil {
				t.Fatal(err)
			}
		}

		if got := profile(t, replay.Library()); got != text {
			t.Errorf("poll %d replays\n%s\nwas\n%s", i, got, text)
		}
	}

	data, err := recording.Bytes()
	if err != nil || strings.Contains(string(data), fmt.Sprint(realPID)) {
		t.Errorf("the process id is in the file (%v)", err)
	}

	for _, line := range []string{`nvmlGpmMetricsGet(2, SM_OCCUPANCY)`, `nvmlGpmMetricsGet(WHOLE, 9999)`,
		`nvmlGpmMigSampleGet(3): {error: NO_PERMISSION}`} {
		if !slices.ContainsFunc(strings.Split(string(data), "\n"), func(l string) bool { return strings.Contains(l, line) }) {
			t.Errorf("%s is not in the file:\n%s", line, data)
		}
	}
}
