package migctl

import (
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
)

// TestFleetSpec: the answer for a fleet is a file that kubectl mig apply reads, or it says why not.
func TestFleetSpec(t *testing.T) {
	run := func(gpus ...fakeGPU) outcome {
		return runner{}.run(t, defaultAddress, "fleet", "--prometheus.url="+fakePrometheus(t, gpus...),
			"--time=2026-03-04T12:00:00Z", "-o", "spec")
	}

	small := fakeGPU{
		uuid: "GPU-00000001-1", node: "node-1", cluster: "a", model: "NVIDIA H100 80GB HBM3",
		namespace: "vision", pod: "resnet", busy: 0.2, sms: 0.016, dram: 0.01, memory: 6 << 30,
	}

	got := run(small)
	if got.code != exitOK {
		t.Fatalf("%+v", got)
	}

	f, err := spec.DecodeFleet("fleet.yaml", []byte(got.out))
	if err != nil {
		t.Fatalf("%v\n%s", err, got.out)
	}

	if len(f.Entries) != 1 || f.Entries[0].Node != "node-1" || len(f.Entries[0].Spec.Devices) != 1 ||
		!slices.Contains(f.Entries[0].Spec.GPUs, "GPU-00000001-1") {
		t.Errorf("got\n%s", got.out)
	}

	cmptest.LacksTexts(t, got.out, "Left out")

	unread := small
	unread.uuid = "GPU-00000003-1"
	unread.node = "node-2"
	unread.pod = "transcode"
	unread.mediaUnread = true

	got = run(small, unread)
	cmptest.Equal(t, "exit code and errors", outcome{code: got.code, err: got.err}, outcome{})
	cmptest.HasTexts(t, got.out, "# Left out, since not final: 1 with fewer media engines", "migctl fleet -o csv")
	cmptest.LacksTexts(t, got.out, "GPU-00000003-1", "node-2")

	if f, err := spec.DecodeFleet("fleet.yaml", []byte(got.out)); err != nil || len(f.Entries) != 1 {
		t.Errorf("%v\n%s", err, got.out)
	}

	got = run(unread)
	cmptest.Equal(t, "exit code and spec", outcome{code: got.code, out: got.out}, outcome{code: exitFailed})
	cmptest.HasTexts(t, flat(got.err), "there is no fleet to write: no slice is final yet: 1 with fewer media engines")

	other := small
	other.uuid = "GPU-00000002-1"
	other.cluster = "b"
	other.pod = "other"

	if got := run(small, other); got.code != exitFailed || got.out != "" ||
		!strings.Contains(got.err, "2 clusters") {
		t.Errorf("two clusters: %+v", got)
	}
}
