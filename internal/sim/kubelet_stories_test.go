package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func TestKubeletOutagesStory(t *testing.T) {
	n := shipped(t, "kubelet-outages")
	to := func(passed time.Duration) {
		t.Helper()
		advance(t, n, passed-n.Now().Sub(StepStart()))
	}
	lists := func(want ...string) {
		t.Helper()
		var got []string

		for _, c := range n.Containers() {
			if c.Namespace != OwnNamespace {
				got = append(got, c.Pod)
			}
		}

		slices.Sort(got)

		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("after %s: %v, want %v", n.Now().Sub(StepStart()), got, want)
		}
	}
	const static = "local-infer-a100-outages"
	to(30 * time.Second)
	lists(static, "serve-0", "train-0", "prepared", "short")

	if h := n.Holdings(); !slices.ContainsFunc(h,
		func(h Holding) bool { return h.Init && h.Pod == "prepared" && h.Present }) {
		t.Errorf("no init container holds anything: %+v", h)
	}

	if got := len(n.Checkpoint().Entries); got != 6 {
		t.Errorf("%d entries in the checkpoint, want one for each container with devices", got)
	}

	to(time.Minute)
	lists()
	to(61 * time.Second)
	lists(static)
	to(62 * time.Second)
	lists(static, "serve-0", "train-0", "prepared", "short")
	to(3*time.Minute + 12*time.Second)
	lists()
	to(3*time.Minute + 16*time.Second)
	lists(static)
	to(5*time.Minute + 9*time.Second)
	lists(static)
	to(5*time.Minute + 10*time.Second)
	lists(static, "serve-0", "train-0", "prepared", "late")
}

func TestDevicePluginStory(t *testing.T) {
	n := shipped(t, "kubelet-outages")
	to := func(passed time.Duration) {
		t.Helper()
		advance(t, n, passed-n.Now().Sub(StepStart()))
	}
	to(6*time.Minute + 20*time.Second)

	if c := mustContainer(t, n, "misled"); len(c.PIDs) != 0 || len(c.Devices) != 1 {
		t.Errorf("misled is %+v", c)
	}

	to(7 * time.Minute)

	if text := fmt.Sprint(n.Allocatable()); strings.Contains(text, "2g.10gb") {
		t.Errorf("the device plugin offers %s", text)
	}

	to(7*time.Minute + 45*time.Second)

	if !n.Checkpoint().Invalid {
		t.Error("the checkpoint is not damaged")
	}

	to(8*time.Minute + 45*time.Second)

	if _, ok := n.PodByName("batch", "new", n.Now()); ok {
		t.Error("the API server reports a pod at once")
	}

	to(8*time.Minute + 50*time.Second)

	if _, ok := n.PodByName("batch", "new", n.Now()); !ok {
		t.Error("the API server does not report a pod after its delay")
	}
}

func TestMonitorsStory(t *testing.T) {
	n := shipped(t, "dra-monitors")

	claims := func(pod string) (devices, admin int) {
		for _, c := range n.Containers() {
			for _, claim := range c.Claims {
				if c.Pod != pod {
					continue
				}

				if devices++; claim.Admin {
					admin++
				}
			}
		}

		return devices, admin
	}
	if devices, admin := claims("monitor-x7k2p"); devices != 4 || admin != 4 {
		t.Errorf("the monitor has %d devices, %d with adminAccess; want 4", devices, admin)
	}

	advance(t, n, 2*time.Minute)
	devices, admin := claims("second")
	cmptest.Equal(t, "devices of second, and with adminAccess", [2]int{devices, admin}, [2]int{1, 0})
	cmptest.Equal(t, "processes of second", len(mustContainer(t, n, "second").PIDs), 1)

	if got := len(n.Holdings()); got != 3 {
		t.Errorf("%d devices are held, want 3", got)
	}

	advance(t, n, 7*time.Minute)
	devices, admin = claims("monitor-q9d4z")
	cmptest.Equal(t, "devices of the next monitor, and with adminAccess", [2]int{devices, admin}, [2]int{4, 4})
	cmptest.Equal(t, "held devices", len(n.Holdings()), 2)
}
