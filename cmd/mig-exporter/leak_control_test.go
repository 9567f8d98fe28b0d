package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// The numbers of layout changes after which nothing may grow, and at which it is looked whether it
// has: the first is more than the operations that are kept.
const (
	settledChanges = 320
	longChanges    = 640
)

// heapOfAChange is what one layout change may leave behind, in bytes. What is held after equal
// numbers of changes varies by 130 KiB; it does not grow over 2,560.
const heapOfAChange = 1 << 10

// changeScenario is a node whose second GPU nothing uses.
const changeScenario = `
version: 1
node: {hostname: growth, driver: "580.95.05", privileged: true}
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
  - {model: A100-40GB, mig: true, layout: ["7g.40gb@0"]}
`

// changeLayout makes one layout change and waits for its end.
func changeLayout(t *testing.T, x *exporter, devices map[string]api.DeviceRequest) {
	t.Helper()
	root := control.Actor{Name: "uid:0", Rights: control.Rights{Read: true, Plan: true, Apply: true}}

	plan, err := x.control.engine.Plan(t.Context(), root,
		api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"1"}, Devices: devices}})
	if err != nil {
		t.Fatal(err)
	}

	op, err := x.control.engine.Start(t.Context(), root, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
	if err != nil {
		t.Fatal(err)
	}

	events, err := x.control.engine.Events(t.Context(), op.ID, 0)
	if err != nil {
		t.Fatal(err)
	}

	var last api.Event
	for last = range events {
	}

	if last.State != api.Succeeded || len(plan.Steps) == 0 {
		t.Fatalf("operation %s is %s after %d steps", op.ID, last.State, len(plan.Steps))
	}
}

// scrapeUntil scrapes one time after the other until stop is closed, and returns how often.
func scrapeUntil(t *testing.T, url string, stop <-chan struct{}) (scrapes int) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()

	for ; ; scrapes++ {
		select {
		case <-stop:
			return scrapes
		default:
		}

		if err := scrapeInTurn(t, client, url, scrapes); err != nil {
			t.Error(err)
			return scrapes
		}
	}
}

// TestNothingGrowsByLayoutChanges: layout after layout, while metrics are scraped as fast as they
// come, the process holds no more than after the first of them.
func TestNothingGrowsByLayoutChanges(t *testing.T) {
	x := controlledNode(t, changeScenario)
	advanceBy(t, x, 2*time.Second) // the kubelet's list is settled
	server := httptest.NewServer(x.handler)
	defer server.Close()
	layouts := []map[string]api.DeviceRequest{
		{"3g.20gb": {Count: 1}, "2g.10gb": {Count: 1}, "1g.5gb": {Count: 2}},
		{"3g.20gb": {Count: 2}},
		{"7g.40gb": {Count: 1, Compute: []string{"3c", "4c"}}},
	}
	scrapes := 0
	change := func(from, to int) held {
		var scraping sync.WaitGroup
		stop := make(chan struct{})
		scraping.Go(func() { scrapes += scrapeUntil(t, server.URL+"/metrics", stop) })

		for n := from; n < to; n++ {
			changeLayout(t, x, layouts[n%len(layouts)])
		}

		close(stop)
		scraping.Wait()
		server.CloseClientConnections()

		return holds(t, x)
	}
	early := change(0, settledChanges)
	late := change(settledChanges, longChanges)
	t.Logf("after %d layout changes %+v; after %d of them and %d scrapes %+v", settledChanges, early, longChanges,
		scrapes, late)
	expectNoGrowth(t, early, late, (longChanges-settledChanges)*heapOfAChange)
}
