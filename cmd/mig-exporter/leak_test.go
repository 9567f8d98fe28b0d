package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"testing"
)

// heapTolerance is how much larger the heap in use may be at the end of the long run than after its
// beginning: maps and pools have no fixed size.
const heapTolerance = 128 << 10

// held is what a process holds that it could fail to give back.
type held struct {
	goroutines, descriptors int
	heap                    uint64 // bytes in use after a collection
}

// holds takes the least of several looks: a poll under way holds more for a moment.
func holds(t *testing.T, x *exporter) held {
	t.Helper()
	var least held

	for i := range 20 {
		pollOnce(t, x)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)

		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}

		if i == 0 {
			least = held{runtime.NumGoroutine(), len(fds), m.HeapAlloc}
			continue
		}

		least.goroutines = min(least.goroutines, runtime.NumGoroutine())
		least.descriptors = min(least.descriptors, len(fds))
		least.heap = min(least.heap, m.HeapAlloc)
	}

	return least
}

// TestNothingGrows: after longPolls polls and longScrapes scrapes over TCP the process holds no
// more than after settled.
func TestNothingGrows(t *testing.T) {
	x := benchNode(t, benchGPUs)
	server := httptest.NewServer(x.handler)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	var early held
	scrapes := 0

	for i := 1; i <= longPolls; i++ {
		pollOnce(t, x)

		if i%(longPolls/longScrapes) == 0 {
			if err := scrapeInTurn(t, client, server.URL+"/metrics", scrapes); err != nil {
				t.Fatal(err)
			}

			scrapes++
		}

		if i == settled {
			early = holds(t, x)
		}
	}

	late := holds(t, x)
	t.Logf("after %d polls %+v; after %d polls and %d scrapes %+v", settled, early, longPolls, scrapes, late)
	expectNoGrowth(t, early, late, heapTolerance)
}

// scrapeInTurn makes the scrape with a number, which chooses its format and encoding, and reads the
// whole answer.
func scrapeInTurn(t *testing.T, client *http.Client, url string, number int) error {
	t.Helper()
	f := benchForms[number%len(benchForms)]

	resp, err := client.Do(scrapeRequest(t, url, f.accept, f.coding))
	if err != nil {
		return err
	}
	defer resp.Body.Close()

	n, err := io.Copy(io.Discard, resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("scrape %d: %w", number, err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("scrape %d: status %d", number, resp.StatusCode)
	case n == 0:
		return fmt.Errorf("scrape %d: empty", number)
	}

	return nil
}

// expectNoGrowth compares what is held late with what was held early.
func expectNoGrowth(t *testing.T, early, late held, tolerance uint64) {
	t.Helper()

	if late.goroutines > early.goroutines {
		t.Errorf("%d goroutines, %d before", late.goroutines, early.goroutines)
	}

	if late.descriptors > early.descriptors {
		t.Errorf("%d open descriptors, %d before", late.descriptors, early.descriptors)
	}

	if late.heap > early.heap+tolerance {
		t.Errorf("%d KiB of heap in use, %d before; it may grow by %d", late.heap>>10, early.heap>>10, tolerance>>10)
	}
}
