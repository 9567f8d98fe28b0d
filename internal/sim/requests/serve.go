package requests

import (
	"math"
	"math/rand/v2"
)

// served is what a kind does on the device: how many times longer it takes than on the whole GPU,
// the SMs at work and the bandwidth drawn meanwhile.
type served struct {
	slow, sms, bandwidth float64
}

// server serves requests on a device.
type server struct {
	load            *Load
	served          []served // by kind
	shares          float64
	kinds, services *rand.Rand
	source          source
	time, interval  float64
	result          Result
}

// request is one that has arrived.
type request struct {
	arrived float64
	kind    int
	service float64 // on the whole GPU
	left    int     // steps
}

// next takes the next arrival and draws what it is.
func (s *server) next() request {
	r := request{arrived: s.source.peek()}
	s.source.pop()

	pick := s.kinds.Float64() * s.shares
	for r.kind = range s.load.Kinds {
		if pick -= s.load.Kinds[r.kind].Share; pick < 0 {
			break
		}
	}

	r.service = s.load.Kinds[r.kind].Service.draw(s.services)

	return r
}

// answer ends a request.
func (s *server) answer(r *request, at float64) {
	s.result.Latencies = append(s.result.Latencies, at-r.arrived)
	if at <= s.time {
		s.result.Throughput++
	}

	s.source.answered(at)
}

// serveInTurn serves one request after the other.
func (s *server) serveInTurn() {
	free := 0.

	for !math.IsInf(s.source.peek(), 1) {
		r := s.next()
		begin := max(free, r.arrived)
		free = begin + r.service*s.served[r.kind].slow
		s.work(begin, free, s.served[r.kind])
		s.answer(&r, free)
	}
}

// serveBatches serves requests together.
func (s *server) serveBatches() {
	var batch []request
	for now := 0.; ; {
		if next := s.source.peek(); len(batch) == 0 {
			if math.IsInf(next, 1) {
				return
			}

			now = max(now, next)
		}

		for len(batch) < s.load.Batch && s.source.peek() <= now {
			r := s.next()
			r.left = max(1, int(math.Ceil(r.service/s.load.Step-1e-9)))
			batch = append(batch, r)
		}

		end, of := s.step(now, batch)
		s.work(now, end, of)
		now = end
		kept := batch[:0]

		for i := range batch {
			if batch[i].left--; batch[i].left > 0 {
				kept = append(kept, batch[i])
			} else {
				s.answer(&batch[i], now)
			}
		}

		batch = kept
	}
}

// step returns the end of a step of a batch, and what the device does in it: the mean of what the
// requests do.
func (s *server) step(now float64, batch []request) (end float64, mean served) {
	n := float64(len(batch))
	for i := range batch {
		of := s.served[batch[i].kind]
		mean.slow += of.slow / n
		mean.sms += of.sms / n
		mean.bandwidth += of.bandwidth / n
	}

	return now + s.load.Step*mean.slow*(1+s.load.Growth*(n-1)), mean
}

// work adds a time in which the device is busy to the intervals.
func (s *server) work(from, to float64, of served) {
	for i := int(from / s.interval); i < len(s.result.Intervals); i++ {
		begin := float64(i) * s.interval
		end := min(float64(i+1)*s.interval, s.time)

		if begin >= to {
			return
		}

		if worked := min(end, to) - max(begin, from); worked > 0 {
			v := &s.result.Intervals[i]
			v.Busy += worked
			v.SMs += worked * of.sms
			v.Bandwidth += worked * of.bandwidth
		}
	}
}
