package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// metric names one figure of one benchmark.
type metric struct{ benchmark, unit string }

// results holds the values of every run.
type results map[metric][]float64

// read reads the output of `go test -bench`; cpu is the processor's name in it.
func read(from io.Reader) (found results, cpu string, err error) {
	found = results{}
	processors := regexp.MustCompile(`-\d+$`) // the testing package appends GOMAXPROCS to names

	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "cpu: "); ok {
			cpu = name
			continue
		}

		// "BenchmarkPoll/gpus=8-16  100  5012 ns/op  37 calls": a name, a count, then values with units.
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || len(fields)%2 != 0 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}

		name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		for i := 2; i < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, "", fmt.Errorf("%q: %w", lines.Text(), err)
			}

			m := metric{name, fields[i+1]}
			found[m] = append(found[m], value)
		}
	}

	return found, cpu, lines.Err()
}

// best returns the smallest value: all figures are costs.
func best(values []float64) float64 { return slices.Min(values) }

// median returns the value in the middle; of two in the middle, the larger one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
