package migctl

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
)

// hostile is what a name in a label may be.
const hostile = "=cmd|' /C calc'!A1\x1b[2J\u202e\u009b`|<b>\n"

// fakeGPU is a GPU of the fake Prometheus.
type fakeGPU struct {
	uuid, node, cluster, model, namespace string
	pod, owner                            string
	busy, sms, dram, memory               float64
	mediaUnread, linksUnread              bool // the use of its media engines, and NVLink traffic
}

func fakeGPUs() []fakeGPU {
	const h100 = "NVIDIA H100 80GB HBM3"

	gpus := []fakeGPU{
		{uuid: hostile, node: hostile, cluster: hostile, model: hostile, namespace: hostile, busy: 0.1, memory: 1 << 30},
		{uuid: "GPU-00000009-1", node: hostile, cluster: "a", model: h100, namespace: hostile, pod: "hostile", busy: 0.2, sms: 0.016, dram: 0.01, memory: 6 << 30},
		{uuid: "GPU-00000010-1", node: "node-9", cluster: "a", model: h100, busy: 0, memory: 0},
		{uuid: "GPU-00000011-1", node: "node-9", cluster: "a", model: h100, namespace: "training", pod: "trainer", busy: 0.9, sms: 0.9, dram: 0.5, memory: 30 << 30},
		{uuid: "GPU-00000012-1", node: "node-9", cluster: "a", model: h100, namespace: "training", pod: "trainer", busy: 0.9, sms: 0.9, dram: 0.5, memory: 30 << 30},
	}
	for i := range 24 {
		gpus = append(gpus, fakeGPU{uuid: fmt.Sprintf("GPU-000001%02d-1", i), node: fmt.Sprintf("node-%d", i/8), cluster: "a", model: h100,
			mediaUnread: i < 3, linksUnread: i == 22, namespace: "vision", pod: fmt.Sprintf("classifier-%d", i), busy: 0.01 * float64(i+1), sms: 0.001 * float64(i+1), dram: 0.0005 * float64(i+1), memory: 6 << 30})
	}

	return gpus
}

// fakePrometheus answers the queries of migctl fleet about a week of GPUs that do the same all the time. All pods but
// classifier-23 take the place of another one after the first step.
func fakePrometheus(t *testing.T, gpus ...fakeGPU) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.FormValue("query")
		var rows []any

		for _, g := range gpus {
			rows = append(rows, g.mediaRows(r, query)...)

			if labels, v, ok := g.answer(query); ok {
				rows = append(rows, row(r, labels, v))
				if pod := labels["pod"]; pod != "" && pod != "classifier-23" {
					earlier := maps.Clone(labels)
					earlier["pod"] += before
					rows = append(rows, row(r, earlier, v))
				}
			}
		}

		kind := "vector"
		if r.URL.Path == "/api/v1/query_range" {
			kind = "matrix"
		}

		json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": kind, "result": rows}})
	}))
	t.Cleanup(server.Close)

	return server.URL
}

// before ends the name of the pod that was there before another one.
const before = "-before"

// row is a series with the same value at all steps.
func row(r *http.Request, labels map[string]string, v float64) map[string]any {
	if r.URL.Path == "/api/v1/query" {
		return map[string]any{"metric": labels, "value": []any{1, fmt.Sprint(v)}}
	}

	var values []any
	start, _ := strconv.ParseFloat(r.FormValue("start"), 64)
	end, _ := strconv.ParseFloat(r.FormValue("end"), 64)
	step, _ := strconv.ParseFloat(r.FormValue("step"), 64)

	if strings.HasSuffix(labels["pod"], before) {
		end = start
	} else if pod := labels["pod"]; pod != "" && pod != "classifier-23" {
		start += step
	}

	for at := start; at <= end; at += step {
		values = append(values, []any{at, fmt.Sprint(v)})
	}

	return map[string]any{"metric": labels, "values": values}
}

// answer is what a query says of a GPU.
func (g fakeGPU) answer(query string) (labels map[string]string, v float64, ok bool) {
	labels = map[string]string{"uuid": g.uuid}

	selected := strings.Trim(strconv.Quote(regexp.QuoteMeta(g.uuid)), `"`)
	if strings.Contains(query, "uuid=~") && !strings.Contains(query, selected) {
		return nil, 0, false
	}

	switch {
	case strings.Contains(query, "nvidia_gpu_media_activity_ratio"):
		return nil, 0, false // see mediaRows
	case strings.Contains(query, "nvidia_gpu_nvlink_transmit_bytes_total"):
		return labels, 0, !g.linksUnread
	case strings.Contains(query, "count_over_time(nvidia_gpu_info"):
		return map[string]string{"uuid": g.uuid, "name": g.model, "cluster": g.cluster, "node": g.node}, 1440, true
	case strings.Contains(query, "group by (cluster)") && strings.Contains(query, "nvidia_gpu_pod_info"):
		return map[string]string{"cluster": g.cluster}, 1, true
	case strings.Contains(query, "max_over_time(nvidia_gpu_allocated"):
		if g.namespace == "" {
			return labels, 0, true
		}

		return labels, 1, true
	case strings.Contains(query, "max_over_time(nvidia_gpu_memory_total_bytes"):
		return labels, 81559 << 20, true
	case strings.Contains(query, "nvidia_gpu_graphics_engine_activity_ratio"):
		return labels, g.busy, true
	case strings.Contains(query, "nvidia_gpu_sm_activity_ratio"):
		return labels, g.sms, g.sms >= 0 // below 0 it is not read
	case strings.Contains(query, "nvidia_gpu_dram_activity_ratio"):
		return labels, g.dram, true
	case strings.Contains(query, "nvidia_gpu_memory_used_bytes"):
		return labels, g.memory, true
	case strings.Contains(query, "present_over_time(nvidia_gpu_pod_info"):
		labels["namespace"], labels["pod"] = g.namespace, g.pod
		if g.owner != "" {
			labels["workload"] = g.owner
		}

		return labels, 1, g.namespace != ""
	}

	return nil, 0, false
}

// mediaRows is what a query says of the media engines of a GPU, which uses none. With mediaUnread it
// says nothing.
func (g fakeGPU) mediaRows(r *http.Request, query string) (rows []any) {
	isAboutMedia := strings.Contains(query, "nvidia_gpu_media_activity_ratio") && !strings.HasSuffix(query, "> 0")

	selected := strings.Trim(strconv.Quote(regexp.QuoteMeta(g.uuid)), `"`)
	if !isAboutMedia || g.mediaUnread || !strings.Contains(query, selected) {
		return nil
	}

	use := 0.
	if strings.Contains(query, "count_over_time") { // in what share of the scrapes it was read
		use = 1
	}

	for _, engine := range []string{"decoder", "jpeg", "ofa"} {
		rows = append(rows, row(r, map[string]string{"uuid": g.uuid, "engine": engine}, use))
	}

	return rows
}

// TestFleetOutput: every form is as it was, and no name of a label is a command to a terminal, a spreadsheet or a page.
func TestFleetOutput(t *testing.T) {
	url := fakePrometheus(t, fakeGPUs()...)
	for form, file := range map[string]string{formText: "fleet.txt", formMarkdown: "fleet.md", formCSV: "fleet.csv", formJSON: ""} {
		t.Run(form, func(t *testing.T) {
			got := runner{}.run(t, defaultAddress, "fleet", "--prometheus.url="+url, "--time=2026-03-04T12:00:00Z", "--price=H100=2.5", "-o", form)
			if got.code != exitOK || got.err != "" {
				t.Fatalf("%+v", got)
			}

			for _, c := range got.out {
				if c != '\n' && !unicode.IsPrint(c) {
					t.Fatalf("%U is in the output", c)
				}
			}

			switch form {
			case formJSON:
				checkFleetJSON(t, got.out)
			case formCSV:
				checkFleetCSV(t, got.out)
			}

			if file != "" {
				golden(t, file, strings.ReplaceAll(got.out, url, "http://prometheus:9090"))
			}
		})
	}
}

func checkFleetJSON(t *testing.T, out string) {
	t.Helper()

	var r fleet.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}

	if want := len(fakeGPUs()); len(r.GPUs) != want {
		t.Fatalf("%d GPUs, want %d", len(r.GPUs), want)
	}

	cmptest.Equal(t, "first GPU", r.GPUs[0].UUID, hostile)
	cmptest.Equal(t, "slices", r.Fleet.Slices, 23)

	if r.Fleet.CostPerWeek == nil {
		t.Error("the fleet has no cost per week")
	}
}

func checkFleetCSV(t *testing.T, out string) {
	t.Helper()

	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) != len(fakeGPUs())+1 {
		t.Fatalf("%d rows: %v", len(rows), err)
	}

	for _, row := range rows {
		for _, cell := range row {
			if strings.HasPrefix(cell, "=") {
				t.Errorf("%q is a formula", cell)
			}
		}
	}
}

// TestFleetProgress: a terminal sees how far it is, and nothing of it stays.
func TestFleetProgress(t *testing.T) {
	got := runner{terminal: true}.run(t, defaultAddress, "fleet", "--prometheus.url="+fakePrometheus(t, fakeGPUs()...), "--time=2026-03-04T12:00:00Z", "--color=never")
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.HasTexts(t, got.err, "[##############################] 29/29 GPUs")

	if !strings.HasSuffix(got.err, " \r") {
		t.Errorf("standard error is %q, want a cleared line at its end", got.err)
	}
}

// TestFleetFails: what is wrong on the command line and what is wrong with Prometheus have exit codes of their own,
// and say what to do.
func TestFleetFails(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))
	t.Cleanup(page.Close)

	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"", exitUsage, "'--prometheus.url' not provided"},
		{"--prometheus.url=prometheus:9090", exitUsage, "expected http://HOST:PORT"},
		{"--prometheus.url=http://h --window=week", exitUsage, "--window is \"week\""},
		{"--prometheus.url=http://h --window=1m", exitUsage, "expected 1h to 35d"},
		{"--prometheus.url=http://h --window=90m", exitUsage, "--window is 1h30m; expected whole hours"},
		{"--prometheus.url=http://h --time=yesterday", exitUsage, "--time is \"yesterday\""},
		{"--prometheus.url=http://h --price=H100", exitUsage, "expected MODEL=NUMBER"},
		{"--prometheus.url=http://h --price=H100=1 --price=h100=2", exitUsage, "expected one price for each model"},
		{"--prometheus.url=http://h --cluster-label=", exitUsage, "--cluster-label is \"\""},
		{"--prometheus.url=http://h --max-stretch=0.5", exitUsage, "--max-stretch=0.5: expected 1 to 100"},
		{"--prometheus.url=http://h --min-evidence=0s", exitUsage, "--min-evidence=0s: expected 1m to 720h"},
		{"--prometheus.url=http://h --match=cluster", exitUsage, "expected label matchers"},
		{"--prometheus.url=http://h --prometheus.config.file=/nowhere", exitUsage, "/nowhere"},
		{"--prometheus.url=" + page.URL, exitFailed, "What to do: that is no Prometheus"},
		{"--prometheus.url=http://127.0.0.1:1", exitUnreachable, "What to do: is Prometheus running there?"},
	} {
		got := runner{}.run(t, defaultAddress, append([]string{"fleet"}, strings.Fields(c.args)...)...)
		if got.code != c.code || !strings.Contains(flat(got.err), c.text) || got.out != "" {
			t.Errorf("%s: exit code %d, output %q, error %q; want %d, none, %q", c.args, got.code, got.out, got.err, c.code,
				c.text)
		}
	}
}

// TestFleetTimeout: --timeout holds for Prometheus, too; without it a query may take as long as Prometheus allows.
func TestFleetTimeout(t *testing.T) {
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))

	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })

	got := runner{}.run(t, defaultAddress, "fleet", "--prometheus.url="+silent.URL, "--timeout=20ms")
	cmptest.Equal(t, "exit code", got.code, exitFailed)
	cmptest.HasTexts(t, flat(got.err), "no answer within 20ms", "--timeout")

	for line, want := range map[string]time.Duration{
		"fleet --prometheus.url=http://h":              2 * time.Minute,
		"fleet --prometheus.url=http://h --timeout=5m": 5 * time.Minute,
		"get":              30 * time.Second,
		"get --timeout=1m": time.Minute,
	} {
		s := session{out: io.Discard, errOut: io.Discard}
		if _, err := s.parseCommandLine(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, line, s.opts.requestTimeout(), want)
	}

	help := flat(runner{}.run(t, defaultAddress, "fleet", "--help").out)
	cmptest.HasTexts(t, help, "must be answered: 30s, of fleet 2m")
}

// TestFleetCommandsOfThePageParse: the commands in the page parse.
func TestFleetCommandsOfThePageParse(t *testing.T) {
	all := commands(docPage(t, "docs/fleet.md"))
	if len(all) < 4 {
		t.Errorf("only %d commands", len(all))
	}

	for _, command := range all {
		command, _, _ = strings.Cut(command, " > ")

		s := session{out: io.Discard, errOut: io.Discard}
		if _, err := s.parseCommandLine(shellWords(t, command)[1:]); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
}
