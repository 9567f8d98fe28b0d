package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// What operators see of every fault: the built program on a stepped clock, from outside.

// faultyNode launches a node with the given GPUs and faults. A poll waits a second of real time for
// a reading that hangs.
func faultyNode(t *testing.T, rest string, args ...string) *program {
	t.Helper()
	scenario := write(t, "faulty.yaml", `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: `+strconv.FormatBool(strings.Contains(rest, "pods:"))+`, privileged: true}
seed: 1
`+rest)

	if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--poll.interval=") }) {
		args = append(args, "--poll.interval=100ms")
	}

	return launch(t, append([]string{"--driver=sim", "--sim.clock=step", "--sim.scenario=" + scenario}, args...)...)
}

// series are the samples of one scrape, by name and labels as they are written.
type series map[string]float64

func (p *program) scrape() series {
	p.t.Helper()

	r := p.get("/metrics")
	if r.status != http.StatusOK {
		p.t.Fatalf("GET /metrics: %d %s", r.status, r.body)
	}

	return parseSeries(p.t, r.body)
}

// parseSeries parses metrics in text.
func parseSeries(t testing.TB, text []byte) series {
	t.Helper()

	all := series{}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 1<<20)

	for scanner.Scan() {
		line := scanner.Text()

		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}

		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}

		all[line[:at]] = v
	}

	return all
}

// of finds the values of a family whose labels contain all of the given ones.
func (s series) of(family string, labels ...string) []float64 {
	var found []float64
next:
	for key, v := range s {
		name, rest, _ := strings.Cut(key, "{")
		if name != family {
			continue
		}

		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}

		found = append(found, v)
	}

	return found
}

// expect holds a family to one value, -1 to none at all.
func (s series) expect(t *testing.T, when string, want float64, family string, labels ...string) {
	t.Helper()

	found := s.of(family, labels...)
	if want < 0 && len(found) == 0 || len(found) == 1 && found[0] == want {
		return
	}

	if want < 0 {
		t.Errorf("%s: %s%v is %v, want none", when, family, labels, found)
		return
	}

	t.Errorf("%s: %s%v is %v, want %g", when, family, labels, found, want)
}

func index(i int) string { return fmt.Sprintf(`gpu="%d"`, i) }

// until polls until the exporter says so: when a call that hung has returned is up to the machine.
func (p *program) until(what string, ok func(series) bool) series {
	p.t.Helper()

	for begin := time.Now(); time.Since(begin) < testTimeout; {
		p.advance(time.Millisecond)

		if s := p.scrape(); ok(s) {
			return s
		}
	}

	p.t.Fatalf("never: %s\n%s", what, p.logText())

	return nil
}

func (p *program) said(what string) int { return strings.Count(p.logText(), what) }

func TestAHangingGPU(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, count: 3}]
faults: [{at: 10s, for: 90s, gpu: 1, kind: hang}]
`)
	for range 9 {
		p.advance(time.Second)
	}

	before := p.scrape()
	p.advance(time.Second) // it hangs

	for range 5 {
		p.advance(time.Second)
	}

	s := p.scrape()

	now := s["mig_exporter_snapshot_timestamp_seconds"]
	for i, up := range []float64{1, 0, 1} {
		s.expect(t, "in the hang", up, "nvidia_gpu_up", index(i))

		if up == 1 {
			s.expect(t, "in the hang", now, "nvidia_gpu_last_read_timestamp_seconds", index(i))
			continue
		}

		s.expect(t, "in the hang", now-6, "nvidia_gpu_last_read_timestamp_seconds", index(i))
		s.expect(t, "in the hang", -1, "nvidia_gpu_power_watts", index(i))
		s.expect(t, "in the hang", 1, "nvidia_gpu_info", index(i))
	}

	s.expect(t, "in the hang", 1, "mig_exporter_hung_driver_calls")

	for range 60 {
		p.advance(time.Second)
	}

	s = p.scrape()
	s.expect(t, "after a minute", 1, "mig_exporter_hung_driver_calls")
	s.expect(t, "after a minute", 1, "nvidia_gpu_read_errors_total", index(1), `reason="timeout"`)

	if was, is := before["go_goroutines"], s["go_goroutines"]; is > was+5 {
		t.Errorf("goroutines went from %g to %g", was, is)
	}

	if r := p.get("/-/ready"); r.status != http.StatusOK {
		t.Errorf("/-/ready: %d %s", r.status, r.body)
	}

	p.advance(time.Minute)
	s = p.until("GPU 1 is back", func(s series) bool {
		return s["mig_exporter_hung_driver_calls"] == 0 && len(s.of("nvidia_gpu_power_watts", index(1))) == 1
	})
	s.expect(t, "after the hang", 1, "nvidia_gpu_up", index(1))
	s.expect(t, "after the hang", 1, "nvidia_gpu_read_errors_total", index(1), `reason="timeout"`)

	if down, up := p.said("GPU does not answer"), p.said("GPU answers again"); down != 1 || up != 1 {
		t.Errorf("said %d times that it does not answer and %d times that it does again:\n%s", down, up, p.logText())
	}
}

// TestAGPUThatHangsFromTheStart: the others are found without it.
func TestAGPUThatHangsFromTheStart(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, count: 3}]
faults: [{for: 1m, gpu: 1, kind: hang}, {at: 70s, gpu: 1, kind: xid, xid: 31}, {at: 30s, gpu: 2, kind: xid, xid: 13}]
`)
	for range 40 {
		p.advance(time.Second)
	}

	s := p.scrape()
	for i, up := range []float64{1, 0, 1} {
		s.expect(t, "in the hang", up, "nvidia_gpu_up", index(i))
	}

	s.expect(t, "in the hang", 1, "nvidia_gpu_xid_errors_total", index(2), `xid="13"`)

	if n := p.said("GPU is gone"); n != 0 {
		t.Errorf("said %d times that a GPU is gone that was never there:\n%s", n, p.logText())
	}

	p.advance(21 * time.Second)
	p.until("GPU 1 is found", func(s series) bool { return len(s.of("nvidia_gpu_power_watts", index(1))) == 1 })
	p.advance(10 * time.Second)
	p.until("XIDs of GPU 1 are seen", func(s series) bool {
		return len(s.of("nvidia_gpu_xid_errors_total", index(1), `xid="31"`)) == 1
	})
}

// TestScrapesWhileAPollWaits: no scrape waits for a driver call that hangs, nor does SIGTERM.
func TestScrapesWhileAPollWaits(t *testing.T) {
	t.Parallel()

	scenario := write(t, "hung.yaml", strings.Replace(hungScenario, "50ms", "10s", 1))
	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario, "--poll.interval=10m",
		"--poll.timeout=1h")
	p.advance(time.Second)
	ended := make(chan error, 1)
	go func() { // it waits for the reading for longer than this test takes
		resp, err := http.Post(p.url+"/-/sim/advance?by=10s", "", nil)
		if err == nil {
			resp.Body.Close()
		}

		ended <- err
	}()
	client := http.Client{Timeout: 5 * time.Second}

	paths := []string{"/metrics", "/-/healthy", "/-/ready", "/", "/api/v1/node"}
	for begin := time.Now(); time.Since(begin) < time.Second; { // the poll begins within it
		for _, path := range paths {
			resp, err := client.Get(p.url + path)
			if err != nil {
				t.Fatalf("%s while a poll waits: %v", path, err)
			}

			resp.Body.Close()

			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s while a poll waits: %s", path, resp.Status)
			}
		}
	}

	s := p.scrape()
	s.expect(t, "while a poll waits", 1, "nvidia_gpu_up", index(0))

	select {
	case err := <-ended:
		t.Fatalf("the poll did not wait: %v", err)
	default:
	}

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestALockInTheDriver(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, count: 2}, {model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}]
faults: [{at: 10s, for: 30s, kind: driver-lock}]
`)
	for range 20 {
		p.advance(time.Second)
	}

	s := p.scrape()
	for i := range 3 {
		s.expect(t, "in the lock", 0, "nvidia_gpu_up", index(i))
		s.expect(t, "in the lock", -1, "nvidia_gpu_power_watts", index(i))
		s.expect(t, "in the lock", 1, "nvidia_gpu_info", index(i))
	}

	s.expect(t, "in the lock", 0, "nvidia_mig_gpu_instance_up")
	s.expect(t, "in the lock", 3, "mig_exporter_hung_driver_calls")

	for _, path := range []string{"/-/healthy", "/", "/api/v1/node"} {
		if r := p.get(path); r.status != http.StatusOK {
			t.Errorf("%s: %d", path, r.status)
		}
	}

	p.advance(20 * time.Second)

	s = p.until("all are back", func(s series) bool { return len(s.of("nvidia_gpu_power_watts")) == 3 })
	for i := range 3 {
		s.expect(t, "after the lock", 1, "nvidia_gpu_up", index(i))
	}

	s.expect(t, "after the lock", 0, "mig_exporter_hung_driver_calls")
}

// TestLostInTheMiddleOfAPoll: no half readings, and back without a restart.
func TestLostInTheMiddleOfAPoll(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, count: 2}]
faults: [{at: 10s, for: 20s, gpu: 1, kind: lost, during: energy}]
`)
	p.advance(time.Second)
	p.advance(9 * time.Second)
	p.advance(time.Second)
	s := p.scrape()
	s.expect(t, "lost", 0, "nvidia_gpu_up", index(1))
	s.expect(t, "lost", 1, "nvidia_gpu_up", index(0))

	for _, family := range []string{"nvidia_gpu_power_watts", "nvidia_gpu_memory_used_bytes",
		"nvidia_gpu_temperature_celsius"} {
		s.expect(t, "lost", -1, family, index(1))
	}

	errors := s.of("nvidia_gpu_read_errors_total", index(1), `reason="lost"`)
	p.advance(20 * time.Second)
	s = p.scrape()
	s.expect(t, "back", 1, "nvidia_gpu_up", index(1))
	cmptest.Equal(t, "series of the power once the GPU is back", len(s.of("nvidia_gpu_power_watts", index(1))), 1)

	if len(errors) != 1 || errors[0] < 1 {
		t.Errorf("losses counted: %v, want one value of 1 or more", errors)
	}

	if down, up := p.said("GPU does not answer"), p.said("GPU answers again"); down != 1 || up != 1 {
		t.Errorf("said %d times that it does not answer and %d times that it does again:\n%s", down, up, p.logText())
	}
}

// TestLayoutChangeBetweenEnumerationAndReading: the poll in which it happens shows the new layout,
// and nothing of the old.
func TestLayoutChangeBetweenEnumerationAndReading(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: A100-40GB, mig: true, layout: ["1g.5gb@0", "3g.20gb@4"]}]
faults: [{at: 10s, gpu: 0, kind: external-reconfigure, during: power, layout: ["4g.20gb@0", "3g.20gb@4"]}]
`)
	p.advance(time.Second)
	p.advance(10 * time.Second)
	s := p.scrape()
	s.expect(t, "after the layout change", 1, "nvidia_gpu_mig_layout_changes_total")
	s.expect(t, "after the layout change", 1, "nvidia_gpu_up")
	s.expect(t, "after the layout change", -1, "nvidia_mig_gpu_instance_info", `mig_profile="1g.5gb"`)

	for _, profile := range []string{"4g.20gb", "3g.20gb"} {
		s.expect(t, "after the layout change", 1, "nvidia_mig_gpu_instance_up", `mig_profile="`+profile+`"`)

		if len(s.of("nvidia_mig_gpu_instance_memory_used_bytes", `mig_profile="`+profile+`"`)) != 1 {
			t.Errorf("no memory of %s", profile)
		}
	}

	for _, v := range s.of("nvidia_gpu_read_errors_total") {
		if v != 0 {
			t.Errorf("read errors: %v", s.of("nvidia_gpu_read_errors_total"))
		}
	}
}

// TestDriverReplacedUnderTheProgram: and one that does not match from the start.
func TestDriverReplacedUnderTheProgram(t *testing.T) {
	for _, at := range []string{"0s", "10s"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()

			p := faultyNode(t, "gpus: [{model: A30}]\nfaults: [{at: "+at+", kind: version-mismatch}]\n")
			if at != "0s" {
				p.advance(time.Second)
				p.request(http.MethodPost, "/-/sim/advance?by=10s", nil)
			}

			if code := p.exitCode(); code != exitMismatch {
				t.Errorf("exit code %d, want %d", code, exitMismatch)
			}

			if p.said("restart the process") != 1 || p.said("version mismatch") == 0 {
				t.Errorf("the log does not say so once:\n%s", p.logText())
			}
		})
	}
}

// TestPermissionLostAndRegained: the picture narrows and widens again; it is said once each way.
func TestPermissionLostAndRegained(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: A100-40GB, count: 2, mig: true, layout: ["3g.20gb@0", {gi: "3g.20gb@4", ci: []}]}]
faults: [{at: 10s, for: 100s, kind: no-permission}]
`)
	look := func(when string, whole, instances, withCapacity int) series {
		t.Helper()
		s := p.scrape()

		got := [3]int{
			len(s.of("nvidia_gpu_memory_used_bytes")), len(s.of("nvidia_mig_gpu_instance_up")),
			len(s.of("nvidia_gpu_mig_slices", `kind="compute"`, `state="free"`)),
		}
		if want := [3]int{whole, instances, withCapacity}; got != want {
			t.Errorf("%s: %v GPUs with memory, instances, GPUs with capacity; want %v", when, got, want)
		}

		return s
	}
	p.advance(time.Second)
	look("at first", 2, 4, 2)
	p.advance(10 * time.Second)
	p.advance(16 * time.Second)
	denied := look("without permission", 0, 2, 0).of("nvidia_gpu_read_errors_total", `reason="no_permission"`)

	for range 70 {
		p.advance(time.Second)
	}

	after := look("long without permission", 0, 2, 0).of("nvidia_gpu_read_errors_total", `reason="no_permission"`)
	if sum(denied) == 0 || sum(denied) != sum(after) {
		t.Errorf("errors went from %v to %v while nothing changed", denied, after)
	}

	p.advance(time.Minute) // denied calls are tried again once a minute
	look("with permission again", 2, 4, 2)

	for _, reading := range []string{"memory", "mig", "events"} {
		again := `msg="permission is granted again; readings are no longer left out" reading=` + reading
		if n := p.said(again); n != 1 {
			t.Errorf("said %d times that permission for %s is there again:\n%s", n, reading, p.logText())
		}
	}

	for _, missing := range []string{"memory of MIG GPUs as a whole", "GPU instances without", "XIDs of MIG GPUs"} {
		if n := p.said(missing); n != 1 {
			t.Errorf("said %d times that %s is missing:\n%s", n, missing, p.logText())
		}
	}
}

func sum(list []float64) float64 {
	total := 0.0
	for _, v := range list {
		total += v
	}

	return total
}

func TestEventQueueLost(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: H100-80GB, count: 2}]
faults: [{at: 10s, kind: events-lost}, {at: 20s, gpu: 1, kind: xid, xid: 31}]
`)
	p.advance(time.Second)
	p.advance(10 * time.Second)

	s := p.scrape()
	for i := range 2 {
		s.expect(t, "after the loss", 1, "nvidia_gpu_read_errors_total", index(i), `reading="events"`)
		s.expect(t, "after the loss", 1, "nvidia_gpu_up", index(i))
	}

	p.advance(10 * time.Second)
	s = p.scrape()
	s.expect(t, "later", 1, "nvidia_gpu_xid_errors_total", index(1), `xid="31"`)
	s.expect(t, "later", 1, "nvidia_gpu_read_errors_total", index(1), `reading="events"`)

	if p.said("event queue failed") != 1 || p.said("XIDs may be missing") != 1 {
		t.Errorf("the log does not say once that events were lost:\n%s", p.logText())
	}
}

const podOnAGPU = `
gpus: [{model: A30}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
pods: [{namespace: ns, name: p, container: c, resource: nvidia.com/gpu, workload: w}]
`

// TestKubeletDown: its last word holds for the stated time, marked as stale, and is dropped then.
// It is heard at once when it is back.
func TestKubeletDown(t *testing.T) {
	p := faultyNode(t, podOnAGPU+"faults: [{at: 10s, for: 320s, kind: kubelet-down}]\n")
	check := func(when string, up, stale, named float64) {
		t.Helper()
		s := p.scrape()
		s.expect(t, when, up, "mig_exporter_source_up", `source="kubelet"`)
		s.expect(t, when, stale, "mig_exporter_source_stale", `source="kubelet"`)
		s.expect(t, when, named, "nvidia_gpu_pod_info", `pod="p"`)
		s.expect(t, when, 1, "nvidia_gpu_up")
	}
	p.advance(5 * time.Second)
	check("at first", 1, 0, 1)
	p.advance(6 * time.Second)
	check("down", 0, 1, 1)
	p.advance(podsStaleAfter - 6*time.Second)
	check("down for long", 0, 1, 1)
	p.advance(time.Second)
	check("down for longer than is bearable", 0, 0, 1)
	p.scrape().expect(t, "while its process runs", 1, "nvidia_gpu_pod_info", `confirmed="true"`)
	p.advance(28 * time.Second)
	check("back", 1, 0, 1)
	p.scrape().expect(t, "back", 1, "nvidia_gpu_pod_info", `confirmed="true"`)

	if down := p.said("source is not available"); down < 1 || down > 2 {
		t.Errorf("said %d times that it does not answer, want one or two:\n%s", down, p.logText())
	}

	cmptest.HasTexts(t, p.logText(), "source answers")
}

// TestKubeletDownWithoutProcesses: after a while we do not know whether an idle pod still holds
// its GPU.
func TestKubeletDownWithoutProcesses(t *testing.T) {
	p := faultyNode(t, `
gpus: [{model: A30, count: 2}]
pods: [{name: p, container: main, resource: nvidia.com/gpu}]
faults: [{at: 10s, for: 320s, kind: kubelet-down}]
`)
	check := func(when string, confirmed string, allocated, free int) {
		t.Helper()
		s := p.scrape()
		s.expect(t, when, 1, "nvidia_gpu_pod_info", `confirmed="`+confirmed+`"`)

		values := s.of("nvidia_gpu_allocated")
		if n := len(slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return v != 1 })); n != allocated ||
			len(values)-n != free {
			t.Errorf("%s: %d GPUs are allocated and %d are free, want %d and %d", when, n, len(values)-n, allocated, free)
		}
	}
	p.advance(9 * time.Second)
	check("at first", "true", 1, 1)
	p.advance(3 * time.Second)
	check("down", "true", 1, 1)
	p.advance(podsStaleAfter - 3*time.Second)
	check("down for a while", "true", 1, 0)
	p.advance(time.Second)
	check("down for long", "false", 0, 0)
	p.advance(21 * time.Second)
	check("back, and its list is empty", "false", 0, 0)

	for range 5 {
		p.advance(time.Second)
	}

	check("settled", "true", 1, 1)
}

func TestKubeletSlowAndRestarted(t *testing.T) {
	p := faultyNode(t,
		podOnAGPU+"faults: [{at: 10s, for: 10s, kind: kubelet-slow, delay: 50ms}, {at: 30s, kind: kubelet-restart}]\n")
	for _, when := range []string{"at first", "slow", "quick", "restarted", "later"} {
		p.advance(8 * time.Second)
		s := p.scrape()
		s.expect(t, when, 1, "mig_exporter_source_up", `source="kubelet"`)
		s.expect(t, when, 0, "mig_exporter_source_stale", `source="kubelet"`)
		s.expect(t, when, s["mig_exporter_snapshot_timestamp_seconds"], "mig_exporter_source_last_success_timestamp_seconds",
			`source="kubelet"`)
		s.expect(t, when, 1, "nvidia_gpu_pod_info", `pod="p"`)
	}
}

// TestKubeletThatNeverAnswers: polls go on without it.
func TestKubeletThatNeverAnswers(t *testing.T) {
	p := faultyNode(t, podOnAGPU+"faults: [{at: 10s, kind: kubelet-slow, delay: 100h}]\n")
	p.advance(5 * time.Second)

	for range 30 {
		p.advance(podsStaleAfter / 20)
	}

	s := p.scrape()
	s.expect(t, "in the end", 1, "nvidia_gpu_up")
	s.expect(t, "in the end", s["mig_exporter_snapshot_timestamp_seconds"], "nvidia_gpu_last_read_timestamp_seconds")
	s.expect(t, "while its process runs", 1, "nvidia_gpu_pod_info", `confirmed="true"`)

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestStopInTheHang: the driver is given its time, no more.
func TestStopInTheHang(t *testing.T) {
	for _, second := range []bool{false, true} {
		t.Run(fmt.Sprintf("second signal %v", second), func(t *testing.T) {
			t.Parallel()
			p := faultyNode(t, "gpus: [{model: A30, count: 2}]\nfaults: [{at: 10s, gpu: 1, kind: hang}]\n")
			p.advance(time.Second)
			p.advance(10 * time.Second)

			if !second {
				if code := p.stop(); code != exitOK {
					t.Errorf("exit code %d", code)
				}

				if p.said("abandoned driver calls") != 1 || p.said("cannot shut NVML down") != 1 {
					t.Errorf("it does not say that it left a call behind:\n%s", p.logText())
				}

				return
			}

			p.signal(syscall.SIGTERM)
			p.waitFor("abandoned driver calls") // it waits for the driver from here on
			p.signal(syscall.SIGTERM)
			p.exitCode()

			if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
				t.Errorf("%s, want an end by the second signal:\n%s", p.cmd.ProcessState, p.logText())
			}
		})
	}
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()

	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// TestClockJumps: no GPU is taken for down, and counters go on.
func TestClockJumps(t *testing.T) {
	p := faultyNode(t,
		podOnAGPU+"faults: [{at: 10s, for: 10s, kind: clock-jump, by: 1h}, {at: 30s, for: 10s, kind: clock-jump, by: -1h}]\n")
	var last series

	for range 50 {
		p.advance(time.Second)
		s := p.scrape()
		s.expect(t, "always", 1, "nvidia_gpu_up")
		s.expect(t, "always", 1, "nvidia_gpu_pod_info")
		s.expect(t, "always", 0, "mig_exporter_source_stale", `source="kubelet"`)

		for key, v := range last {
			if name, _, _ := strings.Cut(key, "{"); strings.HasSuffix(name, "_total") && s[key] < v {
				t.Errorf("%s went from %g to %g", key, v, s[key])
			}
		}

		last = s
	}
}

// unidentifiedEvent is not said in chaos, whose driver identifies the GPUs of all events.
const unidentifiedEvent = "the driver reported an event of a GPU that it does not identify"

// notConfigured is not said on a simulated node, which has a kubelet or none.
const notConfigured = "the holders of devices are unknown, so that partition control takes them for busy"

// TestChaosToTheEnd goes through the shipped scenario: whatever is wrong, scrapes are answered, and
// in the end the program says why it ends.
func TestChaosToTheEnd(t *testing.T) {
	p := simulate(t, "chaos", "--poll.interval=50ms")
	for passed := time.Duration(0); passed < 15*time.Minute-10*time.Second; passed += 10 * time.Second {
		p.advance(10 * time.Second)

		if gpus := p.scrape().of("nvidia_gpu_up"); len(gpus) != 8 {
			t.Errorf("after %s: %d GPUs", passed, len(gpus))
		}

		if r := p.get("/-/healthy"); r.status != http.StatusOK {
			t.Errorf("after %s: /-/healthy: %d", passed, r.status)
		}
	}

	s := p.until("all are back", func(s series) bool { return len(s.of("nvidia_gpu_power_watts")) == 8 })
	s.expect(t, "in the end", 0, "mig_exporter_hung_driver_calls")
	p.request(http.MethodPost, "/-/sim/advance?by=10s", nil)

	if code := p.exitCode(); code != exitMismatch {
		t.Errorf("exit code %d, want %d", code, exitMismatch)
	}

	for _, line := range loggedFaults(t) {
		if !slices.Contains([]string{processesHidden, powerMissing, unidentifiedEvent, notConfigured}, line) && p.said(line) == 0 {
			t.Errorf("docs/faults.md has the log line %q, which was not said", line)
		}
	}
}
