package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

const benchWatchers = 50

// followed is a renewed Snapshot for which streams wait.
type followed struct {
	renewed

	mu   sync.Mutex
	next chan struct{}
}

func (f *followed) Next(after *gpu.Snapshot) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.Load() != after {
		now := make(chan struct{})
		close(now)

		return now
	}

	return f.next
}

func (f *followed) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.renewed.renew()
	close(f.next)
	f.next = make(chan struct{})
}

// watchNode serves the bench's node, and opens streams of a view, packed, whose bytes are read and
// dropped. It returns once each of them has had its first event.
func watchNode(b *testing.B, x *exporter, view string, watchers int) (http.Handler, *followed) {
	b.Helper()

	snaps := &followed{next: make(chan struct{})}
	snaps.Store(x.poller.Current())
	node := web.NewNode(snaps, history.New(time.Minute), x.reportHealth, log.NewNopLogger())
	fresh, _ := newProcessRegistry()
	h := web.NewHandler(web.Options{State: true, Node: node, Register: fresh}, snaps, x.metrics, fresh, log.NewNopLogger())
	server := httptest.NewServer(h)
	b.Cleanup(server.Close)
	b.Cleanup(node.Close)

	var begun sync.WaitGroup

	for range watchers {
		r := scrapeRequest(b, server.URL+"/api/v1/node/stream?view="+view, "", "gzip")

		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}

		begun.Add(1)
		go func() {
			defer answer.Body.Close()
			_, _ = io.ReadFull(answer.Body, make([]byte, 1000)) // the first event is longer
			begun.Done()
			_, _ = io.Copy(io.Discard, answer.Body)
		}()
	}

	begun.Wait()

	return h, snaps
}

// BenchmarkWatchers measures the CPU of the whole process for one Snapshot a second that is sent to
// all who watch, over TCP. The clients, in the same process, are part of it.
func BenchmarkWatchers(b *testing.B) {
	x := benchNode(b, benchGPUs)

	for _, view := range []string{"", "page"} {
		for _, watchers := range []int{0, benchWatchers} {
			b.Run(fmt.Sprintf("view=%s/watchers=%d", view, watchers), func(b *testing.B) {
				_, snaps := watchNode(b, x, view, watchers)
				begun := cpuTime(b)

				for b.Loop() {
					snaps.renew()
					time.Sleep(time.Second) // a stream sends one event a second at most
				}

				b.ReportMetric(float64((cpuTime(b)-begun).Nanoseconds())/float64(b.N), "cpu-ns")
			})
		}
	}
}

// BenchmarkScrapeBesideWatchers compares lone scrapes of a Snapshot that is being sent to all who
// watch with those of one that is not.
func BenchmarkScrapeBesideWatchers(b *testing.B) {
	x := benchNode(b, benchGPUs)
	alone, quiet := watchNode(b, x, "", 0)
	beside, watched := watchNode(b, x, "page", benchWatchers)
	r := scrapeRequest(b, "http://node/metrics", acceptText, "gzip")

	var took [2][]time.Duration

	for b.Loop() {
		for i, h := range []http.Handler{alone, beside} {
			[]*followed{quiet, watched}[i].renew()
			one, _ := scrapeDiscarding(b, h, r)
			took[i] = append(took[i], one)

			time.Sleep(time.Second / 2) // each of both has a Snapshot a second
		}
	}

	reportQuantiles(b, "alone-", took[0])
	reportQuantiles(b, "beside-", took[1])
	b.ReportMetric(float64(quantile(took[1], 0.5))/float64(quantile(took[0], 0.5)), "p50-ratio")
}

// BenchmarkHistory adds one Snapshot to a history, and encodes all of it.
func BenchmarkHistory(b *testing.B) {
	x := benchNode(b, benchGPUs)
	past := history.New(time.Minute)
	s := *x.poller.Current()

	b.Run("observe", func(b *testing.B) {
		b.ReportAllocs()

		for b.Loop() {
			s.Time = s.Time.Add(time.Second)
			past.Observe(&s)
		}
	})
	b.Run("document", func(b *testing.B) {
		for b.Loop() {
			past.Document()
		}
	})
}
