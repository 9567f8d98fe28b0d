package sim

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestIdleMemory: no device of the driver is at 0 bytes when nothing runs, by captures of an A100
// and an H200.
func TestIdleMemory(t *testing.T) {
	n := start(t, `version: 1
node: {kubernetes: false}
gpus:
  - {model: H200-141GB, mig: true, layout: ["4g.71gb@0", "2g.35gb@4", "1g.18gb@6"]}
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}
`)
	for index, want := range [][]uint64{{55, 22, 17, 9}, {11, 5, 5}} {
		s := state(t, n, index)

		mebibytes := []uint64{s.MemoryUsed >> 20}
		for _, i := range s.Instances {
			mebibytes = append(mebibytes, i.MemoryUsed>>20)
		}

		cmptest.Equal(t, s.Name+": MiB in use", mebibytes, want)
	}

	cmptest.Equal(t, "MiB reserved of an H200", state(t, n, 0).MemoryReserved>>20, uint64(614))
}
