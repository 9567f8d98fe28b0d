package rightsizing

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/store"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// observeAs runs right-sizing on Snapshots of minutes, as an exporter under a name on a node with
// GPUs. It returns for how many minutes the workload of the first GPU is known to be observed, and
// the log.
func observeAs(t *testing.T, dir, name string, minutes int, gpus ...gpu.UUID) (observed int, logged string) {
	t.Helper()
	return observeOn(t, false, dir, name, 0, minutes, gpus...)
}

// observeOn is observeAs after a pause; isNodeName says whether the name is that of a Kubernetes
// node.
func observeOn(
	t *testing.T, isNodeName bool, dir, name string, pause time.Duration, minutes int, gpus ...gpu.UUID,
) (observed int, logged string) {
	t.Helper()
	var lines strings.Builder
	opts := options(dir, log.NewLogfmtLogger(log.NewSyncWriter(&lines)))
	opts.IsNodeName = isNodeName
	r := New(opts)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = r.Run(ctx) }()
	s := heldSnapshot(name, gpus...)

	from := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	if r.found != nil {
		from = r.found.Time.Add(pause)
	}

	for minute := range minutes + 2 { // the last one is not over
		now := *s
		now.Time = from.Add(time.Duration(minute) * time.Minute)
		r.Observe(&now)
		r.Flush(ctx)
	}

	for _, d := range r.Last().Devices {
		if d.Evidence != nil {
			observed = int(d.Evidence.ObservedHours*60 + 0.5)
		}
	}

	cancel()
	<-r.stopped

	return observed, lines.String()
}

// options returns the options of a loop that observes minutes.
func options(dir string, logger log.Logger) Options {
	o := Options{Advise: advise.DefaultOptions(), StateDir: dir, WriteFile: store.WriteFile,
		Published: func(*advise.Report) {}, Logger: logger}
	o.Advise.MaxGap = 3 * time.Minute

	return o
}

// heldSnapshot returns a Snapshot of a node with GPUs that a pod holds.
func heldSnapshot(name string, gpus ...gpu.UUID) *gpu.Snapshot {
	s := &gpu.Snapshot{Hostname: name}

	for _, id := range gpus {
		g := gpu.GPU{Facts: gpu.Facts{UUID: id, Name: "H100"}, Device: gpu.Device{Up: true}}
		g.Holders = []gpu.Holder{{Container: gpu.Container{Namespace: "ml", Pod: "a-0", Name: "main"}, PodUID: "uid",
			Workload: "Deployment/a", Sharing: gpu.SharingExclusive}}
		g.Activity.GraphicsEngine = gpu.Some(0.5)
		s.GPUs = append(s.GPUs, g)
	}

	return s
}

// files returns the names in a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}

	slices.Sort(names)

	return names
}

// TestEvidenceOfTheNode: pods have another name after each restart; the GPUs tell that the evidence
// is of their node.
func TestEvidenceOfTheNode(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"exporter-a", "exporter-b", "exporter-c"} {
		observed, logged := observeAs(t, dir, name, 20, "GPU-1", "GPU-2")
		if want := 20 * (i + 1); observed != want {
			t.Errorf("%s: observed for %d minutes, want %d\n%s", name, observed, want, logged)
		}

		cmptest.LacksTexts(t, logged, "level=warn", ".unusable-")
	}

	cmptest.Equal(t, "files", files(t, dir), []string{FileName})
	kept := readText(t, filepath.Join(dir, FileName))
	observeAs(t, dir, "exporter-d", 30) // without a GPU it is unknown of which node the file is
	cmptest.Equal(t, "unchanged", readText(t, filepath.Join(dir, FileName)) == kept, true)

	for i := range 5 {
		name := "other-" + string(rune('a'+i))
		id := gpu.UUID("GPU-other-" + string(rune('a'+i)))
		observed, logged := observeAs(t, dir, name, 20, id)
		cmptest.Equal(t, name+": observed minutes", observed, 20)
		cmptest.HasTexts(t, logged, "another node", "none of whose GPUs this one has", FileName+".unusable-1", "level=warn")
	}

	cmptest.Equal(t, "files", files(t, dir),
		[]string{FileName, FileName + ".unusable-1", FileName + ".unusable-2"})
	observed, _ := observeAs(t, dir, "other-z", 20, "GPU-other-e")
	cmptest.Equal(t, "minutes of the last node", observed, 40)
}

// TestEvidenceAfterALongPause: a run of five minutes, long after the one before, neither loses the
// evidence nor calls a GPU free that is held.
func TestEvidenceAfterALongPause(t *testing.T) {
	dir := t.TempDir()
	observeAs(t, dir, "exporter-a", 30, "GPU-1")

	for i, pause := range []time.Duration{60 * time.Hour, 0, 60 * time.Hour, -60 * time.Hour} {
		observed, logged := observeOn(t, false, dir, "exporter-"+string(rune('b'+i)), pause, 5, "GPU-1")
		cmptest.Equal(t, "observed minutes", observed, 30+5*(i+1))
		cmptest.LacksTexts(t, logged, "level=warn", "level=error")
	}

	cmptest.Equal(t, "files", files(t, dir), []string{FileName})
}

// TestReportWhileTheClockIsInDoubt: the last report stands until the clock is believed, and calls
// no GPU free that a pod has got meanwhile.
func TestReportWhileTheClockIsInDoubt(t *testing.T) {
	r := New(options("", log.NewNopLogger()))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = r.Run(ctx) }()
	defer func() { cancel(); <-r.stopped }()
	reportAt := func(at time.Time, gpus ...gpu.UUID) *advise.Report {
		s := heldSnapshot("node-a", gpus...)
		s.Time = at
		r.Observe(s)
		r.Flush(ctx)

		return r.Last()
	}
	right := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	last := reportAt(right, "GPU-1")

	ahead := right.Add(60 * time.Hour)
	for minute := range 10 {
		if reportAt(ahead.Add(time.Duration(minute)*time.Minute), "GPU-1", "GPU-2") != last {
			t.Errorf("there is a new report after %d minutes, want one after ten", minute)
		}
	}

	believed := ahead.Add(10 * time.Minute)
	report := reportAt(believed, "GPU-1", "GPU-2")
	cmptest.Equal(t, "time of the report", report.Time, believed)

	for _, d := range report.Devices {
		cmptest.Equal(t, string(d.GPU), d.Action, advise.ActionKeep)
	}

	cmptest.Equal(t, "devices", len(report.Devices), 2)
}

// TestEvidenceOfTheSameName: a host name alone does not show that the evidence is of this node, the
// name of a Kubernetes node does, and the log says if it has other GPUs now.
func TestEvidenceOfTheSameName(t *testing.T) {
	dir := t.TempDir()
	observeAs(t, dir, "localhost", 20, "GPU-1")
	observed, logged := observeAs(t, dir, "localhost", 20, "GPU-2")
	cmptest.Equal(t, "minutes of a machine of the same name", observed, 20)
	cmptest.HasTexts(t, logged, "another node", "none of whose GPUs this one has", FileName+".unusable-1")
	observed, logged = observeOn(t, true, dir, "localhost", 0, 20, "GPU-3")
	cmptest.Equal(t, "minutes of the Kubernetes node", observed, 40)
	cmptest.HasTexts(t, logged, "none of this node's GPUs is in its evidence", "level=warn")
	_, logged = observeOn(t, true, dir, "localhost", 0, 20, "GPU-3", "GPU-4")
	cmptest.LacksTexts(t, logged, "none of this node's GPUs is in its evidence", "level=warn")
}

// TestEvidenceThatCannotBeWritten is said at the start, not at the first save; what is observed
// counts nevertheless.
func TestEvidenceThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	observed, logged := observeAs(t, filepath.Join(file, "folder"), "node-a", 5, "GPU-1")
	cmptest.Equal(t, "observed minutes", observed, 5)
	first, _, _ := strings.Cut(logged, "\n")
	cmptest.HasTexts(t, first, "level=error", "cannot write the evidence", "not a directory", "--advise.state-dir")
	_, logged = observeAs(t, t.TempDir(), "node-a", 5, "GPU-1")
	cmptest.LacksTexts(t, logged, "level=error")
}

// TestUnusableEvidence: the last two files that cannot be read are kept, and the log says why they
// cannot.
func TestUnusableEvidence(t *testing.T) {
	for what, c := range map[string]struct {
		change func(content string) string
		says   string
	}{
		"of a newer version": {func(s string) string { return strings.Replace(s, "version 1", "version 2", 1) },
			"version 2"},
		"truncated": {func(s string) string { return s[:len(s)-9] }, "evidence"},
		"empty":     {func(string) string { return "" }, "begins with"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, FileName)
			observeAs(t, dir, "node-a", 20, "GPU-1")

			want := c.change(readText(t, path))
			for range 4 {
				if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
					t.Fatal(err)
				}

				observed, logged := observeAs(t, dir, "node-a", 10, "GPU-1")
				cmptest.Equal(t, "observed minutes", observed, 10)
				cmptest.HasTexts(t, logged, c.says, path+".unusable-1", "level=warn")
				cmptest.Equal(t, "set aside", readText(t, path+".unusable-1"), want)
			}

			cmptest.Equal(t, "files", files(t, dir),
				[]string{FileName, FileName + ".unusable-1", FileName + ".unusable-2"})
		})
	}
}

// TestEvidenceThatCannotBeSetAside is neither used nor overwritten.
func TestEvidenceThatCannotBeSetAside(t *testing.T) {
	dir := t.TempDir()

	path := filepath.Join(dir, FileName)
	for name, content := range map[string]string{path: "garbage", path + ".unusable-1": "older garbage"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.MkdirAll(filepath.Join(path+".unusable-2", "folder"), 0o700); err != nil { // no file takes its place
		t.Fatal(err)
	}

	observed, logged := observeAs(t, dir, "node-a", 30, "GPU-1")
	cmptest.Equal(t, "observed minutes", observed, 30)
	cmptest.HasTexts(t, logged, "level=error", "stays as it is")
	cmptest.Equal(t, "file", readText(t, path), "garbage")
	cmptest.Equal(t, "set aside before", readText(t, path+".unusable-1"), "older garbage")
}

// TestInvalidWorkloadsAreNamed: the log counts what is left out of the evidence, and the rest is
// used.
func TestInvalidWorkloadsAreNamed(t *testing.T) {
	dir := t.TempDir()
	a := advise.New(advise.DefaultOptions())
	s := &gpu.Snapshot{Hostname: "node-a", Time: time.Unix(0, 0)}
	a.Observe(s)
	c := a.Checkpoint()
	c.Workloads = slices.Grow(c.Workloads, 1)[:1] // all that the package leaves open: a workload without a time
	opts := options(dir, log.NewNopLogger())
	f, _ := openEvidence(&opts)
	f.write(c, s.Time)
	_, logged := observeOn(t, true, dir, "node-a", 0, 1, "GPU-1")
	cmptest.HasTexts(t, logged, "dropped=1", "has no time")
}

func readText(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}
