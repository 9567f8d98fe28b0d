package poll

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// idlePower estimates a GPU's idle power: the lowest power after two windows in a row in which nothing ran, or until
// then a default for the model.
//
// A window is the time between two readings. Nothing ran in it if it is known of the whole GPU whether
// anything did (hasActivity), and no activity that is known, no media engine and no traffic shows work. The
// list of processes has no part in it: it can be empty because the processes are hidden, and it is seldom
// empty where services wait for requests.
type idlePower struct {
	lowest gpu.Opt[float64]
	from   evidence // of lowest

	seen  evidence // that of the last readings with any
	same  int      // how many readings in a row have had it
	quiet int      // of these, windows in a row in which nothing ran

	rest energyWindow // the time of rest, if power comes from the energy counter

	windowEnd time.Time               // of the last window that counted, or that showed work
	readAt    time.Time               // when the last reading was
	traffic   [4]gpu.Opt[gpu.Counter] // totals then
}

// evidence is what idle power is learned from. Another source, or other rights, may see work that was not seen before,
// and a GPU in MIG mode has another idle power than the same one as a whole.
type evidence struct {
	mig    gpu.Opt[bool]      // the GPU is in MIG mode
	source gpu.ActivitySource // ActivityUnknown: the driver's own utilization
	denied string             // readings that this process may not make
	sensor bool               // power is the driver's own, not by the energy counter
}

// quietWindows are the windows in a row without work before power is that of an idle GPU: power is a mean over up to a
// second, and may have some of the work before the first of them.
const quietWindows = 2

// leastWindow is the least time that counts as a window, so that two of them are as long as that mean.
const leastWindow = 500 * time.Millisecond

// changedAfter is the number of readings in a row with other evidence after which what was learned before is dropped: a
// single one may lack what was restarted.
const changedAfter = 2

// What the driver's own work amounts to; more is work. Monitoring alone moves some bytes, and wakes the engines.
const (
	idleActivity = 0.001   // of the time
	idleTraffic  = 1 << 20 // bytes per second, the unit of GPM's rates
)

// update records one reading at a time, whose activity is of a window that ended at windowEnd, and returns the idle
// power; absent if nothing is known of it. Totals has the traffic until the reading.
func (p *idlePower) update(
	g *gpu.GPU,
	totals *gpu.Totals,
	at, windowEnd time.Time,
) gpu.Opt[float64] {
	moved := p.countTraffic(totals, at)
	p.compareEvidence(g)
	p.countQuiet(moved || !hasActivity(g) || showsWork(g), windowEnd)

	if watts, ok := p.measureRest(g).Get(); ok && watts > 0 {
		p.lowest = gpu.Some(min(watts, p.lowest.Or(watts)))
		p.from = p.seen
	}

	if p.lowest.Present() {
		return p.lowest
	}

	return defaultIdlePower(g)
}

// compareEvidence begins anew if a reading has other evidence than the last ones, and drops what was learned from it
// once that lasts. A reading without any activity says nothing.
func (p *idlePower) compareEvidence(g *gpu.GPU) {
	if !hasActivity(g) {
		return
	}

	if now := evidenceOf(g); now != p.seen {
		p.seen = now
		p.same = 0
		p.quiet = 0
	}

	p.same++
	if p.seen != p.from && p.same >= changedAfter {
		p.lowest = gpu.None[float64]()
	}
}

// countQuiet counts the windows without work. The profiler's answer may be that of the reading before, and readings can
// be much more frequent than the driver's values change: a window counts once, and what is shorter than leastWindow is
// a part of one.
func (p *idlePower) countQuiet(worked bool, windowEnd time.Time) {
	since := windowEnd.Sub(p.windowEnd)
	switch {
	case worked:
		p.quiet = 0
	case since >= 0 && since < leastWindow:
		return // it belongs to the window that has begun
	default:
		p.quiet++
	}

	p.windowEnd = windowEnd
}

// interrupt begins the windows without work anew: what ran until the next reading is not known.
func (p *idlePower) interrupt() {
	p.quiet = 0
	p.rest = energyWindow{}
}

// countTraffic reports whether more was transferred since the last reading than the driver itself does.
func (p *idlePower) countTraffic(totals *gpu.Totals, at time.Time) bool {
	allowed := idleTraffic * max(at.Sub(p.readAt).Seconds(), 0)
	moved := false

	for i, now := range trafficOf(totals) {
		total, known := now.Get()
		before, knownBefore := p.traffic[i].Get()
		moved = moved || known && knownBefore && total.Value-before.Value > allowed
	}

	p.traffic = trafficOf(totals)
	p.readAt = at

	return moved
}

func trafficOf(t *gpu.Totals) [4]gpu.Opt[gpu.Counter] {
	return [4]gpu.Opt[gpu.Counter]{t.PCIeReceive, t.PCIeTransmit, t.NVLinkReceive, t.NVLinkTransmit}
}

func evidenceOf(g *gpu.GPU) evidence {
	var denied []string

	for _, e := range g.Errors {
		isDenied := errors.Is(e.Err, gpu.ErrNoPermission) || errors.Is(e.Err, gpu.ErrPIDNamespace)
		if isDenied && !slices.Contains(denied, string(e.Reading)) {
			denied = append(denied, string(e.Reading))
		}
	}

	slices.Sort(denied)
	sensor := g.Readings.PowerWatts.Present() && !g.Power.FromEnergy

	return evidence{
		mig:    g.MIG.Enabled,
		source: g.ActivitySource,
		denied: strings.Join(denied, " "),
		sensor: sensor,
	}
}

// hasActivity reports whether it is known of the whole GPU whether anything ran: by the graphics engine, the SMs or the
// driver's utilization, one of which all work keeps busy. That a single pipe was idle shows nothing. Under MIG activity
// is rolled up from the instances, and known only if all of them can be seen and report it. A GPU whose mode cannot be
// read may be in MIG mode.
func hasActivity(g *gpu.GPU) bool {
	if g.MIG.Enabled.Or(true) && readingFailed(g, gpu.ReadingMIG) {
		return false
	}

	return g.Activity.GraphicsEngine.Present() || g.Activity.SM.Present() ||
		g.Readings.Utilization.Present()
}

// showsWork reports whether any activity, media engine or traffic that is known shows that something ran.
func showsWork(g *gpu.GPU) bool {
	works := isMediaActive(g.Readings.Media) ||
		max(g.Readings.Utilization.Or(0), g.Readings.MemoryCopy.Or(0)) > idleActivity ||
		max(g.Rates.PCIeReceive.Or(0), g.Rates.PCIeTransmit.Or(0)) > idleTraffic ||
		max(g.Rates.NVLinkReceive.Or(0), g.Rates.NVLinkTransmit.Or(0)) > idleTraffic
	for d := range g.Devices() {
		works = works || isActive(&d.Activity) || d.Instance != nil && isMediaActive(d.Instance.Media)
	}

	return works
}

func isActive(a *gpu.Activity) bool {
	all := a.All()

	return slices.ContainsFunc(
		all[:],
		func(ratio *gpu.Opt[float64]) bool { return ratio.Or(0) > idleActivity },
	)
}

func isMediaActive(m gpu.Media) bool {
	return max(m.Encoder.Or(0), m.Decoder.Or(0), m.JPEG.Or(0), m.OFA.Or(0)) > idleActivity
}

// defaultIdleShare is the idle power of a GPU whose model has no default, as a share of its power limit.
const defaultIdleShare = 0.1

// defaultIdlePower returns the idle power of a GPU until it was seen idle; absent if nothing is known of it.
func defaultIdlePower(g *gpu.GPU) gpu.Opt[float64] {
	if w, ok := defaultIdleWatts(g.Name); ok {
		return gpu.Some(w)
	}

	if limit, ok := g.Readings.PowerLimitWatts.Get(); ok {
		return gpu.Some(limit * defaultIdleShare)
	}

	return gpu.None[float64]()
}

// defaultIdleWatts returns the idle power of a GPU until it was seen idle, by the first match of a part of the
// model's name. Sources: the A100 PCIe figure is a published nvidia-smi capture (34 W), that of B200 several (136 to
// 145 W); the others are what idle GPUs of that kind commonly show and are marked as defaults in the docs.
func defaultIdleWatts(name string) (float64, bool) {
	for _, d := range []struct {
		part  string
		watts float64
	}{
		{"A100-PCIE", 34}, {"A100", 52}, {"A30", 28}, {"H100 PCIe", 46}, {"H100 NVL", 60}, {"H100", 70}, {"H200", 76},
		{"RTX PRO 6000", 32}, {"NVIDIA B200", 140},
	} {
		if strings.Contains(name, d.part) {
			return d.watts, true
		}
	}

	return 0, false
}
