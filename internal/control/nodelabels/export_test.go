package nodelabels

import (
	"context"
	"time"
)

// Follow reads the node once and does what it asks for.
func (f *Follower) Follow(ctx context.Context) error { return f.follow(ctx) }

// Hurry makes the follower look at pods and operations, and try again, after a moment.
func (f *Follower) Hurry() {
	f.firstLook = time.Millisecond
	f.awaitEvery = time.Millisecond
}
