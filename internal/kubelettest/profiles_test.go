package kubelettest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestProfiles: the exporter of each of the other profiles becomes ready in the pod that the chart
// renders, and shows the holders of a GPU and of a slice: with their owners if it may list pods.
func TestProfiles(t *testing.T) {
	c := startShared(t)
	owned := func(pod *corev1.Pod) *corev1.Pod { return ownedBy(pod, "StatefulSet", "db") }
	gpu := c.run(t, owned(newPod("ml", "whole", newContainer("main", "nvidia.com/gpu", 1))))
	slice := c.run(t, owned(newPod("ml", "slice", newContainer("main", "nvidia.com/mig-1g.5gb", 1))))
	want := append(c.given(t, gpu, "main", "exclusive"), c.given(t, slice, "main", "exclusive")...)
	slices.Sort(want)

	for _, m := range c.installed[1:] {
		pod := c.run(t, m.pod("p4m8z"))

		owner := ""
		if len(m.rules()) > 0 {
			owner = "StatefulSet/db"
		}

		if err := await(time.Minute, func() error { return checkProfile(pod, want, owner) }); err != nil {
			t.Errorf("%s: %v", m.namespace, err)
		}
	}
}

// checkProfile compares the holders that an exporter shows, and their owner, with what is true.
func checkProfile(exporter *corev1.Pod, want []string, owner string) error {
	body, err := getURL("http://" + exporter.Status.PodIP + ":9401/metrics")
	if err != nil {
		return err
	}

	families, err := parseMetrics(body)
	if err != nil {
		return err
	}

	var have []string
	for _, h := range holdersOf(families) {
		have = append(have, h.String())
		if h.workload != owner {
			return fmt.Errorf("%v has the owner %q, want %q", h, h.workload, owner)
		}
	}

	if slices.Sort(have); !slices.Equal(have, want) {
		return fmt.Errorf("holders %q, want %q", have, want)
	}

	return nil
}
