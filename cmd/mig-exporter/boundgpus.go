package main

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// settleBinding is how long a GPU has to be listed until it counts as bound: the kernel lists it in
// /sys as soon as the driver begins to set it up.
const settleBinding = 2 * time.Second

// boundGPUs tells which GPUs the kernel driver has bound.
type boundGPUs struct {
	sys, proc string
	now       func() time.Time

	mu    sync.Mutex
	since map[string]time.Time // when each GPU was first listed; nil before the first list, zero for those in it
}

// list lists the PCI bus ids of the GPUs that are bound, and have been for settleBinding or since
// the first list.
func (b *boundGPUs) list() ([]string, error) {
	listed, err := listBoundGPUs(b.sys, b.proc)
	if err != nil {
		return nil, err
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.now()
	since := make(map[string]time.Time, len(listed))
	settled := make([]string, 0, len(listed))

	for _, id := range listed {
		at, before := b.since[id]
		if !before && b.since != nil {
			at = now
		}

		since[id] = at
		if now.Sub(at) >= settleBinding {
			settled = append(settled, id)
		}
	}

	b.since = since

	return settled, nil
}

// listBoundGPUs lists the PCI bus ids of the GPUs that the kernel driver has bound. The driver's
// folder in /sys comes first: that of /proc is mounted file by file into some containers, and stays
// as it was when they started.
func listBoundGPUs(sys, proc string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(sys, "bus", "pci", "drivers", "nvidia"))
	if err == nil {
		busID := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
		return entryNames(entries, busID.MatchString), nil
	}

	entries, err = os.ReadDir(filepath.Join(proc, "driver", "nvidia", "gpus"))
	if err != nil {
		return nil, err
	}

	return entryNames(entries, func(string) bool { return true }), nil
}

// entryNames returns the names of the entries of a folder that are wanted.
func entryNames(entries []os.DirEntry, wanted func(name string) bool) []string {
	list := make([]string, 0, len(entries))
	for _, e := range entries {
		if wanted(e.Name()) {
			list = append(list, e.Name())
		}
	}

	return list
}
