package requests

import (
	"math"
	"math/rand/v2"
)

// served is what the device does while it serves a kind of requests.
type served struct {
	slowdown  float64 // how many times as long it takes as the whole GPU
	sms       float64 // how many SMs work meanwhile
	bandwidth float64 // the share of the whole GPU's bandwidth that is drawn meanwhile
}

// server serves requests on a device.
type server struct {
	load            *Load
	served          []served   // by kind
	shares          float64    // the sum of Kind.Share
	kinds, services *rand.Rand // for the kind and for the service time of each request
	source          source
	time, interval  float64 // see Run
	result          Result
}

// request is a request that has arrived.
type request struct {
	arrived float64
	kind    int     // index of Load.Kinds
	service float64 // the time that the whole GPU takes for it
	left    int     // how many steps it still needs in a batch
}

// next takes the next arrival, and draws its kind and its service time.
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
		free = begin + r.service*s.served[r.kind].slowdown
		s.work(begin, free, s.served[r.kind])
		s.answer(&r, free)
	}
}

// serveBatches serves requests by continuous batching: see Load.Batch.
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

		end, mean := s.step(now, batch)
		s.work(now, end, mean)
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

// step returns when a step of a batch ends, and what the device does in it: the mean over the
// requests.
func (s *server) step(now float64, batch []request) (end float64, mean served) {
	n := float64(len(batch))
	for i := range batch {
		one := s.served[batch[i].kind]
		mean.slowdown += one.slowdown / n
		mean.sms += one.sms / n
		mean.bandwidth += one.bandwidth / n
	}

	return now + s.load.Step*mean.slowdown*(1+s.load.Growth*(n-1)), mean
}

// work adds a period in which the device is busy to the intervals that it touches.
func (s *server) work(from, to float64, what served) {
	for i := int(from / s.interval); i < len(s.result.Intervals); i++ {
		begin := float64(i) * s.interval
		end := min(float64(i+1)*s.interval, s.time)

		if begin >= to {
			return
		}

		if worked := min(end, to) - max(begin, from); worked > 0 {
			v := &s.result.Intervals[i]
			v.Busy += worked
			v.SMs += worked * what.sms
			v.Bandwidth += worked * what.bandwidth
		}
	}
}
