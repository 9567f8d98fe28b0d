package advise

// minute is the mean activity of a window.
type minute struct {
	busy, sm, dram float32
	unread         bool // SM or DRAM activity
	engines        [mediaKinds]float32
}

// addMinutes adds the means of a window of n minutes, and of one minute if n is 0. Windows are longer
// than a minute if polls are further apart, and shorter if the holder changes.
func (d *device) addMinutes(n int, m minute) {
	for range min(max(n, 1), len(d.last10)) {
		d.last10[d.count%len(d.last10)] = m
		d.count++
	}
}

// lastTenMinutes returns the means over the last ten minutes. Minutes before the holder came count as
// idle.
func (d *device) lastTenMinutes() minute {
	var mean minute

	for i := range d.last10 {
		m := &d.last10[i]
		mean.busy += m.busy
		mean.sm += m.sm
		mean.dram += m.dram
		mean.unread = mean.unread || m.unread

		for kind, busy := range m.engines {
			mean.engines[kind] += busy
		}
	}

	n := float32(len(d.last10))

	mean.busy /= n
	mean.sm /= n
	mean.dram /= n

	for kind := range mean.engines {
		mean.engines[kind] /= n
	}

	return mean
}
