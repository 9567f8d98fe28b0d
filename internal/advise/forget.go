package advise

import (
	"cmp"
	"slices"
	"time"
)

// forgetDeviceAfter is the age at which we forget a device that no reading has shown again.
const forgetDeviceAfter = time.Hour

// forget drops the devices, workloads and pods that we have not seen for long.
func (a *Advisor) forget() {
	a.order = slices.DeleteFunc(a.order, func(d *device) bool {
		d.forgetExchanges(a.now)

		gone := a.now.Sub(d.seen) > forgetDeviceAfter
		if gone {
			d.start.raise(d.workload)
			delete(a.devices, d.id)
		}

		return gone
	})

	a.down = slices.DeleteFunc(a.down, func(s downSeen) bool {
		return a.now.Sub(time.Unix(s.Last, 0)) >= endsWithin
	})

	held := a.held()
	for key, w := range a.workloads {
		if a.now.Sub(w.Last) > forgetAfter && !held[w] {
			delete(a.workloads, key)
		}

		w.forgetPods(a.now)
	}
}

// held returns the workloads that hold a device.
func (a *Advisor) held() map[*workload]bool {
	held := map[*workload]bool{}
	for _, d := range a.order {
		held[d.workload] = true
	}

	return held
}

// forgetOldest drops the tenth of the workloads that we have not seen for the longest time, one at least,
// so that it need not sort for each new one. It keeps the workloads that hold a device.
func (a *Advisor) forgetOldest() {
	held := a.held()
	var all []*workload

	for _, w := range a.workloads {
		if !held[w] {
			all = append(all, w)
		}
	}

	slices.SortFunc(all, func(x, y *workload) int {
		return cmp.Or(x.Last.Compare(y.Last), x.Key.compare(y.Key))
	})

	tenth := len(all)/10 + min(len(all), 1)
	for _, w := range all[:tenth] {
		delete(a.workloads, w.Key)
	}
}
