package nvmlsource_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestXIDsBeforeRegistering: while the driver does not answer the registration, no XID is received,
// which is no count of 0.
func TestXIDsBeforeRegistering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", "  - {model: A100-40GB}\n")
		answers := make(chan struct{})
		n.spy.do("RegisterEvents(XID)", func() { <-answers })
		id := n.discover()[0]
		cmptest.Equal(t, "no XIDs while registering", n.read(id).NoXIDs, true)

		n.advance(time.Minute)

		for _, remembered := range []bool{false, true} {
			g := n.read(id)

			err := errorOf(g.Errors, gpu.ReadingEvents)
			if !g.NoXIDs || !errors.Is(err, gpu.ErrTimeout) || len(g.Errors) != 1 || g.Errors[0].Remembered != remembered {
				t.Errorf("registering hangs: no XIDs %v, errors %+v; want a timeout, remembered %v", g.NoXIDs, g.Errors,
					remembered)
			}
		}

		close(answers)
		synctest.Wait()
		g := n.read(id)
		cmptest.Equal(t, "no XIDs after registering", g.NoXIDs, false)
		cmptest.Equal(t, "errors after registering", errorOf(g.Errors, gpu.ReadingEvents), nil)
		n.source.Close(t.Context())
	})
}

// TestActivityBesideDeniedDevices: an instance whose MIG devices are denied is no instance without
// a compute instance: it is profiled, and not all that is on it is known.
func TestActivityBesideDeniedDevices(t *testing.T) {
	n := profiledNode(t, gpmScenario)

	id := n.discover()[1]
	for _, denied := range []bool{true, false} {
		n.spy.set("GetMigDeviceHandleByIndex",
			map[bool]nvml.Return{true: nvml.ERROR_NO_PERMISSION, false: nvml.SUCCESS}[denied])
		n.advance(15 * time.Second)

		for _, gi := range n.poll(id).Instances {
			cmptest.Equal(t, gi.Profile+": compute instances are hidden", gi.ComputeInstancesHidden, denied)
			cmptest.Equal(t, gi.Profile+": is known to be empty", gi.IsEmpty(), false)
			cmptest.Equal(t, gi.Profile+": has compute instances", len(gi.ComputeInstances) > 0, !denied)
			cmptest.Equal(t, gi.Profile+": activity", gi.Activity.SM.Present(), true)
		}
	}
}

// TestProcessesBesideDeniedDevices: MIG devices whose handles are denied have no lists of their
// own. What runs on them is unknown then; it is not nothing.
func TestProcessesBesideDeniedDevices(t *testing.T) {
	n := startNode(t, strings.Replace(hiddenWork, "NAMESPACE", "host", 1))
	id := n.discover()[1]

	for _, denied := range []bool{true, false} {
		answer := nvml.SUCCESS
		if denied {
			answer = nvml.ERROR_NO_PERMISSION
		}

		n.spy.set("GetMigDeviceHandleByIndex", answer)
		n.spy.set("GetComputeRunningProcesses", answer)
		n.advance(time.Minute)

		g := n.read(id)
		cmptest.Equal(t, "MIG devices are hidden", g.MIG.DevicesHidden, denied)
		cmptest.Equal(t, "the GPU's processes are known", g.Readings.Processes.Present(), !denied)
		cmptest.Equal(t, "the reason is a missing right",
			errors.Is(errorOf(g.Errors, gpu.ReadingProcesses), gpu.ErrNoPermission), denied)

		for _, gi := range g.Instances {
			cmptest.Equal(t, gi.Profile+": its processes are known", gi.Processes.Present(), !denied)
		}
	}
}
