package poll

import "time"

// call runs one function at a time, in a goroutine that may never return when a driver hangs. It is owned by the loop's
// goroutine; an abandoned function leaves its result in the buffer and ends by itself.
type call[T any] struct {
	done    chan result[T]
	started time.Time // by the loop's clock
	running bool
}

type result[T any] struct {
	value   T
	err     error
	started time.Time // by the loop's clock; take sets it
}

// start runs f unless an earlier one has not returned yet, and reports whether it did.
func (c *call[T]) start(now time.Time, f func() (T, error)) bool {
	if c.running {
		return false
	}
	if c.done == nil {
		c.done = make(chan result[T], 1)
	}
	c.running, c.started = true, now
	done := c.done
	go func() {
		v, err := f()
		done <- result[T]{value: v, err: err}
	}()
	return true
}

// take returns the result if there is one. It waits for it until expired delivers; a nil expired means not at all.
func (c *call[T]) take(expired <-chan struct{}) (result[T], bool) {
	if !c.running {
		return result[T]{}, false
	}
	select {
	case r := <-c.done:
		return c.end(r), true
	default:
	}
	if expired == nil {
		return result[T]{}, false
	}
	select {
	case r := <-c.done:
		return c.end(r), true
	case <-expired:
		return result[T]{}, false
	}
}

func (c *call[T]) end(r result[T]) result[T] {
	c.running = false
	r.started = c.started
	return r
}

// hung reports whether the running function has been at it for longer than limit.
func (c *call[T]) hung(now time.Time, limit time.Duration) bool {
	return c.running && now.Sub(c.started) >= limit
}
