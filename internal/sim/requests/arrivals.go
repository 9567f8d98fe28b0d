package requests

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Arrivals say when requests arrive. If Clients is 0, the loop is open: requests arrive by Rates,
// whether or not earlier requests were answered.
type Arrivals struct {
	// Rates are requests per second in successive bins of Bin seconds; after the last bin they begin
	// again. Within a bin, arrivals are a Poisson process.
	Rates []float64
	Bin   float64
	Burst Burst
	// Clients is how many clients each send a request, wait for the answer, and think before the next.
	// They think for exponentially distributed times with the mean Think.
	Clients int
	Think   float64
}

// Burst lets the rate alternate between bursts and calm times, which makes a Poisson process a
// Markov-modulated one. The mean rate stays the same. The zero Burst changes nothing.
type Burst struct {
	Factor   float64    // the rate in a burst, relative to the rate between bursts
	Within   float64    // mean length of a burst
	Between  float64    // mean time between two bursts
	relative [2]float64 // the rate relative to the mean rate, between bursts and in one
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
	// pop removes the arrival that peek returns.
	pop()
	// answered tells the source that a request was answered: in a closed loop its client goes on.
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
	random, states *rand.Rand // for arrivals and for the lengths of bursts
	now, end       float64    // the next arrival, and when arrivals end
	bin            int
	state          int // 1 in a burst, 0 between bursts: see Burst.relative
	stateEnd       float64
}

func (o *openLoop) peek() float64    { return o.now }
func (o *openLoop) answered(float64) {}

// pop moves on to the next arrival. The integral of the rate from one arrival to the next has an
// exponential distribution with mean 1: left is how much of it remains.
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

// closedLoop is a number of clients of which each waits for its answer.
type closedLoop struct {
	think, end float64
	random     *rand.Rand
	next       []float64 // when each client that thinks sends its next request, the earliest last
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

	i, _ := slices.BinarySearchFunc(
		c.next,
		next,
		func(other, next float64) int { return cmp.Compare(next, other) },
	)
	c.next = slices.Insert(c.next, i, next)
}
