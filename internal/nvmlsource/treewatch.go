package nvmlsource

// A scan of the tree is some 40 calls for a GPU in seven instances. A reading leaves it out while
// the driver would report a change of the layout by an event, and nothing contradicts that; the
// slow tier always scans. If events are not delivered, or may not be, every reading scans: the GPU
// instances, and the ids and UUID of every MIG device.

// treeWatch is whether changes of a GPU's layout are reported since its last scan.
type treeWatch struct {
	set    *queueSet // that the GPU was registered with when the last scan began; nil if with none
	rescan bool      // a handle has failed, or a window of GPM made no sense: the next reading scans
	// distrust is how many changes have to be reported before readings rely on reports again, after
	// a scan has found a change that was not reported. missed is set if the last scan has found
	// one: its report may only be late.
	distrust int
	missed   bool
}

// reportsToTrust is how many changes have to be reported after one that was not.
const reportsToTrust = 3

// layoutSet returns the event set by which changes of a GPU's layout are received now; nil if they
// are not.
func (q *eventQueue) layoutSet(d Device) *queueSet {
	q.mu.Lock()
	defer q.mu.Unlock()

	set := q.set

	r := q.registrations[d]
	if set == nil || set.broken || set.released || r == nil || r.isUnderWay() || !r.reportsChanges() {
		return nil
	}

	return set
}

// mayKeepTree reports whether the last scan still holds: its changes would have been reported.
func (r *gpuRead) mayKeepTree() bool {
	t := &r.state.tree
	w := &r.state.watch

	if r.layoutOnly || r.rescans > 0 || r.mustReadAnew() {
		return false
	}

	if !r.state.static.maxDevices.Present() { // the driver may not list MIG devices yet
		return false
	}

	if !t.known || !t.scanned || t.hidden || !t.scan.listed || w.rescan || w.distrust > 0 {
		return false
	}

	return w.set != nil && w.set == r.source.queue.layoutSet(r.state.handle)
}

// mustReadAnew reports whether nothing that earlier readings have kept may be used.
func (r *gpuRead) mustReadAnew() bool {
	return r.slow || r.retryAll || r.cues.Asked || r.hasReport()
}

// hasReport reports whether a change of the GPU was reported since the last reading began.
func (r *gpuRead) hasReport() bool {
	return r.reported || gpuChange(r.state.change.Load()) != unchanged
}

// beginScan notes which event set reports changes from now on, and returns the one that was to
// report those since the last scan.
func (r *gpuRead) beginScan() (before *queueSet) {
	before = r.state.watch.set
	r.hasScanned = true
	r.state.watch.rescan = false
	r.state.watch.set = r.source.queue.layoutSet(r.state.handle)

	return before
}

// compareWithEvents compares a scan with the reports before it. If a change was not reported,
// readings do not rely on reports until several others have come, unless the missing one only turns
// out to be late.
func (r *gpuRead) compareWithEvents(set *queueSet, knewTree, changed bool) {
	w := &r.state.watch
	if r.layoutOnly || r.rescans > 0 {
		return
	}

	missed := !r.hasReport() && knewTree && changed && set != nil && set == w.set
	switch {
	case missed:
		w.distrust = reportsToTrust
	case r.hasReport() && w.missed:
		w.distrust = 0
	case r.hasReport():
		w.distrust = max(w.distrust-1, 0)
	}

	w.missed = missed
}

// wasOvertaken reports whether a change was reported while a reading used handles of an earlier
// scan: other instances may have them by now.
func (r *gpuRead) wasOvertaken() bool {
	return !r.hasScanned && gpuChange(r.state.change.Load()) != unchanged
}
