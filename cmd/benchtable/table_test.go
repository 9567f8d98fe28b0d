package main

import (
	"strings"
	"testing"
)

const output = `goos: linux
cpu: AMD EPYC
BenchmarkPoll/gpus=8-2  	 99	 3582016 ns/op	 510.3 calls	 5326111 cpu-ns	 6927047 p99-ns
BenchmarkPoll/gpus=8-2  	 99	 3582016 ns/op	 510.3 calls	 4900000 cpu-ns	 5927047 p99-ns
BenchmarkPoll/gpus=8-2  	 99	 3582016 ns/op	 510.3 calls	 5000001 cpu-ns	 4927047 p99-ns
BenchmarkScrapeLone/text/gzip-2 	 99	 3582016 ns/op	 2100000 p50-ns	 190 allocs/op
BenchmarkScrapeLone/protobuf/gzip-2 	 99	 3582016 ns/op	 9100000 p50-ns	 9190 allocs/op
BenchmarkScrapeRepeated/text/gzip-2 	 99	 3582016 ns/op	 1400 p50-ns
BenchmarkGzipLevel/text/identity/level=6-2 	 99	 3582016 ns/op	 3100000 p50-ns	 37450 packed-bytes
BenchmarkResident-16    	 1	 39 ns/op	 12.98 MiB-anon@10000
BenchmarkDriverCalls-16    	 1	 39 ns/op	 5.5 exclusive/s	 150 unknown/s	 3.25 nvmlDeviceGetName/s
BenchmarkOther          	 1	 39 ns/op
PASS
ok  	example.org/x	17.032s
`

func TestTables(t *testing.T) {
	runs, cpu, err := read(strings.NewReader(output))
	if err != nil || cpu != "AMD EPYC" {
		t.Fatalf("processor %q, %v", cpu, err)
	}

	text, missing := tables(runs, "a machine")
	for _, want := range []string{
		"a machine.\n\n| what | best | median | target | |\n|---|--:|--:|--:|---|\n| lone scrape, text/gzip: p50 | 2.1 ms " +
			"| 2.1 ms | < 2 ms | missed |\n| lone scrape, text/gzip: allocations | 190 | 190 | < 200 | met |\n",
		"| lone scrape, protobuf/gzip: p50 | 9.1 ms | 9.1 ms |  |  |\n",
		"| repeated scrape of a Snapshot, text/gzip: p50 | 1.4 µs | 1.4 µs |  |  |\n",
		"| 6 | 3.1 ms | 37 KiB |  |  |\n",
		"| poll: CPU | 4.9 ms | 5 ms | < 5 ms | met by the best run only |\n",
		"| poll: p99 | 4.93 ms | 5.93 ms |  |  |\n",
		"| anonymous memory after 10,000 polls and 1,000 scrapes (RssAnon) | 13.0 MiB | 13.0 MiB | < 14.0 MiB | met |\n",
		"| **unknown** | 150.00 |\n| **exclusive** | 5.50 |\n| nvmlDeviceGetName | 3.25 |\n",
		"| poll: driver calls |  |  |  | 510 |  |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	if len(missing) == 0 {
		t.Error("nothing is missing, though most benchmarks did not run")
	}
}

func TestFormat(t *testing.T) {
	for _, test := range []struct {
		value float64
		unit  string
		want  string
	}{
		{1512, "p50-ns", "1.51 µs"},
		{19_000, "ns/op", "19 µs"},
		{999_400, "p99-ns", "999 µs"},
		{999_900, "p99-ns", "1 ms"},
		{14_447_710, "p99-ns", "14.4 ms"},
		{381_905, "body-bytes", "373 KiB"},
		{1.0716, "p50-ratio", "1.07"},
		{7509, "allocs/op", "7509"},
	} {
		if got := format(test.value, test.unit); got != test.want {
			t.Errorf("%g %s: got %q, want %q", test.value, test.unit, got, test.want)
		}
	}
}

func TestMissingBenchmarksFail(t *testing.T) {
	var out strings.Builder
	if err := writeTables(&out, strings.NewReader(output), "a machine"); err == nil ||
		!strings.Contains(err.Error(), "ScrapeLone/text/gzip p99-ns") {
		t.Errorf("got %v, want an error that names what is missing", err)
	}

	if !strings.Contains(out.String(), "| poll: CPU |") {
		t.Error("what is there is not written")
	}

	if _, _, err := read(strings.NewReader("BenchmarkX-2 1 many ns/op\n")); err == nil {
		t.Error("a figure that is no number is accepted")
	}
}
