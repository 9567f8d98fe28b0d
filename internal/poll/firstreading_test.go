package poll

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Before all GPUs were read, an id that names no device seen so far may be of one of the others:
// the log does not ask to restart the device plugin.
func TestDevicesOfGPUsThatWereNotReadAreNotUnmatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		release := make(chan struct{})
		src.hang[uuidB] = release
		logged := &logLines{text: "not on this node"}
		created := &logLines{text: "MIG instance created"}
		g := src.gpus[uuidB]
		g.MIG.Enabled = gpu.Some(true)
		g.Instances = []gpu.GPUInstance{{ID: 1, Profile: "3g.20gb", Device: gpu.Device{Up: true}}}
		src.gpus[uuidB] = g
		list := gpu.Assignments{List: []gpu.Assignment{newAssignment(gpu.DeviceRef{GPU: uuidB}, "pod", 0)}}
		h := newHarness(t, src, func(o *Options) {
			o.Pods = &fakePods{list: list}
			o.Logger = bothLoggers{logged, created}
		})
		stop := h.startLoop()

		s := h.pollAfter(time.Second)
		cmptest.Equal(t, "unread GPUs", s.Unread, []int{1})
		cmptest.Equal(t, "unmatched devices", len(s.Unmatched), 0)
		close(release)
		synctest.Wait()
		s = h.pollAfter(time.Second)
		cmptest.Equal(t, "unread GPUs at last", len(s.Unread), 0)
		cmptest.Equal(t, "warnings", logged.count.Load(), int64(0))
		cmptest.Equal(t, "instances that are said to be created", created.count.Load(), int64(0))

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// bothLoggers logs twice.
type bothLoggers [2]log.Logger

func (l bothLoggers) Log(keyvals ...any) error {
	return errors.Join(l[0].Log(keyvals...), l[1].Log(keyvals...))
}
