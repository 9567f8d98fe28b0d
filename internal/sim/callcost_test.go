package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const costedNode = `version: 1
gpus: [{model: H100-80GB}]
driverCosts: {exclusive: 4500us, mapped: 1ms, nvmlDeviceGetName: 2ms}
`

func TestCallsTakeWhatTheyCost(t *testing.T) {
	for function, want := range map[string]time.Duration{
		"nvmlDeviceGetComputeRunningProcesses":    4500 * time.Microsecond,
		"nvmlDeviceGetComputeRunningProcesses_v3": 4500 * time.Microsecond,
		"nvmlGpmSampleGet":                        time.Millisecond,
		"nvmlDeviceGetName":                       2 * time.Millisecond,
		"nvmlDeviceGetUUID":                       0,
		"nvmlDeviceGetBrand":                      0, // in no class
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startCosted(t)
			began := n.BeginCall(function)
			cmptest.Equal(t, function, time.Since(began), want)
		})
	}
}

// Calls that cost less than a timer can wait for take as long as they cost together.
func TestShortCallsTakeWhatTheyCostTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Parse("costed.yaml", []byte("version: 1\ngpus: [{model: H100-80GB}]\ndriverCosts: {unknown: 100us}\n"))
		if err != nil {
			t.Fatal(err)
		}

		n := startScenario(t, s)

		began := time.Now()

		for range 1000 {
			n.BeginCall("nvmlDeviceGetUUID")
		}

		cmptest.Equal(t, "a thousand calls of 100us", time.Since(began), 100*time.Millisecond)
	})
}

// An exclusive call keeps every other call waiting, except those that work in mapped memory.
func TestExclusiveCallsKeepOthersWaiting(t *testing.T) {
	for function, want := range map[string]time.Duration{
		"nvmlDeviceGetGraphicsRunningProcesses": 9 * time.Millisecond,
		"nvmlDeviceGetUUID":                     4500 * time.Microsecond,
		"nvmlGpmSampleGet":                      time.Millisecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startCosted(t)
			go n.BeginCall("nvmlDeviceGetComputeRunningProcesses")
			synctest.Wait()

			began := n.BeginCall(function)
			cmptest.Equal(t, function+" beside an exclusive call", time.Since(began), want)
			time.Sleep(time.Second) // the other one returns
		})
	}
}

func TestCallsAreCountedWithoutTheirVersion(t *testing.T) {
	s, err := Parse("plain.yaml", []byte("version: 1\ngpus: [{model: H100-80GB}]\n"))
	if err != nil {
		t.Fatal(err)
	}

	n := startScenario(t, s)

	for _, function := range []string{
		"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetGpuInstanceProfileInfoV",
		"nvmlSystemGetCPER_v1",
	} {
		n.BeginCall(function)
	}

	cmptest.Equal(t, "calls", n.CallCounts(), map[string]uint64{
		"nvmlDeviceGetCount": 2, "nvmlDeviceGetTemperature": 1, "nvmlDeviceGetGpuInstanceProfileInfo": 1,
		"nvmlSystemGetCPER_v1": 1,
	})
}

// Every class names calls that exist; nothing is called shared, since nothing shows that any call
// is.
func TestNoCallIsCalledShared(t *testing.T) {
	for function, class := range gpu.ClassifiedCalls() {
		if class == gpu.CallShared {
			t.Errorf("%s is called shared; where is the evidence?", function)
		}
	}
}

func startCosted(t *testing.T) *Node {
	t.Helper()

	s, err := Parse("costed.yaml", []byte(costedNode))
	if err != nil {
		t.Fatal(err)
	}

	return startScenario(t, s)
}
