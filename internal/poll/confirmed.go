package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// markConfirmedFree marks the free devices as confirmed. It is called while the holders are not
// completely known: then a device counts as free only because an operator has confirmed it.
func markConfirmedFree(gpus []gpu.GPU) {
	for i := range gpus {
		for d := range gpus[i].Devices() {
			d.ConfirmedFree = d.Allocated == gpu.Some(false)
		}
	}
}
