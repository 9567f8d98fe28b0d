package gpu

// Delta is what changed from one Snapshot to a later one. Instances are compared by DeviceID: one
// that was destroyed and created again in between is in both lists.
type Delta struct {
	Appeared, Vanished []UUID // GPUs
	WentUp, WentDown   []UUID // GPUs in both Snapshots
	ModeChanged        []UUID // GPUs in both Snapshots whose MIG mode, current or pending, differs
	Created, Destroyed []InstanceChange
}

// InstanceChange is a GPU instance, or a compute instance of one, that was created or destroyed.
type InstanceChange struct {
	ID      DeviceID
	Profile string
	UUID    MIGUUID // of a compute instance
}

// Diff compares two Snapshots; before may be nil. The order of the results is that of the
// Snapshots. GPUs without a UUID are left out: the driver gives no handle for them, so they have no
// identity.
func Diff(before, after *Snapshot) Delta {
	var d Delta
	unmatched := map[UUID]*GPU{} // the GPUs of before, except those that we found in after

	if before != nil {
		for i := range before.GPUs {
			if was := &before.GPUs[i]; was.UUID != "" {
				unmatched[was.UUID] = was
			}
		}
	}

	for i := range after.GPUs {
		now := &after.GPUs[i]
		if now.UUID == "" {
			continue
		}

		was, ok := unmatched[now.UUID]
		delete(unmatched, now.UUID)

		if !ok {
			d.Appeared = append(d.Appeared, now.UUID)
			d.Created = appendMissing(d.Created, now, nil)
			continue
		}

		d.addGPUChanges(was, now)
	}

	if before == nil {
		return d
	}

	for i := range before.GPUs {
		if was := &before.GPUs[i]; unmatched[was.UUID] != nil {
			d.Vanished = append(d.Vanished, was.UUID)
			d.Destroyed = appendMissing(d.Destroyed, was, nil)
		}
	}

	return d
}

// addGPUChanges adds what changed on a GPU that both Snapshots have.
func (d *Delta) addGPUChanges(was, now *GPU) {
	switch {
	case now.Up && !was.Up:
		d.WentUp = append(d.WentUp, now.UUID)
	case !now.Up && was.Up:
		d.WentDown = append(d.WentDown, now.UUID)
	}

	if now.Up && was.Up &&
		(was.MIG.Enabled != now.MIG.Enabled || was.MIG.Pending != now.MIG.Pending) {
		d.ModeChanged = append(d.ModeChanged, now.UUID)
	}

	if was.MIG.LayoutGeneration == now.MIG.LayoutGeneration {
		return
	}

	d.Created = appendMissing(d.Created, now, was)
	d.Destroyed = appendMissing(d.Destroyed, was, now)
}

// appendMissing appends the instances of g that other, which may be nil, does not have.
func appendMissing(to []InstanceChange, g, other *GPU) []InstanceChange {
	inOther := map[DeviceID]bool{}

	if other != nil {
		for d := range other.Devices() {
			inOther[d.ID()] = true
		}
	}

	for d := range g.Devices() {
		change := InstanceChange{ID: d.ID()}
		if d.Instance == nil || inOther[change.ID] {
			continue
		}

		if d.Compute != nil {
			change.Profile = d.Compute.Profile
			change.UUID = d.Compute.UUID
		} else {
			change.Profile = d.Instance.Profile
		}

		to = append(to, change)
	}

	return to
}
