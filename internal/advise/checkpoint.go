package advise

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// checkpointHeader is the first line of a checkpoint, with the version of what follows: a
// compressed gob of Checkpoint.
const checkpointHeader = "mig-exporter right-sizing evidence, version 1\n"

// Checkpoint is a copy of the evidence of an Advisor. It has no devices: the next Snapshot shows them.
type Checkpoint struct {
	Node      string
	GPUs      []gpu.UUID // of the node
	Time      time.Time
	Unshifted time.Duration // see Advisor.unshifted
	Workloads []workload
	Down      []downSeen // none in evidence of older versions
	dropped   []error
}

// Checkpoint copies the evidence, so that it can be written while the Advisor goes on.
func (a *Advisor) Checkpoint() *Checkpoint {
	c := &Checkpoint{
		Node:      a.node,
		GPUs:      slices.Clone(a.gpus),
		Time:      a.now,
		Unshifted: a.unshifted,
		Workloads: make([]workload, 0, len(a.workloads)),
		Down:      slices.Clone(a.down),
	}

	open := map[*workload][]*starting{}

	for _, d := range a.order {
		c.Down = d.appendDown(c.Down, a.now)

		if d.start.open {
			open[d.workload] = append(open[d.workload], &d.start)
		}
	}

	for _, original := range a.workloads {
		w := *original
		w.Pods = slices.Clone(w.Pods)
		w.Engines = slices.Clone(w.Engines)
		w.Queues = slices.Clone(w.Queues)
		w.Reserve = w.Reserve.copy()
		w.Starts = w.Starts.copy()

		for _, s := range open[original] {
			s.raise(&w) // it has no starts that go on
		}

		c.Workloads = append(c.Workloads, w)
	}

	return c
}

// copyOf returns a copy of what a pointer points to; nil of nil.
func copyOf[T any](p *T) *T {
	if p == nil {
		return nil
	}

	v := *p

	return &v
}

// Write encodes the evidence. It orders the workloads by key, so that the same evidence gives the same
// bytes.
func (c *Checkpoint) Write(to io.Writer) error {
	slices.SortFunc(c.Workloads, func(x, y workload) int { return x.Key.compare(y.Key) })

	if _, err := io.WriteString(to, checkpointHeader); err != nil {
		return err
	}

	z := gzip.NewWriter(to)
	if err := gob.NewEncoder(z).Encode(c); err != nil {
		return fmt.Errorf("encode the evidence: %w", err)
	}

	return z.Close()
}

// ReadCheckpoint reads what Write wrote. It leaves out the workloads that are invalid.
func ReadCheckpoint(from io.Reader) (*Checkpoint, error) {
	r := bufio.NewReader(from)

	header, err := r.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(header, []byte(checkpointHeader)) {
		return nil, fmt.Errorf("begins with %.60q; expected %q", header, checkpointHeader)
	}

	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read the evidence: %w", err)
	}

	var c Checkpoint
	if err := gob.NewDecoder(io.LimitReader(z, maxCheckpoint)).Decode(&c); err != nil {
		return nil, fmt.Errorf("decode the evidence: %w", err)
	}

	// gzip compares its checksum at the end.
	if _, err := io.Copy(io.Discard, io.LimitReader(z, maxCheckpoint)); err != nil {
		return nil, fmt.Errorf("read the evidence: %w", err)
	}

	c.Workloads = slices.DeleteFunc(c.Workloads, func(w workload) bool {
		err := w.validate(c.Time)
		if err != nil {
			c.dropped = append(
				c.dropped,
				fmt.Errorf("workload %.100q of namespace %.100q, container %.100q: %w",
					w.Key.Owner, w.Key.Namespace, w.Key.Container, err),
			)
		}

		return err != nil
	})

	return &c, nil
}

// Dropped returns an error for each workload that ReadCheckpoint has left out.
func (c *Checkpoint) Dropped() []error { return c.dropped }

// IsOf reports whether the evidence comes from the node of a Snapshot, and whether we can know that: not
// as long as the Snapshot has no GPU. It does if the node has a GPU that the evidence names, or if both
// have the same name and that is the name of a Kubernetes node. A host name alone says nothing: a pod
// has another one after each restart, and all machines of one image can have the same.
func (c *Checkpoint) IsOf(s *gpu.Snapshot, isNodeName bool) (same, known bool) {
	for i := range s.GPUs {
		known = known || s.GPUs[i].UUID != ""
	}

	return known && (c.HasGPUOf(s) || isNodeName && c.Node == s.Hostname), known
}

// HasGPUOf reports whether the node of the evidence had a GPU that the node of a Snapshot has.
func (c *Checkpoint) HasGPUOf(s *gpu.Snapshot) bool {
	return slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool {
		return g.UUID != "" && slices.Contains(c.GPUs, g.UUID)
	})
}

// Restore takes over the evidence. Call it before anything is observed of a GPU, and do not use the
// Checkpoint any more.
func (a *Advisor) Restore(c *Checkpoint) {
	// We copy each workload: a pointer into the slice would keep the memory of all.
	for _, w := range c.Workloads {
		w.Reserve.startAnew()
		w.restoreUnread()
		a.workloads[w.Key] = &w
	}

	a.down = c.Down
	a.node = c.Node
	a.gpus = slices.Clone(c.GPUs)
	a.now = c.Time
	a.unshifted = c.Unshifted
	a.restored = true
}

// maxCheckpoint bounds the bytes that ReadCheckpoint reads: three times what maxWorkloads take.
const maxCheckpoint = 64 << 20

// maxStarts bounds the starts that evidence has seen: one more of them has a number.
const maxStarts = 1 << 30

// validate returns an error about a value that no Advisor can have written at a time.
func (w *workload) validate(at time.Time) error {
	for _, t := range []time.Time{w.First, w.Last, w.Reference} {
		if t.IsZero() {
			return errors.New("has no time")
		}

		if t.After(at) {
			return fmt.Errorf(
				"has the time %s, after that of the evidence, %s",
				t.Format(time.RFC3339),
				at.Format(time.RFC3339),
			)
		}
	}

	for i := range w.Engines {
		if u := &w.Engines[i]; u.Kind >= mediaKinds || w.engineOf(int(u.Kind)) != u {
			return fmt.Errorf(
				"has the media engines %d; expected 0 to %d, each once",
				u.Kind,
				mediaKinds-1,
			)
		}
	}

	for i := range w.Queues {
		if u := &w.Queues[i]; w.queueOf(int(u.SMs), int(u.MemorySlices)) != u {
			return fmt.Errorf(
				"has the queue of %d SMs and %d memory slices twice",
				u.SMs,
				u.MemorySlices,
			)
		}
	}

	for _, h := range w.histograms() {
		for _, weight := range h.Weights {
			if !(weight >= 0) { // NaN, too
				return fmt.Errorf("a histogram has the weight %v; expected 0 or more", weight)
			}
		}
	}

	for _, l := range w.Starts.kinds() {
		if l.Seen > maxStarts {
			return fmt.Errorf("has seen %d starts; expected %d at most", l.Seen, maxStarts)
		}
	}

	for _, v := range w.numbers() {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("has the value %v; expected a finite number, 0 or more", v)
		}
	}

	return nil
}

// histograms returns all histograms of a workload.
func (w *workload) histograms() []*histogram {
	list := []*histogram{&w.Busy, &w.Width, &w.Bandwidth, &w.Power}
	for i := range w.Engines {
		list = append(list, &w.Engines[i].Busy)
	}

	return list
}

// numbers returns the numbers of a workload that must be finite and not negative. Weights of histograms
// are in it as their sum.
func (w *workload) numbers() []float64 {
	list := []float64{
		w.Observed,
		float64(w.NextSince),
		float64(w.FirstMemory),
		float64(w.Before.Width),
		float64(w.Before.Bandwidth),
	}

	for _, seconds := range w.weightedSeconds() {
		list = appendNumbers(list, *seconds)
	}

	for _, h := range w.histograms() {
		list = append(list, float64(h.Max), h.total())
	}

	for i := range w.Engines {
		list = appendNumbers(list, w.Engines[i].Days[:]...)
	}

	for i := range w.Queues {
		u := &w.Queues[i]
		list = appendNumbers(list, u.Passed)

		for _, s := range u.Spans {
			h := &s.Hour
			list = appendNumbers(list, s.Work, s.Lost, h.Load, h.Busy, h.Share, h.Met, h.Rough, h.Run, h.Wait, h.Slow,
				h.PollVariance, h.MinuteVariance)
		}
	}

	for _, d := range w.Days {
		list = appendNumbers(list, d.Observed, d.Held, d.Memory, d.Settled, d.Busy10, d.PCIe, d.MinWidth,
			d.MinBandwidth, d.Sampled)
	}

	s := &w.Starts
	list = appendNumbers(list, s.Least)

	for _, v := range s.Versions {
		list = appendNumbers(list, v.Peak, v.Level)
	}

	for _, l := range s.kinds() {
		list = append(list, float64(l.Seen))
		list = appendNumbers(list, l.Peaks[:]...)
		list = appendNumbers(list, l.Levels[:]...)
		list = append(list, l.Loads.numbers()...)
	}

	return append(list, w.Reserve.numbers()...)
}

// appendNumbers appends numbers of a smaller type.
func appendNumbers(list []float64, numbers ...float32) []float64 {
	for _, v := range numbers {
		list = append(list, float64(v))
	}

	return list
}
