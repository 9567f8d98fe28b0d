package requests

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Arrivals are when requests arrive. If Clients is 0, the loop is open: requests arrive by Rates
// whatever becomes of the earlier ones.
type Arrivals struct {
	// Rates are requests per second in successive times of Bin each; after the last they begin
	// again. Within one, arrivals are a Poisson process.
	Rates []float64
	Bin   float64
	Burst Burst
	// Clients each send a request, wait for the answer, and think for an exponential time of mean
	// Think before the next.
	Clients int
	Think   float64
}

// Burst has two states that alternate, which makes a Poisson process a Markov-modulated one. The
// mean rate stays what it is. The zero value changes nothing.
type Burst struct {
	Factor   float64 // the rate within bursts over the rate between them
	Within   float64 // mean length of a burst
	Between  float64 // mean time between two
	relative [2]float64
}

// Poisson returns arrivals with a steady rate.
func Poisson(rate float64) Arrivals { return Arrivals{Rates: []float64{rate}, Bin: 1} }

// Trace returns arrivals with the rates of a trace.
func Trace(rates []float64, bin float64) Arrivals { return Arrivals{Rates: rates, Bin: bin} }

// Closed returns arrivals of a closed loop.
func Closed(clients int, think float64) Arrivals { return Arrivals{Clients: clients, Think: think} }

// source yields arrivals in their order.
type source interface {
	// peek returns the time of the next arrival that is known; infinity if there is none.
	peek() float64
	pop()
	// answered says that a request was answered.
	answered(at float64)
}

func (a Arrivals) source(seed uint64, end float64) source {
	if a.Clients > 0 {
		c := &closedLoop{think: a.Think, end: end, random: rand.New(rand.NewPCG(seed, 3))}
		for range a.Clients {
			c.answered(0)
		}

		return c
	}

	o := &openLoop{
		Arrivals: a,
		end:      end,
		random:   rand.New(rand.NewPCG(seed, 3)),
		states:   rand.New(rand.NewPCG(seed, 4)),
	}
	o.stateEnd = math.Inf(1)
	o.Burst.relative = [2]float64{1, 1}

	if b := &o.Burst; b.Factor > 0 {
		calm := (b.Within + b.Between) / (b.Within*b.Factor + b.Between)
		b.relative = [2]float64{calm, calm * b.Factor}
		o.stateEnd = b.Between * o.states.ExpFloat64()
	}

	o.pop()

	return o
}

// openLoop is a Poisson process whose rate changes with the bins and the bursts.
type openLoop struct {
	Arrivals
	random, states *rand.Rand
	now, end       float64
	bin            int
	state          int
	stateEnd       float64
}

func (o *openLoop) peek() float64    { return o.now }
func (o *openLoop) answered(float64) {}

// pop moves on to the next arrival: the integral of the rate between two has an exponential
// distribution of mean 1.
func (o *openLoop) pop() {
	left := o.random.ExpFloat64()
	for o.now < o.end {
		binEnd := float64(o.bin+1) * o.Bin
		rate := o.Rates[o.bin%len(o.Rates)] * o.Burst.relative[o.state]
		until := min(binEnd, o.stateEnd)

		expected := rate * (until - o.now)
		if left < expected {
			o.now += left / rate
			break
		}

		left -= expected
		o.now = until

		if until == binEnd {
			o.bin++
		}

		if until == o.stateEnd {
			o.state = 1 - o.state
			o.stateEnd += [2]float64{o.Burst.Between, o.Burst.Within}[o.state] * o.states.ExpFloat64()
		}
	}

	if o.now >= o.end {
		o.now = math.Inf(1)
	}
}

// closedLoop has when each client that thinks sends its next request, the earliest last.
type closedLoop struct {
	think, end float64
	random     *rand.Rand
	next       []float64
}

func (c *closedLoop) peek() float64 {
	if len(c.next) == 0 {
		return math.Inf(1)
	}

	return c.next[len(c.next)-1]
}

func (c *closedLoop) pop() { c.next = c.next[:len(c.next)-1] }

func (c *closedLoop) answered(at float64) {
	next := at + c.think*c.random.ExpFloat64()
	if next >= c.end {
		return
	}

	place, _ := slices.BinarySearchFunc(
		c.next,
		next,
		func(other, next float64) int { return cmp.Compare(next, other) },
	)
	c.next = slices.Insert(c.next, place, next)
}
