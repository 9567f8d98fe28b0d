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
)

// checkpointHeader is the first line of a checkpoint, with the version of what follows: a compressed gob of Checkpoint.
const checkpointHeader = "mig-exporter right-sizing evidence, version 1\n"

// ErrNotThisNode says that a checkpoint is of another node.
var ErrNotThisNode = errors.New("checkpoint of another node")

// Checkpoint is a copy of the evidence of an Advisor. Devices are not in it: they are found again in the next Snapshot.
type Checkpoint struct {
	Node      string
	Time      time.Time
	Workloads []workload
}

// Checkpoint copies the evidence, so that it can be written while the Advisor goes on.
func (a *Advisor) Checkpoint() *Checkpoint {
	c := &Checkpoint{Node: a.node, Time: a.now, Workloads: make([]workload, 0, len(a.workloads))}
	for _, w := range a.workloads {
		c.Workloads = append(c.Workloads, *w)
	}
	return c
}

// Write encodes the evidence, in the order of its keys.
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

// Restore takes over the evidence that was written on this node. If it returns an error the Advisor has not changed.
func (a *Advisor) Restore(from io.Reader, node string) error {
	r := bufio.NewReader(from)
	header, err := r.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(header, []byte(checkpointHeader)) {
		return fmt.Errorf("begins with %.60q; expected %q", header, checkpointHeader)
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("read the evidence: %w", err)
	}
	var c Checkpoint
	if err := gob.NewDecoder(io.LimitReader(z, maxCheckpoint)).Decode(&c); err != nil {
		return fmt.Errorf("decode the evidence: %w", err)
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(z, maxCheckpoint)); err != nil {
		return fmt.Errorf("read the evidence: %w", err) // the checksum is at the end
	}
	if c.Node != node {
		return fmt.Errorf("%w: of %q; expected %q", ErrNotThisNode, c.Node, node)
	}
	workloads := make(map[Key]*workload, len(c.Workloads))
	for i := range c.Workloads {
		w := &c.Workloads[i]
		if err := w.validate(); err != nil {
			return fmt.Errorf("workload %q of %q: %w", w.Key.Owner, w.Key.Namespace, err)
		}
		workloads[w.Key] = w
	}
	a.workloads, a.node = workloads, node
	return nil
}

// maxCheckpoint bounds what is read, in bytes: three times what maxWorkloads take.
const maxCheckpoint = 64 << 20

// validate reports numbers that no Advisor writes.
func (w *workload) validate() error {
	numbers := []float64{w.Observed, w.NextSince, w.MemoryUnread, w.MediaUnread, w.ActivityUnread, w.Throttled,
		float64(w.FirstMemory), w.Before.Width, w.Before.Bandwidth}
	for _, h := range []*histogram{&w.Busy, &w.Width, &w.Bandwidth, &w.Power} {
		numbers = append(numbers, float64(h.Max), h.total())
		for _, weight := range h.Weights {
			if !(weight >= 0) {
				return fmt.Errorf("a histogram has the weight %v; expected 0 or more", weight)
			}
		}
	}
	for _, d := range w.Days {
		for _, v := range []float32{d.Observed, d.Held, d.Memory, d.Busy10, d.PCIe, d.MinWidth, d.MinBandwidth} {
			numbers = append(numbers, float64(v))
		}
	}
	for _, v := range numbers {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("has the value %v; expected a finite number, 0 or more", v)
		}
	}
	return nil
}
