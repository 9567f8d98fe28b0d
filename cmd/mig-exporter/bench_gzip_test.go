package main

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/klauspost/compress/flate"
)

// BenchmarkGzipLevel is the compression of a whole scrape at every level that is worth a thought:
// docs/performance.md says which one is in use and why.
func BenchmarkGzipLevel(b *testing.B) {
	x := benchNode(b, benchGPUs)

	for _, f := range benchForms {
		if f.coding != "identity" {
			continue
		}

		w := httptest.NewRecorder()
		x.handler.ServeHTTP(w, scrapeRequest(b, "http://node/metrics", f.accept, f.coding))
		body := w.Body.Bytes()

		for level := 1; level <= 6; level++ {
			b.Run(fmt.Sprintf("%s/level=%d", f.name, level), func(b *testing.B) {
				var packed bytes.Buffer

				deflater, err := flate.NewWriter(&packed, level)
				if err != nil {
					b.Fatal(err)
				}

				took := make([]time.Duration, 0, b.N)
				for range b.N {
					began := time.Now()
					packed.Reset()
					deflater.Reset(&packed)

					if _, err := deflater.Write(body); err != nil {
						b.Fatal(err)
					}

					if err := deflater.Flush(); err != nil {
						b.Fatal(err)
					}

					took = append(took, time.Since(began))
				}

				reportQuantiles(b, "", took)
				b.ReportMetric(float64(len(body)), "body-bytes")
				b.ReportMetric(float64(packed.Len()), "packed-bytes")
			})
		}
	}
}
