package nodelabels

import (
	"context"
	"strings"
	"time"
)

// Follow reads the node once and does what it asks for.
func (f *Follower) Follow(ctx context.Context) error { return f.follow(ctx) }

// Hurry makes the follower look at pods and operations, and try again, after a moment. It awaits no
// operation when the program stops.
func (f *Follower) Hurry() {
	f.firstLook = time.Millisecond
	f.awaitEvery = time.Millisecond
	f.stopWait = 0
}

// AwaitStop makes the follower await the end of an operation when the program stops.
func (f *Follower) AwaitStop(wait time.Duration) { f.stopWait = wait }

// Note returns the notes as one text.
func (f *Follower) Note() string { return strings.Join(f.Notes(), "; ") }
