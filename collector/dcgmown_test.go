package collector

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmClock is a collector of some fields that is shown one GPU over time.
type dcgmClock struct {
	t *testing.T
	c *Collector
	g gpu.GPU
	s *gpu.Snapshot
}

func newDCGMClock(t *testing.T, opts Options, fields ...string) *dcgmClock {
	opts.Names, opts.Now, opts.Counters, opts.Disabled = NamesDCGM, testEpoch, newCounters(fields...),
		map[string]bool{ExporterGroup: true}
	g := plainGPU(0)
	g.Totals.XIDs = newCounter(0)

	return &dcgmClock{t: t, c: mustNew(t, opts), g: g}
}

// publishAfter shows a Snapshot that was made and read so long after epoch.
func (d *dcgmClock) publishAfter(after time.Duration) {
	d.g.LastRead = testEpoch().Add(after)
	d.publishUnread(after)
}

func (d *dcgmClock) publishUnread(after time.Duration) {
	d.s = newNode(d.g)
	d.s.Time = testEpoch().Add(after)
	d.c.Observe(d.s)
}

// publishXID lets the GPU report an XID so often altogether, last so long after epoch.
func (d *dcgmClock) publishXID(xid uint64, total float64, after time.Duration) {
	counts := d.g.Totals.XIDErrors
	d.g.Totals.XIDErrors = nil

	for _, x := range counts {
		if x.XID != xid {
			d.g.Totals.XIDErrors = append(d.g.Totals.XIDErrors, x)
		}
	}

	d.g.Totals.XIDErrors = append(d.g.Totals.XIDErrors,
		gpu.XIDCount{XID: xid, Counter: newCounter(total), Last: testEpoch().Add(after)})
	d.g.Totals.GPUXIDs = d.g.Totals.XIDErrors
}

func (d *dcgmClock) expectSeries(want string) {
	d.t.Helper()
	expectText(d.t, renderText(d.t, d.c, d.s), want)
}

// allXIDsText is DCGM_EXP_XID_ERRORS_TOTAL: 0 for every XID that alerts are for, so that increase()
// sees the first, a count for XID 31, and more lines.
func allXIDsText(of31 int, more string) string {
	lines := []string{"# TYPE DCGM_EXP_XID_ERRORS_TOTAL gauge"}

	for _, xid := range []int{119, 120, 13, 31, 43, 48, 63, 64, 74, 79, 94, 95} {
		n := 0
		if xid == 31 {
			n = of31
		}

		lines = append(lines, fmt.Sprintf(`DCGM_EXP_XID_ERRORS_TOTAL{UUID="GPU-0",device="nvidia0",gpu="0",xid="%d"} %d`,
			xid, n))
	}

	return "\n\t\t" + strings.Join(append(lines, more), "\n\t\t")
}

func TestDCGMLastXID(t *testing.T) {
	d := newDCGMClock(t, Options{}, "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_TOTAL")

	d.publishAfter(0)
	d.expectSeries(allXIDsText(0, "") + `
		# TYPE DCGM_FI_DEV_XID_ERRORS gauge
		DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",device="nvidia0",err_code="0",err_msg="No Error",gpu="0"} 0
	`)

	d.publishXID(48, 0, 0) // of the kernel's log, from before the start
	d.publishAfter(time.Second)
	d.expectSeries(allXIDsText(0, "") + `
		# TYPE DCGM_FI_DEV_XID_ERRORS gauge
		DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",device="nvidia0",err_code="0",err_msg="No Error",gpu="0"} 0
	`)

	d.publishXID(31, 2, time.Second)
	d.publishXID(999, 1, 0)
	d.publishAfter(2 * time.Second)
	d.expectSeries(allXIDsText(2, `DCGM_EXP_XID_ERRORS_TOTAL{UUID="GPU-0",device="nvidia0",gpu="0",xid="999"} 1`) + `
		# TYPE DCGM_FI_DEV_XID_ERRORS gauge
		DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",device="nvidia0",err_code="31",err_msg="GPU memory page fault",gpu="0"} 31
	`)

	d.publishXID(999, 2, time.Hour)
	d.publishAfter(time.Hour)
	d.expectSeries(allXIDsText(2, `DCGM_EXP_XID_ERRORS_TOTAL{UUID="GPU-0",device="nvidia0",gpu="0",xid="999"} 2`) + `
		# TYPE DCGM_FI_DEV_XID_ERRORS gauge
		DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",device="nvidia0",err_code="999",err_msg="Unknown Error",gpu="0"} 999
	`)
}

// TestDCGMXIDsOfAnInstance: they are reported for it, and not for its GPU; they end with it.
func TestDCGMXIDsOfAnInstance(t *testing.T) {
	for _, repeat := range []bool{false, true} {
		d := newDCGMClock(t, Options{RepeatGPUFields: repeat}, "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT")
		d.g.Instances = []gpu.GPUInstance{{ID: 1, Profile: "3g.20gb", Generation: 1},
			{ID: 2, Profile: "3g.20gb", Generation: 1}}
		d.publishAfter(0)

		const whole = `
		# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="300000"} 0%s
		# TYPE DCGM_FI_DEV_XID_ERRORS gauge
		DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",device="nvidia0",err_code="0",err_msg="No Error",gpu="0"} 0%s
	`
		const none = `
		DCGM_FI_DEV_XID_ERRORS{GPU_I_ID="%d",GPU_I_PROFILE="3g.20gb",UUID="GPU-0",device="nvidia0",err_code="0",err_msg="No Error",gpu="0"} 0`
		d.expectSeries(fmt.Sprintf(whole, "", fmt.Sprintf(none, 1)+fmt.Sprintf(none, 2)))

		ofInstance := []gpu.XIDCount{{XID: 31, Counter: newCounter(2), Last: testEpoch().Add(time.Second)}}
		d.g.Totals.XIDErrors = ofInstance
		d.g.Instances[1].XIDErrors = ofInstance
		d.publishAfter(2 * time.Second)

		const last = `
		DCGM_FI_DEV_XID_ERRORS{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-0",device="nvidia0",err_code="31",err_msg="GPU memory page fault",gpu="0"} 31`
		const recent = `
		DCGM_EXP_XID_ERRORS_COUNT{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="300000"`
		d.expectSeries(fmt.Sprintf(whole, recent+`,xid="31"} 2`, fmt.Sprintf(none, 1)+last))

		d.publishAfter(10 * time.Minute)
		d.expectSeries(fmt.Sprintf(whole, recent+`} 0`, fmt.Sprintf(none, 1)+last))

		d.g.Instances = []gpu.GPUInstance{{ID: 2, Profile: "3g.20gb", Generation: 2}}
		d.publishAfter(11 * time.Minute)
		d.expectSeries(fmt.Sprintf(whole, "", fmt.Sprintf(none, 2)))
	}
}

// The XIDs of a GPU that was never read are not received: we do not know that there were none.
func TestDCGMXIDsOfAnUnreadGPU(t *testing.T) {
	d := newDCGMClock(t, Options{}, "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT")
	d.g.Totals.XIDs = gpu.Counter{}
	d.publishAfter(0)
	d.expectSeries("")
}

func TestDCGMXIDWindow(t *testing.T) {
	d := newDCGMClock(t, Options{XIDWindow: time.Minute}, "DCGM_EXP_XID_ERRORS_COUNT")

	const none = `
		# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="60000"} 0
	`

	d.publishAfter(0)
	d.expectSeries(none)

	d.publishXID(31, 2, 10*time.Second)
	d.publishAfter(11 * time.Second)
	d.publishXID(31, 3, 40*time.Second)
	d.publishXID(79, 1, 41*time.Second)
	d.publishAfter(42 * time.Second)
	d.expectSeries(`
		# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="60000",xid="31"} 3
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="60000",xid="79"} 1
	`)

	d.publishAfter(70 * time.Second)
	d.expectSeries(`
		# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="60000",xid="31"} 1
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="60000",xid="79"} 1
	`)

	d.publishAfter(101 * time.Second)
	d.expectSeries(none)
}

// TestDCGMXIDWindowGoesOn: a collector that replaces another counts on, and no XID of before comes
// again.
func TestDCGMXIDWindowGoesOn(t *testing.T) {
	const field = "DCGM_EXP_XID_ERRORS_COUNT"
	opts := func(former *Collector, fields ...string) Options {
		return Options{XIDWindow: time.Minute, Names: NamesDCGM, Now: testEpoch, Counters: newCounters(fields...),
			Disabled: map[string]bool{ExporterGroup: true}, Former: former}
	}

	for name, before := range map[string]struct {
		field string
		want  int
	}{"a collector with windows": {field, 1}, "one without": {"DCGM_FI_DEV_GPU_TEMP", 0}} {
		d := newDCGMClock(t, Options{XIDWindow: time.Minute}, before.field)
		d.publishAfter(0)
		d.publishXID(31, 500, -time.Hour)
		d.publishAfter(time.Second)
		d.publishXID(31, 501, 10*time.Second)
		d.publishAfter(11 * time.Second)
		d.c = mustNew(t, opts(d.c, field))
		d.publishAfter(12 * time.Second)

		want := fmt.Sprintf("# TYPE %s gauge\n%s{UUID=\"GPU-0\",device=\"nvidia0\",gpu=\"0\",window_size_in_ms=\"60000\"",
			field, field)
		if before.want > 0 {
			want += `,xid="31"`
		}

		if got := renderText(t, d.c, d.s); got != want+fmt.Sprintf("} %d\n", before.want) {
			t.Errorf("after %s: %s", name, got)
		}
	}
}

func TestDCGMClockEvents(t *testing.T) {
	d := newDCGMClock(t, Options{ClockEventsWindow: time.Minute}, "DCGM_EXP_CLOCK_EVENTS_COUNT",
		"DCGM_EXP_CLOCK_EVENTS_TOTAL")

	show := func(after time.Duration, events gpu.ClockEvents) {
		d.g.Readings.ClockEvents = gpu.Some(events)
		d.publishAfter(after)
	}

	show(0, 0x1) // idle from before: no beginning was seen
	show(1*time.Second, 0x1)
	d.publishUnread(2 * time.Second) // it did not answer: the reading is an old one
	d.expectSeries(`
		# TYPE DCGM_EXP_CLOCK_EVENTS_COUNT gauge
		DCGM_EXP_CLOCK_EVENTS_COUNT{UUID="GPU-0",clock_event="gpu_idle",device="nvidia0",gpu="0",window_size_in_ms="60000"} 2
	`)

	show(30*time.Second, 0x24)
	show(31*time.Second, 0x4)
	show(32*time.Second, 0x24)
	d.expectSeries(`
		# TYPE DCGM_EXP_CLOCK_EVENTS_COUNT gauge
		DCGM_EXP_CLOCK_EVENTS_COUNT{UUID="GPU-0",clock_event="gpu_idle",device="nvidia0",gpu="0",window_size_in_ms="60000"} 2
		DCGM_EXP_CLOCK_EVENTS_COUNT{UUID="GPU-0",clock_event="power_cap",device="nvidia0",gpu="0",window_size_in_ms="60000"} 3
		DCGM_EXP_CLOCK_EVENTS_COUNT{UUID="GPU-0",clock_event="sw_thermal",device="nvidia0",gpu="0",window_size_in_ms="60000"} 2
		# TYPE DCGM_EXP_CLOCK_EVENTS_TOTAL gauge
		DCGM_EXP_CLOCK_EVENTS_TOTAL{UUID="GPU-0",clock_event="power_cap",device="nvidia0",gpu="0"} 1
		DCGM_EXP_CLOCK_EVENTS_TOTAL{UUID="GPU-0",clock_event="sw_thermal",device="nvidia0",gpu="0"} 2
	`)

	show(2*time.Minute, 0)
	d.expectSeries(`
		# TYPE DCGM_EXP_CLOCK_EVENTS_COUNT gauge
		DCGM_EXP_CLOCK_EVENTS_COUNT{UUID="GPU-0",device="nvidia0",gpu="0",window_size_in_ms="60000"} 0
		# TYPE DCGM_EXP_CLOCK_EVENTS_TOTAL gauge
		DCGM_EXP_CLOCK_EVENTS_TOTAL{UUID="GPU-0",clock_event="power_cap",device="nvidia0",gpu="0"} 1
		DCGM_EXP_CLOCK_EVENTS_TOTAL{UUID="GPU-0",clock_event="sw_thermal",device="nvidia0",gpu="0"} 2
	`)

	d.g.Readings.ClockEvents = gpu.None[gpu.ClockEvents]() // no longer reported: the window says nothing
	d.publishAfter(2*time.Minute + time.Second)
	d.expectSeries(`
		# TYPE DCGM_EXP_CLOCK_EVENTS_TOTAL gauge
		DCGM_EXP_CLOCK_EVENTS_TOTAL{UUID="GPU-0",clock_event="power_cap",device="nvidia0",gpu="0"} 1
		DCGM_EXP_CLOCK_EVENTS_TOTAL{UUID="GPU-0",clock_event="sw_thermal",device="nvidia0",gpu="0"} 2
	`)
}

// The windows hold what they need and no more, however long they run; GPUs that are gone are
// forgotten.
func TestDCGMWindowsDoNotGrow(t *testing.T) {
	d := newDCGMClock(t, Options{}, "DCGM_EXP_CLOCK_EVENTS_COUNT")

	d.g.Readings.ClockEvents = gpu.Some(gpu.ClockEvents(1))
	for i := range 10_000 {
		d.publishXID(31, float64(i), time.Duration(i)*time.Second)
		d.publishAfter(time.Duration(i) * time.Second)
	}

	h := d.c.dcgm.counters.history(d.g.UUID)
	cmptest.Equal(t, "readings of five minutes", len(h.clocks), 300)
	cmptest.Equal(t, "XIDs of five minutes", len(h.xids), 300)

	if room := cap(h.clocks); room > 2000 {
		t.Errorf("room for %d readings, want 2000 at most", room)
	}

	d.c.Observe(newNode())

	if n := len(d.c.dcgm.counters.gpus); n != 0 {
		t.Errorf("%d GPUs are remembered", n)
	}
}

func TestDCGMHealth(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*gpu.Readings)
		want   string
	}{
		{"nothing is known", func(r *gpu.Readings) { *r = gpu.Readings{} }, ""},
		{"well", func(*gpu.Readings) {}, `
			# TYPE DCGM_EXP_GPU_HEALTH_STATUS gauge
			DCGM_EXP_GPU_HEALTH_STATUS{UUID="GPU-0",device="nvidia0",gpu="0",health_error_code="DCGM_FR_OK",health_watch="MEM"} 0
			DCGM_EXP_GPU_HEALTH_STATUS{UUID="GPU-0",device="nvidia0",gpu="0",health_error_code="DCGM_FR_OK",health_watch="THERMAL"} 0
		`},
		{"a row waits, and it is hot", func(r *gpu.Readings) {
			r.RemappedRows = gpu.Some(gpu.RemappedRows{Pending: true})
			r.ClockEvents = gpu.Some(gpu.ClockEvents(0x40))
		}, `
			# TYPE DCGM_EXP_GPU_HEALTH_STATUS gauge
			DCGM_EXP_GPU_HEALTH_STATUS{UUID="GPU-0",device="nvidia0",gpu="0",health_error_code="DCGM_FR_CLOCK_THROTTLE_THERMAL",health_watch="THERMAL"} 10
			DCGM_EXP_GPU_HEALTH_STATUS{UUID="GPU-0",device="nvidia0",gpu="0",health_error_code="DCGM_FR_PENDING_ROW_REMAP",health_watch="MEM"} 10
		`},
		{"a row could not be replaced", func(r *gpu.Readings) {
			r.RemappedRows = gpu.Some(gpu.RemappedRows{Failure: true, Pending: true})
			r.ClockEvents = gpu.None[gpu.ClockEvents]()
		}, `
			# TYPE DCGM_EXP_GPU_HEALTH_STATUS gauge
			DCGM_EXP_GPU_HEALTH_STATUS{UUID="GPU-0",device="nvidia0",gpu="0",health_error_code="DCGM_FR_ROW_REMAP_FAILURE",health_watch="MEM"} 20
		`},
		{"memory errors", func(r *gpu.Readings) {
			r.ECC = []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "volatile", Location: "total", Count: 1}}
			r.ClockEvents = gpu.None[gpu.ClockEvents]()
		}, `
			# TYPE DCGM_EXP_GPU_HEALTH_STATUS gauge
			DCGM_EXP_GPU_HEALTH_STATUS{UUID="GPU-0",device="nvidia0",gpu="0",health_error_code="DCGM_FR_VOLATILE_DBE_DETECTED",health_watch="MEM"} 20
		`},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDCGMClock(t, Options{}, "DCGM_EXP_GPU_HEALTH_STATUS")
			d.g.Readings = gpu.Readings{
				SlowReadings: gpu.SlowReadings{RemappedRows: gpu.Some(gpu.RemappedRows{})},
				ClockEvents:  gpu.Some(gpu.ClockEvents(4)),
			}
			test.change(&d.g.Readings)

			d.publishAfter(0)
			d.expectSeries(test.want)
		})
	}
}
