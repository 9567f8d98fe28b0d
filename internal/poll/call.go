package poll

import "time"

// asyncCall runs one function at a time in a goroutine of its own, which never ends if the driver
// hangs. Only the loop's goroutine may use it. If the loop stops waiting for the result, the
// goroutine can still end: the channel has room for the result.
type asyncCall[T any] struct {
	done    chan callResult[T]
	started time.Time // by the loop's clock
	running bool
}

type callResult[T any] struct {
	value   T
	err     error
	started time.Time // by the loop's clock; receive sets it
}

// start starts f and reports whether it did. It does not while an earlier function has not returned
// or we have not received its result.
func (c *asyncCall[T]) start(now time.Time, f func() (T, error)) bool {
	if c.running {
		return false
	}

	if c.done == nil {
		c.done = make(chan callResult[T], 1)
	}

	c.running = true
	c.started = now
	done := c.done
	go func() {
		v, err := f()
		done <- callResult[T]{value: v, err: err}
	}()

	return true
}

// receive waits for the result until expired is closed, and returns it if there is one. With a nil
// expired it does not wait.
func (c *asyncCall[T]) receive(expired <-chan struct{}) (callResult[T], bool) {
	if !c.running {
		return callResult[T]{}, false
	}

	select {
	case r := <-c.done:
		return c.finish(r), true
	default:
	}

	if expired == nil {
		return callResult[T]{}, false
	}

	select {
	case r := <-c.done:
		return c.finish(r), true
	case <-expired:
		return callResult[T]{}, false
	}
}

// finish records that the function has returned r.
func (c *asyncCall[T]) finish(r callResult[T]) callResult[T] {
	c.running = false
	r.started = c.started

	return r
}

// outlasts waits like receive, drops the result, and reports whether the function has not returned
// yet.
func (c *asyncCall[T]) outlasts(expired <-chan struct{}) bool {
	c.receive(expired)
	return c.running
}

// isHung reports whether the running function has not returned for limit or longer.
func (c *asyncCall[T]) isHung(now time.Time, limit time.Duration) bool {
	return c.running && now.Sub(c.started) >= limit
}
