package podresources

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fakeCluster is an API server with the answers of its fields.
type fakeCluster struct {
	pods   map[string]gpu.PodMetadata // by namespace/name
	asked  time.Time                  // of its last answer
	gone   map[string]bool            // UIDs that it has said to be gone
	admin  map[gpu.ClaimDevice]bool
	silent bool  // it does not answer
	err    error // of AdminAccess
}

func (c *fakeCluster) PodMetadata(namespace, pod string, since time.Time) (gpu.PodMetadata, bool) {
	known, ok := c.pods[namespace+"/"+pod]
	return known, ok && !c.asked.Before(since)
}

func (c *fakeCluster) PodByUID(uid string) (namespace, pod string, ok bool) {
	for name, known := range c.pods {
		if known.UID == uid {
			return "ns", name[len("ns/"):], true
		}
	}

	return "", "", false
}

func (c *fakeCluster) PodGone(_, _, uid string, _ time.Time) bool { return c.gone[uid] }

func (c *fakeCluster) BoundPods(time.Time) (pods []gpu.PodName, current bool) {
	for name := range c.pods {
		pods = append(pods, gpu.PodName{Namespace: "ns", Name: name[len("ns/"):]})
	}

	slices.SortFunc(pods, func(a, b gpu.PodName) int { return strings.Compare(a.Name, b.Name) })

	return pods, !c.silent
}

func (c *fakeCluster) AdminAccess(d gpu.ClaimDevice, _ time.Time) (bool, error) {
	return c.admin[d], c.err
}

// testLedger is a ledger and its clock. The witness is pod ns/witness, no container is seen to run,
// and a list of an earlier kubelet was settled.
type testLedger struct {
	*ledger
	now time.Time
}

func newTestLedger(t *testing.T, metadata Metadata) *testLedger {
	t.Helper()
	g := &testLedger{now: time.Unix(1000, 0), ledger: &ledger{
		metadata: metadata, logger: log.NewNopLogger(), live: newLiveContainers,
		completeness: completeness{witness: "ns/witness", settledBefore: true},
	}}
	g.resetForRestart(g.now)

	return g
}

// list gives the ledger a list, a second after the last.
func (g *testLedger) list(pods ...*kubeletapi.PodResources) gpu.Assignments {
	g.now = g.now.Add(time.Second)
	before := g.checkpoint.currentVersion()
	l := replyReader{newResourceNames(nil)}.readReply(reply(pods...))
	g.checkpoint.readIfChanged()
	g.recordList(&l, before == g.checkpoint.currentVersion(), g.now)

	return g.assignmentsAt(nil, g.now)
}

// confirm records an operator's confirmation in the present epoch.
func (g *testLedger) confirm(devices []gpu.DeviceRef, unconfirmed []gpu.Assignment) bool {
	return g.confirmFree(g.epoch, devices, unconfirmed, g.now)
}

// listUntilSettled gives the ledger lists with the witness until they are settled.
func (g *testLedger) listUntilSettled(t *testing.T, pods ...*kubeletapi.PodResources) gpu.Assignments {
	t.Helper()

	for range 2 {
		g.list(append(pods, witness())...)
	}

	got := g.list(append(pods, witness())...)
	if got.Incomplete != "" {
		t.Fatalf("three lists with the witness are incomplete: %s", got.Incomplete)
	}

	return got
}

func witness() *kubeletapi.PodResources { return pod("ns", "witness", container("c", nil)) }

// podWithDevices is a pod of namespace ns with devices of nvidia.com/gpu.
func podWithDevices(name string, ids ...string) *kubeletapi.PodResources {
	return pod("ns", name, container("c", devices("nvidia.com/gpu", ids...)))
}

func devices(resource string, ids ...string) []*kubeletapi.ContainerDevices {
	var out []*kubeletapi.ContainerDevices
	for _, id := range ids {
		out = append(out, &kubeletapi.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
	}

	return out
}

func pod(namespace, name string, containers ...*kubeletapi.ContainerResources) *kubeletapi.PodResources {
	return &kubeletapi.PodResources{Namespace: namespace, Name: name, Containers: containers}
}

func container(name string, devices []*kubeletapi.ContainerDevices) *kubeletapi.ContainerResources {
	return &kubeletapi.ContainerResources{Name: name, Devices: devices}
}

func reply(pods ...*kubeletapi.PodResources) *kubeletapi.ListPodResourcesResponse {
	return &kubeletapi.ListPodResourcesResponse{PodResources: pods}
}

func claim(namespace, name string, resources ...*kubeletapi.ClaimResource) []*kubeletapi.DynamicResource {
	return []*kubeletapi.DynamicResource{{ClaimNamespace: namespace, ClaimName: name, ClaimResources: resources}}
}

func claimResource(driver, device string) *kubeletapi.ClaimResource {
	return &kubeletapi.ClaimResource{DriverName: driver, PoolName: "node-1", DeviceName: device}
}

// formatAssignments is a list as "pod" for a fact and "pod?" for what is unconfirmed.
func formatAssignments(list []gpu.Assignment) string {
	out := ""
	for _, a := range list {
		if out != "" {
			out += " "
		}

		if out += a.Holder.Pod; a.Holder.Unconfirmed != "" {
			out += "?"
		}
	}

	return out
}
