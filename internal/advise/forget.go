package advise

import (
	"cmp"
	"slices"
	"time"
)

// forget drops devices that have gone, and workloads and pods that were not seen for long.
func (a *Advisor) forget() {
	a.order = slices.DeleteFunc(a.order, func(d *device) bool {
		d.forgetExchanges(a.now)

		gone := a.now.Sub(d.seen) > time.Hour
		if gone {
			delete(a.devices, d.id)
		}

		return gone
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

// forgetOldest drops the tenth of the workloads that were not seen for the longest time, except
// those that hold a device.
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

	for _, w := range all[:len(all)/10+min(len(all), 1)] {
		delete(a.workloads, w.Key)
	}
}
