package advise

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// ServerHistory is what a history that was kept elsewhere has of an inference server.
type ServerHistory struct {
	Kind gpu.ServerKind
	// CacheUse is the largest of the cache, 0-1, known for CacheHours; CacheTokens for how many
	// tokens it has room, 0 if it does not say so.
	CacheUse, CacheHours, CacheTokens float64
	Running, Waiting                  float64 // requests, the largest numbers
	Weights                           float64 // bytes; 0 if they are not known
}

// Add adds what we know of another server of the same kind. It keeps the weights of the larger
// model, and 0 if it does not know the weights of both.
func (s *ServerHistory) Add(o *ServerHistory) {
	s.CacheUse = max(s.CacheUse, o.CacheUse)
	s.CacheHours += o.CacheHours
	s.CacheTokens = max(s.CacheTokens, o.CacheTokens)

	if s.Weights > 0 && o.Weights > 0 {
		s.Weights = max(s.Weights, o.Weights)
	} else {
		s.Weights = 0
	}

	s.Running = max(s.Running, o.Running)
	s.Waiting = max(s.Waiting, o.Waiting)
}

// AddServer adds what we know of the workload's server, by the equation of an Advisor. Starts are
// not seen, and so weights are known from annotations alone, and what is held while they are loaded
// is not.
func (f *Facts) AddServer(s *ServerHistory, o Options) {
	e := f.Evidence
	known := &ServerEvidence{
		Kind:        s.Kind,
		Reservation: e.settledBytes,
		CacheTokens: s.CacheTokens,
		AskedHours:  round3(s.CacheHours),
		CacheUse:    round3(s.CacheUse),
		Running:     s.Running,
		Waiting:     s.Waiting,
		WeightsFrom: WeightsFromAnnotation,
		reserves:    true,
	}
	known.solve(s.Weights, o.MinEvidence.Hours())
	e.Server = known
	f.Preallocated = !known.isKnown()
}
