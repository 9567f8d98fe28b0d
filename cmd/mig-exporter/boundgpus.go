package main

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// bindingTime is how long the kernel must list a GPU until we count it as bound: the kernel lists a
// GPU in /sys as soon as the driver begins to set it up.
const bindingTime = 2 * time.Second

// boundGPUs knows which GPUs the kernel driver has bound.
type boundGPUs struct {
	sys, proc string // /sys and /proc
	now       func() time.Time

	mu sync.Mutex
	// since is when the kernel first listed each GPU, by PCI bus id. It is the zero time for the GPUs
	// of our first list, which were bound before we started. nil: we have not listed any yet.
	since map[string]time.Time
}

// list lists the PCI bus ids of the GPUs that have been bound for bindingTime, or since before the
// first list.
func (b *boundGPUs) list() ([]string, error) {
	listed, err := listBoundGPUs(b.sys, b.proc)
	if err != nil {
		return nil, err
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.now()
	since := make(map[string]time.Time, len(listed))
	bound := make([]string, 0, len(listed))

	for _, id := range listed {
		firstListed, known := b.since[id]
		if !known && b.since != nil {
			firstListed = now
		}

		since[id] = firstListed
		if now.Sub(firstListed) >= bindingTime {
			bound = append(bound, id)
		}
	}

	b.since = since

	return bound, nil
}

// listBoundGPUs lists the PCI bus ids of the GPUs that the kernel driver has bound. It prefers the
// driver's folder in /sys: in some containers the files of the folder in /proc are mounted one by
// one, so that it stays as it was when the container started.
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

// entryNames returns the wanted names among the entries of a folder.
func entryNames(entries []os.DirEntry, wanted func(name string) bool) []string {
	list := make([]string, 0, len(entries))
	for _, e := range entries {
		if wanted(e.Name()) {
			list = append(list, e.Name())
		}
	}

	return list
}
