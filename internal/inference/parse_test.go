package inference

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestParseKnownServers reads metrics as each server documents them, old names and new ones.
func TestParseKnownServers(t *testing.T) {
	for file, want := range map[string]gpu.ServerFigures{
		"vllm-v1": {Kind: gpu.ServerVLLM, Running: gpu.Some(6.), Waiting: gpu.Some(2.), CacheUse: gpu.Some(0.375),
			CacheTokens: gpu.Some(438400.), PromptTokens: gpu.Some(912000.), GeneratedTokens: gpu.Some(304000.),
			FinishedRequests: gpu.Some(1520.), ServiceSeconds: gpu.Some(3040.), Fraction: gpu.Some(0.9)},
		// without the time in queues, how long requests are served is unknown
		"vllm-v0": {Kind: gpu.ServerVLLM, Running: gpu.Some(3.), Waiting: gpu.Some(0.), CacheUse: gpu.Some(0.0625),
			CacheTokens: gpu.Some(144000.), PromptTokens: gpu.Some(1200.), GeneratedTokens: gpu.Some(800.),
			FinishedRequests: gpu.Some(20.), Fraction: gpu.Some(0.4)},
		"sglang": {Kind: gpu.ServerSGLang, Running: gpu.Some(4.), Waiting: gpu.Some(1.), CacheUse: gpu.Some(0.15),
			CacheTokens: gpu.Some(400000.), PromptTokens: gpu.Some(5000.), GeneratedTokens: gpu.Some(2500.),
			FinishedRequests: gpu.Some(30.), ServiceSeconds: gpu.Some(75.)},
		"sglang-pages": {Kind: gpu.ServerSGLang, Running: gpu.Some(1.), CacheUse: gpu.Some(0.5),
			CacheTokens: gpu.Some(200000.)},
		"tgi": {Kind: gpu.ServerTGI, Running: gpu.Some(5.), Waiting: gpu.Some(3.), PromptTokens: gpu.Some(24000.),
			GeneratedTokens: gpu.Some(18000.), FinishedRequests: gpu.Some(120.), ServiceSeconds: gpu.Some(180.)},
		"triton": {Kind: gpu.ServerTriton, Waiting: gpu.Some(4.), FinishedRequests: gpu.Some(1500.),
			ServiceSeconds: gpu.Some(30.)},
		"triton-tensorrt-llm": {Kind: gpu.ServerTriton, Running: gpu.Some(7.), Waiting: gpu.Some(2.),
			CacheUse: gpu.Some(0.25), CacheTokens: gpu.Some(384000.), FinishedRequests: gpu.Some(40.)},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", file+".prom"))
			if err != nil {
				t.Fatal(err)
			}

			got, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}

			cmptest.Equal(t, "figures", got, want)
		})
	}
}

// TestParseSumsEngines checks a server of several engines: what they do adds up, and the fullest
// cache counts.
func TestParseSumsEngines(t *testing.T) {
	got, err := Parse([]byte(`vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 3
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.7
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1
vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="100"} 1`))
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "figures", got, gpu.ServerFigures{Kind: gpu.ServerVLLM, Running: gpu.Some(5.), CacheUse: gpu.Some(0.7),
		CacheTokens: gpu.Some(3200.)})
}

// TestParseLeavesOutImpossibleValues gives numbers that no server has: they are absent, and the
// others count.
func TestParseLeavesOutImpossibleValues(t *testing.T) {
	for _, bad := range []string{"NaN", "-1", "+Inf", "-Inf", "1e300", "1.0000001"} {
		got, err := Parse(fmt.Appendf(nil, "vllm:num_requests_running 4\nvllm:kv_cache_usage_perc %s\n", bad))
		if err != nil {
			t.Fatalf("%s: %v", bad, err)
		}

		cmptest.Equal(t, "figures", got, gpu.ServerFigures{Kind: gpu.ServerVLLM, Running: gpu.Some(4.)})
	}

	for _, bad := range []string{"None", "NaN", "-3", "Inf", "1e300", ""} {
		got, err := Parse(fmt.Appendf(nil, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=%q,"+
			"gpu_memory_utilization=%q} 1\nvllm:num_requests_running 4\n", bad, bad))
		if err != nil {
			t.Fatalf("%s: %v", bad, err)
		}

		cmptest.Equal(t, "figures", got, gpu.ServerFigures{Kind: gpu.ServerVLLM, Running: gpu.Some(4.)})
	}
}

// TestParseRefuses gives texts that are not metrics of a server.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":         {"", "no metrics of vLLM"},
		"other program": {"go_goroutines 12\n", "no metrics of vLLM"},
		"page":          {"<html><body>vllm:num_requests_running</body></html>", "no metrics of vLLM"},
		"cut off":       {"vllm:num_requests_running{model_name=\"a\n", "text format"},
		"no number":     {"vllm:num_requests_running four\n", "text format"},
		"invalid UTF-8": {"vllm:num_requests_running{model_name=\"\xff\xfe\"} 4\n", "text format"},
		"too long":      {strings.Repeat("x", MaxBytes+1), "more than 1048576 bytes"},
		"long line":     {"tgi_queue_size{a=\"" + strings.Repeat("x", maxLine) + "\"} 1\n", "more than 4096 bytes"},
		"many samples":  {manySamples(maxLines + 1), "more than 2000 lines"},
		"many labels":   {strings.Repeat(labeledLine(600, maxLine), 2), "too many labels"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; expected %q in it", err, c.want)
			}

			if isNone := strings.Contains(c.want, "no metrics"); errors.Is(err, ErrNoServer) != isNone {
				t.Errorf("errors.Is(%v, ErrNoServer) is not %v", err, isNone)
			}
		})
	}
}

func manySamples(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "nv_inference_request_success{model=\"m%d\"} 1\n", i)
	}

	return b.String()
}

// labeledLine returns a line of a known metric with labels of different names of two letters, and
// of so many bytes.
func labeledLine(labels, size int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	var b strings.Builder
	b.WriteString("tgi_queue_size{")

	for i := range labels {
		fmt.Fprintf(&b, `%c%c="",`, letters[i/len(letters)], letters[i%len(letters)])
	}

	b.WriteString("} ")

	return b.String() + strings.Repeat(" ", size-b.Len()-2) + "1\n"
}

// TestParseIsBoundedInMemory gives the texts that take the most, whether they pass or not.
func TestParseIsBoundedInMemory(t *testing.T) {
	for about, c := range map[string]struct {
		line   string
		lines  int
		passes bool
	}{
		"no labels":            {"vllm:num_requests_running 1\n", maxLines, true},
		"too many lines":       {"vllm:num_requests_running 1\n", MaxBytes / 28, false},
		"another program's":    {"a 1\n", MaxBytes / 4, false},
		"empty lines":          {"\n", MaxBytes, false},
		"unknown names":        {"vllm:x{} 1\n", MaxBytes / 11, false},
		"16 labels in each":    {labeledLine(16, 520), maxLines, true},
		"80 labels in each":    {labeledLine(80, 520), maxLines, false},
		"675 labels in each":   {labeledLine(675, 4095), 256, false},
		"one with 675 labels":  {labeledLine(675, 4095), 1, true},
		"long lines, no label": {labeledLine(0, 4095), 256, true},
	} {
		text := []byte(strings.Repeat(c.line, c.lines))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(text)
		runtime.ReadMemStats(&after)

		if (err == nil) != c.passes {
			t.Errorf("%s: error %v; expected that it passes: %v", about, err, c.passes)
		}

		if took := after.TotalAlloc - before.TotalAlloc; took > 24<<20 {
			t.Errorf("%s: %d MiB; expected 24 at most", about, took>>20)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil {
		f.Fatal(err)
	}

	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}

		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Parse(text)
		if err == nil && got.Kind == "" {
			t.Error("figures of no server, and no error")
		}

		if v := got.CacheUse.Or(0); !(v >= 0 && v <= 1) {
			t.Errorf("uses %v of its cache", v)
		}
	})
}
