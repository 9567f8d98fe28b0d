package capture

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// interview asks everything that the fake answers and returns the answers as text. It is put to the
// driver, to its recorder and to a replay alike.
func interview(t *testing.T, lib nvmlsource.Library) string {
	t.Helper()
	var out strings.Builder
	say := func(what string, values ...any) { fmt.Fprintf(&out, "%s: %+v\n", what, values) }
	say("Init", lib.Init())
	version, ret := lib.SystemGetDriverVersion()
	say("SystemGetDriverVersion", version, ret)
	n, ret := lib.DeviceGetCount()
	say("DeviceGetCount", n, ret)
	d, ret := lib.DeviceGetHandleByIndex(0)
	same, _ := lib.DeviceGetHandleByIndex(0)
	say("DeviceGetHandleByIndex", d == same, ret)
	uuid, ret := d.GetUUID()
	say("GetUUID", uuid, ret)
	name, ret := d.GetName()
	say("GetName", strings.ToValidUTF8(name, "\uFFFD"), ret)
	serial, ret := d.GetSerial()
	say("GetSerial", serial, ret)

	watts, ret := d.GetPowerUsage()
	if ret != nvml.SUCCESS {
		watts = 0 // means nothing then
	}

	say("GetPowerUsage", watts, ret)
	processes, ret := d.GetComputeRunningProcesses()
	say("GetComputeRunningProcesses", processes, ret)
	askFields(d, say)
	askMIG(d, say)

	return out.String()
}

func askFields(d nvmlsource.Device, say func(string, ...any)) {
	// Every type of value there is, and one that there is not.
	values := make([]nvml.FieldValue, 0, 9)
	for id := range uint32(8) {
		values = append(values, nvml.FieldValue{FieldId: id, ScopeId: id})
	}

	values = append(values, nvml.FieldValue{FieldId: nvml.FI_DEV_MEMORY_TEMP})
	ret := d.GetFieldValues(values)
	say("GetFieldValues", ret)

	for _, v := range values {
		if ret != nvml.SUCCESS {
			break
		}

		say("field", v.FieldId, v.NvmlReturn)

		if v.NvmlReturn == 0 {
			say("value", v.ValueType, v.Value[:map[uint32]int{1: 4, 5: 4, 6: 2}[v.ValueType]])

			if v.ValueType != 1 && v.ValueType != 5 && v.ValueType != 6 {
				say("whole value", v.Value)
			}
		}
	}
}

func askMIG(d nvmlsource.Device, say func(string, ...any)) {
	for i := range 3 {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		say("GetMigDeviceHandleByIndex", ret)

		if ret != nvml.SUCCESS {
			continue
		}

		uuid, ret := m.GetUUID()
		say("GetUUID", uuid, ret)
		attributes, ret := m.GetAttributes()
		say("GetAttributes", attributes, ret)
	}

	for _, profile := range []uint32{9, 14} {
		list, ret := d.GetGpuInstances(profile, 7)
		say("GetGpuInstances", len(list), ret)

		for _, g := range list {
			info, ret := g.GetInfo()
			say("GetInfo", info, ret)
			computeInstances, ret := g.GetComputeInstances()
			say("GetComputeInstances", computeInstances, ret)
		}
	}
}

func TestReplaysWhatWasSaid(t *testing.T) {
	fake := newFake()
	rec := NewRecorder(fake, start())
	var want []string

	for i := range 3 {
		if i > 0 {
			next(t, rec, start().Add(time.Duration(i)*time.Second))
		}

		fake.device.watts += uint32(i) * 1000
		fake.device.set("GetPowerUsage", map[int]nvml.Return{1: nvml.ERROR_GPU_IS_LOST, 2: nvml.Return(57)}[i])
		fake.device.set("GetFieldValues", map[int]nvml.Return{2: nvml.ERROR_FUNCTION_NOT_FOUND}[i])
		truth := interview(t, fake)

		got := interview(t, rec.Library())
		if i == 0 && got != truth {
			t.Fatalf("the recorder changes what the driver says:\n%s\nwas\n%s", got, truth)
		}

		want = append(want, got)
	}

	replay := NewReplay(rewritten(t, rec.Recording(realHost, "test", false)), true)

	for i, text := range want {
		if i > 0 {
			if err := replay.Advance(time.Hour); err != nil {
				t.Fatal(err)
			}
		}

		if got := interview(t, replay.Library()); got != text {
			t.Errorf("poll %d:\n%s\nrecorded\n%s", i+1, got, text)
		}

		if at := start().Add(time.Duration(i) * time.Second); !replay.Now().Equal(at) {
			t.Errorf("poll %d is at %s, want %s", i+1, replay.Now(), at)
		}
	}

	if err := replay.Advance(time.Minute); err != nil {
		t.Fatal(err)
	}

	if got := interview(t, replay.Library()); got != want[2] || !replay.Now().Equal(start().Add(62*time.Second)) {
		t.Errorf("after the last poll, at %s: %s", replay.Now(), got)
	}
}

// TestSeveralAnswersInOnePoll: a call that is made twice in a poll may get two answers, and does
// again.
func TestSeveralAnswersInOnePoll(t *testing.T) {
	fake := newFake()
	rec := NewRecorder(fake, start())
	d := firstGPU(t, rec.Library())
	say := func(watts uint32) {
		fake.device.watts = watts
		_, _ = d.GetPowerUsage()
	}

	said := [][]uint32{{1, 2}, {}, {2, 3, 3}, {3, 1}}
	for i, list := range said {
		if i > 0 {
			next(t, rec, start())
		}

		for _, watts := range list {
			say(watts)
		}
	}

	replay := NewReplay(rewritten(t, rec.Recording("", "", false)), false)
	d = firstGPU(t, replay.Library())

	for i, list := range said {
		if i > 0 {
			replay.Next()
		}

		for j, want := range list {
			if got, ret := d.GetPowerUsage(); got != want || ret != nvml.SUCCESS {
				t.Errorf("poll %d, asking %d: %d (%d), want %d", i, j, got, ret, want)
			}
		}
	}
}

// TestNotAsked: what the driver was not asked is answered as by one that has no such function.
func TestNotAsked(t *testing.T) {
	rec := NewRecorder(newFake(), start())
	firstGPU(t, rec.Library())

	replay := NewReplay(rewritten(t, rec.Recording("", "", false)), false)
	if _, ret := firstGPU(t, replay.Library()).GetTemperature(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("code %d, want FUNCTION_NOT_FOUND", ret)
	}

	if _, ret := replay.Library().DeviceGetHandleByIndex(5); ret == nvml.SUCCESS {
		t.Error("a GPU that was never there")
	}

	if ret := replay.Library().Shutdown(); ret != nvml.SUCCESS {
		t.Errorf("shutdown: %d", ret)
	}
}

func TestReplaysACallThatHung(t *testing.T) {
	for _, returns := range []bool{true, false} {
		t.Run(fmt.Sprint("returns ", returns), func(t *testing.T) {
			fake := newFake()
			fake.device.hang = make(chan struct{})
			rec := NewRecorder(fake, start())
			d := firstGPU(t, rec.Library())
			var ended sync.WaitGroup
			ended.Go(func() { _, _ = d.GetPowerUsage() })
			<-fake.device.asked
			next(t, rec, start().Add(time.Second))
			next(t, rec, start().Add(2*time.Second))

			if returns {
				close(fake.device.hang)
				ended.Wait()
			}

			next(t, rec, start().Add(3*time.Second))
			recording := rewritten(t, rec.Recording("", "", false))

			if !returns {
				close(fake.device.hang)
				ended.Wait()
			}

			checkHang(t, NewReplay(recording, true), returns)
		})
	}
}

// checkHang wants the power usage to hang from the first to the third poll, or until the replay is
// closed.
func checkHang(t *testing.T, replay *Replay, returns bool) {
	t.Helper()
	d := firstGPU(t, replay.Library())
	answers := make(chan nvml.Return, 1)
	go func() {
		_, ret := d.GetPowerUsage()
		answers <- ret
	}()

	for poll := range 4 {
		if poll > 0 {
			replay.Next()
		}

		if returns && poll == 2 {
			if ret := <-answers; ret != nvml.SUCCESS {
				t.Errorf("code %d", ret)
			}

			return
		}

		select {
		case ret := <-answers:
			t.Fatalf("answered with %d in poll %d", ret, poll)
		default:
		}
	}

	if err := replay.Close(); err != nil {
		t.Fatal(err)
	}

	if ret := <-answers; ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("code %d after the replay was closed", ret)
	}
}

// TestReplaysEvents: an event comes before the same poll again, the failure of the queue too.
func TestReplaysEvents(t *testing.T) {
	fake := newFake()
	rec := NewRecorder(fake, start())
	d := firstGPU(t, rec.Library())

	set, _ := rec.Library().EventSetCreate()
	if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		t.Fatalf("register: %d", ret)
	}

	xid := nvmlsource.Event{Device: fake.device, Type: nvml.EventTypeXidCriticalError, Data: 79, GPUInstanceID: 3,
		ComputeInstanceID: nvmlsource.NoInstance}
	fake.events <- xid

	if e, ret := set.Wait(1000); ret != nvml.SUCCESS || e.Device != d {
		t.Fatalf("recorded: %+v, %d", e, ret)
	}

	next(t, rec, start().Add(time.Second))
	fake.failed <- nvml.ERROR_UNKNOWN
	_, _ = set.Wait(1000)
	next(t, rec, start().Add(2*time.Second))
	fake.events <- xid
	_, _ = set.Wait(1000) // after the last poll: it is not recorded

	replay := NewReplay(rewritten(t, rec.Recording("", "", false)), true)
	d = firstGPU(t, replay.Library())

	set, ret := replay.Library().EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatalf("create: %d", ret)
	}

	if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		t.Errorf("register: %d", ret)
	}

	if _, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("before anything happened: %d", ret)
	}

	replay.Next()

	xid.Device = d
	if e, ret := set.Wait(1000); ret != nvml.SUCCESS || e != xid {
		t.Errorf("event %+v (%d), want %+v", e, ret, xid)
	}

	replay.Next()

	if _, ret := set.Wait(1000); ret != nvml.ERROR_UNKNOWN {
		t.Errorf("failure of the queue: %d", ret)
	}

	set.Free()

	if set, ret = replay.Library().EventSetCreate(); ret != nvml.SUCCESS {
		t.Fatalf("create again: %d", ret)
	}

	for range 2 {
		if _, ret := set.Wait(0); ret != nvml.ERROR_TIMEOUT {
			t.Errorf("of a queue set up anew: %d", ret)
		}
	}

	replay.AwaitHandled(t.Context()) // returns: everything has been taken
}

// TestCallTypes: every answer is of the type that the reader expects of its call.
func TestCallTypes(t *testing.T) {
	rec := NewRecorder(newFake(), start())
	_ = interview(t, rec.Library())
	recording := rec.Recording("", "", false).Recorded
	check := func(all answers, known []callType) {
		t.Helper()

		if len(all) == 0 {
			t.Error("nothing is recorded")
		}

		for text, s := range all {
			c, canonical, err := findCall(known, text)
			if err != nil || canonical != text {
				t.Errorf("%s: %v (%s)", text, err, canonical)
			}

			for _, e := range s.entries {
				if e.ret == nvml.SUCCESS && reflect.TypeOf(e.value) != c.answer {
					t.Errorf("%s: %T, want %s", text, e.value, c.answer)
				}
			}
		}
	}
	check(answers(recording.Node), nodeCalls())
	check(answers(recording.GPUs["gpu0"].Answers), gpuCalls())
	check(answers(recording.GPUs["gpu0"].MIGDevices[0]), migCalls())
	check(answers(recording.GPUs["gpu0"].GPUInstances["9/1"]), instanceCalls())
}

func TestPseudonyms(t *testing.T) {
	capture := func() *Recording {
		rec := NewRecorder(newFake(), start())
		_ = interview(t, rec.Library())

		return rec.Recording(realHost, "test", false).Pseudonymize()
	}
	recording := rewritten(t, capture())

	data, err := recording.Bytes()
	if err != nil {
		t.Fatal(err)
	}

	for _, secret := range []string{realHost, realUUID, realMIG, realSerial, fmt.Sprint(realPID), realUUID[4:12],
		realMIG[4:12]} {
		if strings.Contains(string(data), secret) {
			t.Errorf("%s is in the file", secret)
		}
	}

	again, err := capture().Bytes()
	if err != nil || string(again) != string(data) {
		t.Errorf("captured again it has other pseudonyms (%v)", err)
	}

	d := firstGPU(t, NewReplay(recording, false).Library())
	uuid, _ := d.GetUUID()
	m, _ := d.GetMigDeviceHandleByIndex(1)

	legacy, _ := m.GetUUID()
	if legacy != "MIG-"+uuid+"/2/0" {
		t.Errorf("legacy UUID %s of GPU %s", legacy, uuid)
	}

	processes, _ := d.GetComputeRunningProcesses()
	if pids := []uint32{processes[0].Pid, processes[1].Pid}; !slices.Equal(pids, []uint32{firstPID, 0}) {
		t.Errorf("process ids %v", pids)
	}
}

func next(t *testing.T, rec *Recorder, now time.Time) {
	t.Helper()

	if err := rec.Next(func() (time.Time, error) { return now, nil }); err != nil {
		t.Fatal(err)
	}
}
