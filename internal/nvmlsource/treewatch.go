package nvmlsource

// A scan of the tree is some 40 calls for a GPU in seven instances. It is left out while the driver's events would say
// that the layout has changed, and nothing contradicts them; at the latest the slow tier scans again. Where events are
// not delivered, or may not be, every reading scans: GPU instances, and the ids and UUID of every MIG device.

// treeWatch is whether changes of a GPU's layout are reported since its last scan.
type treeWatch struct {
	set     *queueSet // that the GPU was registered with when the last scan began; nil if with none
	doubted bool      // a handle has failed, or a window of GPM made no sense: the next reading scans
	unheard bool      // a scan has found a change that no event had reported, and none was received since
}

// watchesLayout returns the set by which changes of a GPU's layout are received now, nil if they are not.
func (q *eventQueue) watchesLayout(d Device) *queueSet {
	q.mu.Lock()
	defer q.mu.Unlock()

	set, r := q.set, q.registrations[d]
	if set == nil || set.broken || set.released || r == nil || r.busy || !r.reportsChanges() {
		return nil
	}

	return set
}

// mayKeepTree reports whether the last scan still holds: its changes would have been reported.
func (r *gpuRead) mayKeepTree() bool {
	t, w := &r.state.tree, &r.state.watch
	if r.layoutOnly || r.rescans > 0 || r.mustReadAnew() {
		return false
	}
	if !r.state.static.mostMIG.Present() { // the driver may not list MIG devices yet
		return false
	}
	if !t.known || !t.scanned || t.hidden || !t.scan.listed || w.doubted || w.unheard {
		return false
	}

	return w.set != nil && w.set == r.source.queue.watchesLayout(r.dev)
}

// mustReadAnew reports whether nothing that earlier readings have kept may be used.
func (r *gpuRead) mustReadAnew() bool { return r.slow || r.retryAll || r.hasReport() }

// hasReport reports whether a change of the GPU was reported since the last reading began.
func (r *gpuRead) hasReport() bool {
	return r.reported || gpuChange(r.state.change.Load()) != unchanged
}

// beginScan notes by what changes are reported from now on.
func (r *gpuRead) beginScan() {
	r.scans = true
	r.state.watch.doubted = false
	r.state.watch.set = r.source.queue.watchesLayout(r.dev)
}

// judgeEvents compares a scan with what the events have said before it. If a change was not reported, they are trusted
// again from the next one that is.
func (r *gpuRead) judgeEvents(knewTree, changed bool) {
	w := &r.state.watch
	switch {
	case r.layoutOnly:
	case r.hasReport():
		w.unheard = false
	case knewTree && changed && w.set != nil:
		w.unheard = true
	}
}

// wasOvertaken reports whether a change was reported while a reading used handles of an earlier scan: they may be those
// of other instances by now.
func (r *gpuRead) wasOvertaken() bool {
	return !r.scans && gpuChange(r.state.change.Load()) != unchanged
}
