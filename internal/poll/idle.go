package poll

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// idlePower estimates a GPU's idle power: the lowest power after quietWindows windows in a row in
// which nothing ran, or until then a default for the model.
//
// A window is the time between two readings. Nothing ran in it if we can see work on the whole GPU
// (hasActivity), and no activity, no media engine and no traffic shows any. We do not look at the
// processes: their list can be empty because they are hidden, and a service that waits for requests
// has a process although nothing runs.
type idlePower struct {
	lowest         gpu.Opt[float64] // in watts
	lowestEvidence evidence         // the evidence when we measured lowest

	lastEvidence evidence // of the last reading that had activity
	sameEvidence int      // how many readings in a row have had lastEvidence
	quiet        int      // how many windows in a row, up to the last one, had no work

	rest energyWindow // the time in which nothing runs, if power comes from the energy counter

	windowEnd time.Time               // of the last window that we counted, or that showed work
	readAt    time.Time               // the last reading
	traffic   [4]gpu.Opt[gpu.Counter] // the totals at readAt
}

// evidence is how we could see whether anything ran. With another source or other permissions we
// may see work that we did not see before. In MIG mode a GPU has another idle power.
type evidence struct {
	mig    gpu.Opt[bool]      // the GPU is in MIG mode
	source gpu.ActivitySource // ActivityUnknown: the driver's own utilization
	denied string             // the readings for which this process lacks permission, joined by spaces
	sensor bool               // the driver measures power; false: we derive it from the energy counter
}

// quietWindows is how many windows in a row must be without work before we take the power as idle:
// power is a mean over up to a second, and may include work from before the first of them.
const quietWindows = 2

// leastWindow is the shortest time that counts as a window: two of them are as long as that mean.
const leastWindow = 500 * time.Millisecond

// changedAfter is how many readings in a row must have other evidence before we drop the lowest
// power: a single one may lack a source that is just restarting.
const changedAfter = 2

// More than this is work. Monitoring alone moves some bytes and wakes the engines.
const (
	idleActivity = 0.001   // share of the time
	idleTraffic  = 1 << 20 // bytes per second; GPM reports rates in this unit
)

// update records the reading of the time at, whose activity was measured until windowEnd. It
// returns the idle power; absent if we know nothing about it. totals has the traffic until the
// reading.
func (p *idlePower) update(
	g *gpu.GPU,
	totals *gpu.Totals,
	at, windowEnd time.Time,
) gpu.Opt[float64] {
	moved := p.measureTraffic(totals, at)
	p.compareEvidence(g)
	p.countQuiet(moved || !hasActivity(g) || showsWork(g), windowEnd)

	if watts, ok := p.measureRest(g).Get(); ok && watts > 0 {
		p.lowest = gpu.Some(min(watts, p.lowest.Or(watts)))
		p.lowestEvidence = p.lastEvidence
	}

	if p.lowest.Present() {
		return p.lowest
	}

	return defaultIdlePower(g)
}

// compareEvidence restarts the count of windows if a reading has other evidence than the last one,
// and drops the lowest power once changedAfter readings in a row had. It ignores readings without
// activity.
func (p *idlePower) compareEvidence(g *gpu.GPU) {
	if !hasActivity(g) {
		return
	}

	if now := evidenceOf(g); now != p.lastEvidence {
		p.lastEvidence = now
		p.sameEvidence = 0
		p.quiet = 0
	}

	p.sameEvidence++
	if p.lastEvidence != p.lowestEvidence && p.sameEvidence >= changedAfter {
		p.lowest = gpu.None[float64]()
	}
}

// countQuiet counts the windows without work. Several readings can have the same window, if the
// profiler answers or the driver updates its values less often than we read: we count it once.
func (p *idlePower) countQuiet(worked bool, windowEnd time.Time) {
	since := windowEnd.Sub(p.windowEnd)
	switch {
	case worked:
		p.quiet = 0
	case since >= 0 && since < leastWindow:
		return // the window has not ended
	default:
		p.quiet++
	}

	p.windowEnd = windowEnd
}

// interrupt restarts the count of windows: we do not know what runs until the next reading.
func (p *idlePower) interrupt() {
	p.quiet = 0
	p.rest = energyWindow{}
}

// measureTraffic reports whether the GPU has transferred more since the last reading than
// monitoring alone does.
func (p *idlePower) measureTraffic(totals *gpu.Totals, at time.Time) bool {
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

// hasActivity reports whether we can see if anything ran on the whole GPU: by the graphics engine,
// the SMs or the driver's utilization, since all work keeps one of them busy. The other ratios do
// not suffice: a GPU can work without its tensor cores, for example. In MIG mode the activity is
// computed from the instances, and present only if we see all of them and all report it. If we
// cannot read the mode of a GPU, it may be in MIG mode.
func hasActivity(g *gpu.GPU) bool {
	if g.MIG.Enabled.Or(true) && readingFailed(g, gpu.ReadingMIG) {
		return false
	}

	return g.Activity.GraphicsEngine.Present() || g.Activity.SM.Present() ||
		g.Readings.Utilization.Present()
}

// showsWork reports whether any activity, media engine or traffic shows that something ran.
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

// defaultIdleShare is the share of its power limit that a GPU draws while idle if its model has no
// default.
const defaultIdleShare = 0.1

// defaultIdlePower returns the idle power that we assume until we have seen the GPU idle; absent if
// we know neither its model nor its power limit.
func defaultIdlePower(g *gpu.GPU) gpu.Opt[float64] {
	if w, ok := defaultIdleWatts(g.Name); ok {
		return gpu.Some(w)
	}

	if limit, ok := g.Readings.PowerLimitWatts.Get(); ok {
		return gpu.Some(limit * defaultIdleShare)
	}

	return gpu.None[float64]()
}

// defaultIdleWatts returns the default idle power of a model, by the first entry that its name
// contains. The A100 PCIe's figure is from a published nvidia-smi capture (34 W), the B200's from
// several (136 to 145 W). The others are what idle GPUs of that kind commonly show; the docs call
// them defaults.
func defaultIdleWatts(name string) (float64, bool) {
	for _, d := range []struct {
		namePart string
		watts    float64
	}{
		{"A100-PCIE", 34},
		{"A100", 52},
		{"A30", 28},
		{"H100 PCIe", 46},
		{"H100 NVL", 60},
		{"H100", 70},
		{"H200", 76},
		{"RTX PRO 6000", 32},
		{"NVIDIA B200", 140},
	} {
		if strings.Contains(name, d.namePart) {
			return d.watts, true
		}
	}

	return 0, false
}
