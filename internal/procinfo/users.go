package procinfo

import (
	"os/user"
	"strconv"
	"sync"
	"time"
)

const (
	// nameValid is how long we use the name of a user, or that there is none, before we ask for it
	// again.
	nameValid = 10 * time.Minute
	// maxUsers bounds the users that we remember.
	maxUsers = 1024
)

// users finds the names of users. The system's lookup may go to a directory server and take any
// time, so it runs on a goroutine of its own, for one user after the other. If a lookup hangs, no
// user gets a new name.
type users struct {
	lookup func(uid string) (*user.User, error)
	now    func() time.Time

	mu      sync.Mutex
	known   map[uint32]userName
	wanted  map[uint32]struct{} // to look up
	running bool                // the goroutine that looks them up
}

// userName is the name of a user as of its last lookup, or the id if there is none.
type userName struct {
	text string
	at   time.Time
}

func newUsers() *users {
	return &users{
		lookup: user.LookupId,
		now:    time.Now,
		known:  map[uint32]userName{},
		wanted: map[uint32]struct{}{},
	}
}

// find returns the name of a user, and the id until the name is known. It doesn't block.
func (u *users) find(uid uint32) string {
	u.mu.Lock()
	defer u.mu.Unlock()

	name, ok := u.known[uid]
	if !ok {
		name.text = formatID(uid)
	}

	if ok && u.now().Sub(name.at) < nameValid || len(u.wanted) >= maxUsers {
		return name.text
	}

	u.wanted[uid] = struct{}{}

	if !u.running {
		u.running = true
		go u.lookUpWanted()
	}

	return name.text
}

// lookUpWanted looks up the wanted users until there are none.
func (u *users) lookUpWanted() {
	for {
		uid, ok := u.nextWanted()
		if !ok {
			return
		}

		text := formatID(uid)
		if found, err := u.lookup(text); err == nil && found.Username != "" {
			text = CleanName(found.Username)
		}

		u.remember(uid, text)
	}
}

// nextWanted returns a user to look up. If there is none the goroutine must end.
func (u *users) nextWanted() (uint32, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()

	for uid := range u.wanted {
		return uid, true
	}

	u.running = false

	return 0, false
}

// remember stores the result of a lookup.
func (u *users) remember(uid uint32, text string) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if len(u.known) >= maxUsers {
		clear(u.known)
	}

	u.known[uid] = userName{text, u.now()}
	delete(u.wanted, uid)
}

func formatID(uid uint32) string { return strconv.FormatUint(uint64(uid), 10) }
