package advise

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// ServerHistory is what we know of an inference server from a history that was kept elsewhere.
type ServerHistory struct {
	Kind             gpu.ServerKind
	CacheUse         float64 // largest, 0-1
	CacheHours       float64 // for how many of them CacheUse is known
	CacheTokens      float64 // that the cache has room for; 0 if unknown
	Running, Waiting float64 // largest numbers of requests
	Weights          float64 // bytes; 0 if unknown
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

// AddServer adds what we know of the workload's server, and works out its need as an Advisor does. A
// history shows no starts: we know the weights from annotations alone, and not what is held while they
// are loaded.
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
