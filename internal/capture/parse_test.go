package capture

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

const goodFile = `version: 1
node: {hostname: a, kubernetes: false}
recorded:
  by: mig-exporter
  start: 2026-01-01T00:00:00Z
  polls: [0s, 1s, 2.5s]
  pseudonyms: true
  node:
    nvmlDeviceGetCount: 1
    nvmlDeviceGetHandleByIndex(0): gpu0
    nvmlInit: ok
  events:
    - before: 1
      event: {gpu: gpu0, type: XID_CRITICAL_ERROR, data: 79, gpu_instance_id: 3, compute_instance_id: 4294967295}
    - {before: 2, error: UNKNOWN}
  gpus:
    gpu0:
      answers:
        nvmlDeviceGetName: "580"
        nvmlDeviceGetPowerUsage: {polls: {0: 100, 1: {error: NO_PERMISSION}, 1.2: {hangs: 2, then: {error: -5}}, 2: {hangs: ever}}}
        nvmlDeviceGetFieldValues(MEMORY_TEMP, 0): {UNSIGNED_INT: 45}
        nvmlDeviceGetUtilizationRates: {gpu: 1, memory: 2}
        nvmlDeviceGetGpuInstances(9): 1
        nvmlGpmMetricsGet(WHOLE, SM_UTIL): 42.5
      mig_devices:
        0: {nvmlDeviceGetGpuInstanceId: 1}
      gpu_instances:
        9/0: {nvmlGpuInstanceGetComputeInstances: []}
`

// badFile is the good file with one text in the place of another, and what its error says.
type badFile struct{ old, new, want string }

// TestProcessesAreHiddenUnlessTheRecordingSaysOtherwise: files of earlier versions do not say where
// they were made.
func TestProcessesAreHiddenUnlessTheRecordingSaysOtherwise(t *testing.T) {
	for namespace, want := range map[string]error{"host": nil, "container": gpu.ErrPIDNamespace, "": gpu.ErrPIDNamespace} {
		rec := &Recording{Node: nodeInfo{PIDNamespace: namespace}}
		if err := rec.ProcessesHidden(); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", namespace, err, want)
		}
	}
}

// TestBadFiles breaks a good file once in every way, and expects file, line and key.
func TestBadFiles(t *testing.T) {
	if _, err := Parse("f.yaml", []byte(goodFile)); err != nil {
		t.Fatal(err)
	}

	for _, c := range slices.Concat(badFiles(), badAnswers()) {
		_, err := Parse("f.yaml", []byte(strings.Replace(goodFile, c.old, c.new, 1)))

		var parseErr *strictyaml.Error
		if !errors.As(err, &parseErr) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %v, want %s", c.new, c.old, err, c.want)
		}
	}
}

// badFiles are broken outside of the answers of GPUs.
func badFiles() []badFile {
	return []badFile{
		{"version: 1", "version: 2", `f.yaml:1: version: is 2; expected 1`},
		{"kubernetes: false", "kubernetes: true", "f.yaml:2: node.kubernetes: is true; expected false"},
		{"kubernetes: false", "kubernetes: 0", "f.yaml:2: node.kubernetes: is 0; expected false: the kubelet of a node is not recorded"},
		{"kubernetes: false", "kubernetes: false, pidNamespace: pod",
			"f.yaml:2: node.pidNamespace: is \"pod\"; expected one of host, container"},
		{", kubernetes: false", "", "f.yaml:2: node.kubernetes: is missing"},
		{"by: mig-exporter", "bye: mig-exporter", "f.yaml:4: recorded.bye: is not known here"},
		{"by: mig-exporter", "by: mig-exporter\n  by: b", "f.yaml:5: recorded.by: duplicate key"},
		{"2026-01-01T00:00:00Z", "yesterday", "f.yaml:5: recorded.start: is \"yesterday\"; expected a time such as"},
		{"2026-01-01T00:00:00Z", "[]", "f.yaml:5: recorded.start: is a list; expected a time such as"},
		{"[0s, 1s, 2.5s]", "[0s, 1, 2.5s]", "f.yaml:6: recorded.polls[1]: is 1; expected a duration"},
		{"[0s, 1s, 2.5s]", "[0s, 1x, 2.5s]", "f.yaml:6: recorded.polls[1]: is \"1x\"; expected a duration"},
		{"[0s, 1s, 2.5s]", "[1s, 2s, 2.5s]",
			"f.yaml:6: recorded.polls: is a list; expected the times of one poll or more, the first 0s"},
		{"[0s, 1s, 2.5s]", "[]", "f.yaml:6: recorded.polls: is a list; expected the times of one poll or more"},
		{"[0s, 1s, 2.5s]", "0s", "f.yaml:6: recorded.polls: is \"0s\"; expected a list"},
		{"pseudonyms: true", "pseudonyms: kept", "f.yaml:7: recorded.pseudonyms: is \"kept\"; expected true or false"},
		{"nvmlDeviceGetCount: 1", "nvmlDeviceGetCount: -1",
			"f.yaml:9: recorded.node.nvmlDeviceGetCount: is -1; expected a number of handles"},
		{"nvmlDeviceGetCount: 1", "nvmlDeviceGetCount: 99999",
			"f.yaml:9: recorded.node.nvmlDeviceGetCount: is 99999; expected a number of handles"},
		{"nvmlDeviceGetCount: 1", "nvmlDeviceGetCount: [1]",
			"f.yaml:9: recorded.node.nvmlDeviceGetCount: is a list; expected a whole number"},
		{"(0): gpu0", "(0): gpu1",
			"f.yaml:10: recorded.node.nvmlDeviceGetHandleByIndex(0): is \"gpu1\"; expected one of the recorded gpus"},
		{"nvmlInit: ok", "nvmlInit: fine", "f.yaml:11: recorded.node.nvmlInit: is \"fine\"; expected ok"},
		{"nvmlInit: ok", "nvmlInits: ok", "f.yaml:11: recorded.node.nvmlInits: is no call"},
		{"nvmlInit: ok", "nvmlInit(3): ok", "f.yaml:11: recorded.node.nvmlInit(3): is no call"},
		{"nvmlInit: ok", "nvmlDeviceGetCount: 1", "f.yaml:11: recorded.node.nvmlDeviceGetCount: duplicate key"},
		{"before: 1", "before: 3", "f.yaml:13: recorded.events[0].before: is 3; expected at most 2"},
		{"before: 1", "before: -1", "f.yaml:13: recorded.events[0].before: is -1; expected at most 2"},
		{"{gpu: gpu0", "{gpu: gpu9",
			"f.yaml:14: recorded.events[0].event.gpu: is \"gpu9\"; expected one of the recorded gpus"},
		{"XID_CRITICAL_ERROR", "XID", "f.yaml:14: recorded.events[0].event.type: is \"XID\"; expected a type of event"},
		{", data: 79", "", "f.yaml:14: recorded.events[0].event.data: is missing"},
		{"error: UNKNOWN", "error: ODD", "f.yaml:15: recorded.events[1].error: is \"ODD\""},
		{"{before: 2, error: UNKNOWN}", "{before: 2}",
			"f.yaml:15: recorded.events[1]: is a mapping; expected either an event or an error"},
		{"    gpu0:", "    0:", "f.yaml:17: recorded.gpus.0: is 0; expected text"},
	}
}

// badAnswers are broken in the answers of a GPU, or as YAML.
func badAnswers() []badFile {
	return []badFile{
		{`"580"`, "580", "f.yaml:19: recorded.gpus.gpu0.answers.nvmlDeviceGetName: is 580; expected text"},
		{"0: 100", "0: -100", "f.yaml:20: recorded.gpus.gpu0.answers.nvmlDeviceGetPowerUsage.polls.0: is -100"},
		{"0: 100", "5: 100",
			"f.yaml:20: recorded.gpus.gpu0.answers.nvmlDeviceGetPowerUsage.polls.5: is 5; expected at most 2"},
		{"1.2:", "1.0:", "polls.1.0: is no poll"},
		{"0: 100", "1: 100", "polls.1: is not after the poll before it"},
		{"NO_PERMISSION", "0", "polls.1.error: is 0; expected a code"},
		{"NO_PERMISSION", "[1]", "polls.1.error: is a list; expected a code"},
		{"hangs: 2, ", "hangs: 7, ", "polls.1.2.hangs: is 7; expected at most 2"},
		{"then: {error: -5}", "then: {hangs: ever}", "polls.1.2.then: hangs again"},
		{"hangs: ever", "hangs: 2", "polls.2.hangs: is 2; expected ever"},
		{"(MEMORY_TEMP, 0)", "(MEMORY_TEMPO, 0)", `has the argument "MEMORY_TEMPO"`},
		{"(MEMORY_TEMP, 0)", "(MEMORY_TEMP, 0", "is not closed"},
		{"UNSIGNED_INT: 45", "UNSIGNED_INT: 4500000000",
			"f.yaml:21: recorded.gpus.gpu0.answers.nvmlDeviceGetFieldValues(MEMORY_TEMP, 0).UNSIGNED_INT:"},
		{"UNSIGNED_INT: 45", "INT: 45", "is no type of a field's value"},
		{"UNSIGNED_INT: 45", "DOUBLE: warm", "is \"warm\"; expected a number"},
		{"UNSIGNED_INT: 45", "99: 012", "is 012; expected text"},
		{"UNSIGNED_INT: 45", "99: ab", "is \"ab\"; expected 8 bytes in hexadecimal"},
		{"{UNSIGNED_INT: 45}", "45", "expected a value with its type"},
		{"memory: 2", "memories: 2", "nvmlDeviceGetUtilizationRates.memories: is not known here"},
		{", memory: 2", "", "nvmlDeviceGetUtilizationRates.memory: is missing"},
		{"GetGpuInstances(9): 1", "GetGpuInstances(9): 100000000", "expected a number of handles"},
		{"SM_UTIL): 42.5", "SM_UTIL): much", "is \"much\"; expected a number"},
		{" 0: {nvml", " zero: {nvml", "f.yaml:26: recorded.gpus.gpu0.mig_devices.zero: is \"zero\"; expected a whole number"},
		{"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetSerial", "mig_devices.0.nvmlDeviceGetSerial: is no call"},
		{"ComputeInstances: []", "ComputeInstances: *a", "not YAML"},
		{"9/0:", "9/99999:",
			"f.yaml:28: recorded.gpus.gpu0.gpu_instances.9/99999: is \"9/99999\"; expected a profile id and a position"},
		{"9/0:", "09/0:", "gpu_instances.09/0: is \"09/0\"; expected a profile id and a position"},
		{"version: 1", "version: [", "f.yaml:"},
		{goodFile, "", "f.yaml:1: is empty"},
		{goodFile, goodFile + "---\n{}\n", "a second document"},
	}
}

// TestDocumentedFile: the example of docs/capture.md is a recording.
func TestDocumentedFile(t *testing.T) {
	page, err := os.ReadFile("../../docs/capture.md")
	if err != nil {
		t.Fatal(err)
	}

	_, example, _ := strings.Cut(string(page), "```yaml\n")

	example, _, found := strings.Cut(example, "```")
	if !found {
		t.Fatal("docs/capture.md has no example")
	}

	rec, err := Parse("docs/capture.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}

	rewritten(t, rec)
}

func TestIsRecording(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		goodFile:                             true,
		"{version: 1, recorded: }":           true,
		"version: 1\nnode: {}\ngpus: []":     false,
		"gpus:\n  - recorded: 1\n":           false,
		"# recorded:\nversion: 1\n":          false,
		"recorded: [":                        false,
		"":                                   false,
		"&a recorded: 1\n*a : 1\nversion: 1": true,
	} {
		path := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}

		if got := IsRecording(path); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}

	if IsRecording(filepath.Join(dir, "none.yaml")) {
		t.Error("a file that is not there")
	}

	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// FuzzParse: whatever a file says, reading it does not crash, every error says where it is, and
// what is read is written as a file that is read again as the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Add([]byte("{version: 1, recorded: {polls: [0s], gpus: {a: {answers: {nvmlDeviceGetName: {hangs: {}, then: x}}}}}}"))
	f.Add([]byte("recorded: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := Parse("f.yaml", data)
		if err != nil {
			var parseErr *strictyaml.Error
			if !errors.As(err, &parseErr) || parseErr.Line < 1 {
				t.Fatalf("error without a place: %v", err)
			}

			cmptest.Equal(t, "file of the error", parseErr.File, "f.yaml")

			return
		}

		rewritten(t, rec)
		rewritten(t, rec.Pseudonymize())
		replay := NewReplay(rec, true)
		_ = replay.Close() // what hangs returns

		d, _ := replay.Library().DeviceGetHandleByIndex(0)
		if d != nil {
			_, _ = d.GetPowerUsage()
			_, _ = d.GetGpuInstances(9, 1)
		}
	})
}
