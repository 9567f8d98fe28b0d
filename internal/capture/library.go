package capture

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// library records the answers of a driver, or replays recorded answers without one. It does both so
// that calls have the same names and types in both.
type library struct {
	entity                    // the node
	seam   nvmlsource.Library // through which its users call it
	events *eventQueue

	// The calls of each kind of entity below the node.
	gpuCalls, migCalls, instanceCalls []callType

	// The timeline's mu guards these.
	rec  *Recording
	gpus []*physicalGPU // one for each handle that the driver has returned
}

// physicalGPU is a GPU of the node. Each handle of the driver has one, so that handles of the same
// GPU are equal.
type physicalGPU struct {
	nvmlsource.Device // the driver's handle; nil in a replay
	entity
	name   gpuName
	record *gpuRecord // guarded by the timeline's mu
}

// newLibrary returns a library that records driver in rec, or replays rec if driver is nil. It owns
// rec from then on.
func newLibrary(rec *Recording, driver nvmlsource.Library) *library {
	t := &timeline{replays: driver == nil, changed: make(chan struct{})}

	l := &library{
		entity:        entity{t, answers(rec.Recorded.Node), nodeCalls()},
		gpuCalls:      gpuCalls(),
		migCalls:      migCalls(),
		instanceCalls: instanceCalls(),
		rec:           rec,
		events:        &eventQueue{sets: map[*eventSet]bool{}},
	}

	for name, g := range rec.Recorded.GPUs {
		l.gpus = append(l.gpus, l.newGPU(nil, name, g))
	}

	l.seam = nvmlsource.Intercept(driver, l)

	return l
}

func (l *library) newGPU(driver nvmlsource.Device, name gpuName, record *gpuRecord) *physicalGPU {
	return &physicalGPU{
		Device: driver,
		entity: entity{l.time, answers(record.Answers), l.gpuCalls},
		name:   name,
		record: record,
	}
}

// Before records or replays a call. It refuses calls that it does not know, such as those that
// change a GPU.
func (l *library) Before(c nvmlsource.Call) nvmlsource.Verdict {
	switch c.Function {
	case "nvmlShutdown", "nvmlGpmSampleFree":
		return nvmlsource.Verdict{Answered: l.time.replays}
	case "nvmlInitNoAttach":
		return nvmlsource.Verdict{Answered: l.time.replays, Return: nvml.ERROR_NOT_SUPPORTED}
	case "nvmlEventSetWait":
		return l.wait(c)
	case "nvmlEventSetFree":
		return l.free(c)
	}

	e := l.entityOf(c.Object)

	// NVML computes these metrics from two samples. We record them for the entity of the later one.
	if c.Function == "nvmlGpmMetricsGet" {
		from := sampleIn(c, 0)
		to := sampleIn(c, 1)

		if from.entity == nil || to.entity == nil {
			return nvmlsource.Verdict{Answered: true, Return: nvml.ERROR_INVALID_ARGUMENT}
		}

		e = to.entity
		c.Args[0] = to.window
	}

	at := slices.IndexFunc(e.calls, func(t callType) bool { return t.name == c.Function })
	if at < 0 {
		return nvmlsource.Verdict{Answered: true, Return: nvml.ERROR_NOT_SUPPORTED}
	}

	return l.recordOrReplay(e, c, e.calls[at])
}

// entityOf returns the entity that a call is about.
func (l *library) entityOf(object any) *entity {
	switch o := object.(type) {
	case *physicalGPU:
		return &o.entity
	case *entity:
		return o
	}

	return &l.entity
}

// recordOrReplay records or replays a call of a known type.
func (l *library) recordOrReplay(e *entity, c nvmlsource.Call, t callType) nvmlsource.Verdict {
	if l.time.replays {
		a := e.replay(t.text(c))
		if a.ret == nvml.SUCCESS {
			fillIn(e, c)
		}

		return nvmlsource.Verdict{Answered: true, Answer: l.fromRecorded(c, a.value), Return: a.ret}
	}

	call := e.begin(t.text(c))

	return nvmlsource.Verdict{After: func(answer any, ret nvml.Return) {
		if ret != nvml.SUCCESS {
			call.end(nil, ret)
			return
		}

		call.end(l.toRecorded(c, t, answer), ret)
		fillIn(e, c)
	}}
}

// toRecorded returns what we record of the driver's answer: of handles, how many there are or the
// name of the GPU.
func (l *library) toRecorded(c nvmlsource.Call, t callType, answer any) any {
	switch t.answer {
	case reflect.TypeFor[none]():
		return none{}
	case reflect.TypeFor[gpuName]():
		return l.gpuOf(answer.(nvmlsource.Device), int(c.Args[0])).name
	case reflect.TypeFor[handleCount]():
		if list, ok := answer.([]nvmlsource.GPUInstance); ok {
			return handleCount(len(list))
		}

		return handleCount(answer.(int))
	}

	return answer
}

// fromRecorded returns the answer to a call from its recorded value. It undoes toRecorded.
func (l *library) fromRecorded(c nvmlsource.Call, value any) any {
	switch value := value.(type) {
	case gpuName:
		return l.find(func(d *physicalGPU) bool { return d.name == value })
	case handleCount:
		if c.Function == "nvmlDeviceGetGpuInstances" {
			return make([]nvmlsource.GPUInstance, value)
		}

		return int(value)
	}

	return value
}

// fillIn records or replays what a call fills in of its caller's memory.
func fillIn(e *entity, c nvmlsource.Call) {
	switch c.Function {
	case "nvmlDeviceGetFieldValues":
		fillFields(e, c)
	case "nvmlGpmMetricsGet":
		fillMetrics(e, c)
	case "nvmlGpmSampleGet":
		*sampleIn(c, 0) = gpmSample{entity: e, window: nvmlsource.NoInstance}
	case "nvmlGpmMigSampleGet":
		*sampleIn(c, 0) = gpmSample{entity: e, window: c.Args[0]}
	}
}

// Object returns the entity of a handle that a call has returned. MIG devices are distinguished by
// index, which another device may have after a repartition, and GPU instances by profile and
// position.
func (l *library) Object(c nvmlsource.Call, position int, handle any) (object any, known bool) {
	switch c.Function {
	case "nvmlDeviceGetHandleByIndex", "nvmlEventSetWait":
		d, ok := handle.(*physicalGPU) // of a replay
		if !ok {
			d = l.find(func(d *physicalGPU) bool { return d.Device == handle })
		}

		return d, d != nil
	case "nvmlDeviceGetMigDeviceHandleByIndex":
		devices := c.Object.(*physicalGPU).record.MIGDevices
		return entityIn(l.time, devices, int(c.Args[0]), l.migCalls), true
	case "nvmlDeviceGetGpuInstances":
		instances := c.Object.(*physicalGPU).record.GPUInstances
		return entityIn(l.time, instances, slotOf(uint32(c.Args[0]), position), l.instanceCalls), true
	case "nvmlEventSetCreate":
		return l.newEventSet(), true
	case "nvmlGpmSampleAlloc":
		return &gpmSample{}, true
	}

	return nil, false
}

// gpuOf returns the GPU of a driver's handle. For a new handle it adds a GPU, with the name gpu0 for
// index 0.
func (l *library) gpuOf(h nvmlsource.Device, index int) *physicalGPU {
	if d := l.find(func(d *physicalGPU) bool { return d.Device == h }); d != nil {
		return d
	}

	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	gpus := l.rec.Recorded.GPUs

	name := gpuName(fmt.Sprintf("gpu%d", index))
	for n := 2; gpus[name] != nil; n++ { // another GPU, or handle, at the same index
		name = gpuName(fmt.Sprintf("gpu%d.%d", index, n))
	}

	gpus[name] = &gpuRecord{gpuAnswers{}, map[int]migAnswers{}, map[slot]instanceAnswers{}}
	d := l.newGPU(h, name, gpus[name])
	l.gpus = append(l.gpus, d)

	return d
}

// find returns the first GPU for which wanted returns true, or nil.
func (l *library) find(wanted func(*physicalGPU) bool) *physicalGPU {
	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	if i := slices.IndexFunc(l.gpus, wanted); i >= 0 {
		return l.gpus[i]
	}

	return nil
}
