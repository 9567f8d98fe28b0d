package nvmlsource

import (
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// samplePool keeps all samples, to free them at the end, and by GPU those that no window uses. A
// GPU only takes samples that it has put there itself: GPUs are read concurrently, and how many
// samples a node allocates must not depend on which reading comes first.
type samplePool struct {
	mu    sync.Mutex
	spare map[gpu.UUID][]GPMSample
	all   []GPMSample
}

// take removes a spare sample of a GPU from the pool; nil if there is none.
func (p *samplePool) take(id gpu.UUID) GPMSample {
	p.mu.Lock()
	defer p.mu.Unlock()

	spare := p.spare[id]
	if len(spare) == 0 {
		return nil
	}

	last := len(spare) - 1
	p.spare[id] = spare[:last]

	return spare[last]
}

// put adds the samples of a window of a GPU to the pool.
func (p *samplePool) put(id gpu.UUID, w *window) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.spare == nil {
		p.spare = map[gpu.UUID][]GPMSample{}
	}

	for i, sample := range w.samples {
		if sample != nil {
			p.spare[id] = append(p.spare[id], sample)
		}

		w.samples[i] = nil
	}

	*w = window{}
}

// putAll adds the samples of all instances of a GPU to the pool.
func (p *samplePool) putAll(id gpu.UUID, t *tree) {
	for e := range t.entities() {
		p.put(id, &e.window)
	}
}

// spareSample takes a sample of a GPU from the pool, or allocates one.
func (s *Source) spareSample(id gpu.UUID) (GPMSample, error) {
	if sample := s.samples.take(id); sample != nil {
		return sample, nil
	}

	sample, ret := s.lib.GpmSampleAlloc()
	if err := checkReturn("nvmlGpmSampleAlloc", ret); err != nil {
		return nil, err
	}

	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()

	s.samples.all = append(s.samples.all, sample)

	return sample, nil
}

// freeSamples frees all samples. No call is under way.
func (s *Source) freeSamples() {
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()

	for _, sample := range s.samples.all {
		//nolint:errcheck // the library is shut down next
		checkReturn("nvmlGpmSampleFree", sample.Free())
	}

	s.samples.all = nil
	s.samples.spare = nil
}
