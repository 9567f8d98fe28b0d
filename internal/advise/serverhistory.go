package advise

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// ServerHistory is what we know of an inference server from a history that was kept elsewhere.
type ServerHistory struct {
	Kind             gpu.ServerKind
	CacheUse         float64 // largest, 0-1
	HeldHours        float64 // for how long its pod held the GPU
	CacheHours       float64 // for how many of them the use of the cache is known
	CacheTokens      float64 // that the cache has room for; 0 if unknown
	Running, Waiting float64 // largest numbers of requests
	Weights          float64 // bytes; 0 if unknown

	others []serverHours // of the servers that were added
}

// serverHours are HeldHours and CacheHours of one server.
type serverHours struct{ held, asked float64 }

// hours returns the hours of the server without those that were added.
func (s *ServerHistory) hours() serverHours {
	return serverHours{s.HeldHours, min(s.CacheHours, s.HeldHours)}
}

// Add adds what we know of another server of the same kind. It keeps the weights of the larger
// model, and 0 if it does not know the weights of both.
func (s *ServerHistory) Add(o *ServerHistory) {
	s.CacheUse = max(s.CacheUse, o.CacheUse)
	s.others = append(s.others, o.hours())
	s.CacheTokens = max(s.CacheTokens, o.CacheTokens)

	if s.Weights > 0 && o.Weights > 0 {
		s.Weights = max(s.Weights, o.Weights)
	} else {
		s.Weights = 0
	}

	s.Running = max(s.Running, o.Running)
	s.Waiting = max(s.Waiting, o.Waiting)
}

// addUp returns the hours of all servers, and for which share of the held time the use of the cache is not
// known: of the most silent server, or of all together if that is more. See reserve.silence.
func (s *ServerHistory) addUp(minHours float64) (all serverHours, silent float64) {
	for _, h := range append([]serverHours{s.hours()}, s.others...) {
		all.held += h.held
		all.asked += h.asked
		silent = max(silent, silentShare(h.held, h.asked, minHours))
	}

	return all, max(silent, silentShare(all.held, all.asked, minHours))
}

// AddServer adds what we know of the workload's server, and works out its need as an Advisor does. A
// history shows no starts: we know the weights from annotations alone, and not what is held while they
// are loaded.
func (f *Facts) AddServer(s *ServerHistory, o Options) {
	e := f.Evidence
	hours, silent := s.addUp(o.MinEvidence.Hours())
	known := &ServerEvidence{
		Kind:        s.Kind,
		Reservation: e.settledBytes,
		CacheTokens: s.CacheTokens,
		AskedHours:  round3(hours.asked),
		CacheUse:    round3(s.CacheUse),
		Running:     s.Running,
		Waiting:     s.Waiting,
		WeightsFrom: WeightsFromAnnotation,
		reserves:    true,
		silent:      silent,
		least:       o.MinEvidence.Hours(),
		remedy:      "check that Prometheus scrapes the pods of the servers all the time",
	}
	known.solve(s.Weights, o.MinEvidence.Hours())
	e.Server = known
	f.Preallocated = !known.isKnown()
}
