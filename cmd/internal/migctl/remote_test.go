package migctl

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// handlerTransport sends requests to a handler.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)

	return w.Result(), nil
}

// TestInventoryOfUnreadGPUs: the devices of GPUs that have not been read are not none.
func TestInventoryOfUnreadGPUs(t *testing.T) {
	read := nodedoc.GPU{UUID: "GPU-0", Up: true, GPUInstances: []nodedoc.Instance{{
		ComputeInstances: []nodedoc.ComputeInstance{{Profile: "1g.10gb"}},
	}}}

	for name, c := range map[string]struct {
		unread  []int
		unknown string
		isError bool
	}{
		"read":    {},
		"unread":  {unread: []int{1}, isError: true},
		"unknown": {unknown: "the driver does not answer", isError: true},
	} {
		node := nodedoc.Document{GPUs: []nodedoc.GPU{read}}
		node.Node.GPUsUnread = c.unread
		node.Node.GPUsUnknown = c.unknown

		f := &fake{routes: map[string]http.HandlerFunc{"GET /node": answer(node)}}
		remote := NewRemote("n", &Connection{Transport: handlerTransport{f}, Close: func() {}}, time.Second)
		v, err := remote.Inventory(t.Context())
		remote.Close()
		cmptest.Equal(t, name+": error", err != nil, c.isError)

		if !c.isError {
			cmptest.Equal(t, "devices", v.Devices, map[string]int{"nvidia.com/mig-1g.10gb": 1})
		}
	}
}
