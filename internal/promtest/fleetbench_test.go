package promtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// benchMinutes is a week, scraped every minute.
const benchMinutes = 7 * 24 * 60

// TestBenchFleet asks a Prometheus program for the history of a large fleet, and logs how long that
// takes and how much memory. It runs if FLEET_BENCH_PROMETHEUS names the program (make
// bench-fleet). Blocks are kept in FLEET_BENCH_DIR. Nodes have eight GPUs.
func TestBenchFleet(t *testing.T) {
	program := os.Getenv("FLEET_BENCH_PROMETHEUS")

	dir := os.Getenv("FLEET_BENCH_DIR")
	if program == "" || dir == "" {
		t.Skip("FLEET_BENCH_PROMETHEUS and FLEET_BENCH_DIR are not set")
	}

	nodes, err := strconv.Atoi(os.Getenv("FLEET_BENCH_NODES"))
	if err != nil {
		t.Fatal(err)
	}

	for name, n := range map[string]naming{"mig-exporter": {}, "dcgm-exporter": {dcgm: true}} {
		if only := os.Getenv("FLEET_BENCH_NAMES"); only != "" && only != name {
			continue
		}

		t.Run(name, func(t *testing.T) {
			benchFleet(t, program, filepath.Join(dir, strconv.Itoa(nodes), name), unitsOf(nodes), n)
		})
	}
}

func benchFleet(t *testing.T, program, dir string, units []unit, n naming) {
	writeBlocks(t, dir, units, n)
	url, server := startPrometheus(t, program, dir)
	end := scraped().Add(benchMinutes * time.Minute)

	path, err := programPath(t)
	if err != nil {
		t.Fatal(err)
	}

	for _, run := range []string{"first run", "second run"} {
		var stdout, stderr strings.Builder
		cmd := exec.Command(path, "fleet", "--prometheus.url="+url, "--time="+end.Format(time.RFC3339), "--price=H100=2.5",
			"-o", "json")
		cmd.Stdout = &stdout
		cmd.Stderr = &stderr
		began := time.Now()

		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}

		usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		t.Logf("%s: %s, %.0f s of processor time, %d MiB at most; Prometheus: %s; %d processors", run, time.Since(began).
			Round(100*time.Millisecond),
			(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), usage.Maxrss/1024, serverUsage(server),
			runtime.NumCPU())

		if usage.Maxrss > 500*1024 {
			t.Errorf("%d KiB of memory", usage.Maxrss)
		}

		var r fleetReport
		if err := json.Unmarshal([]byte(stdout.String()), &r); err != nil {
			t.Fatal(err)
		}

		checkUnits(t, r, units, n, benchMinutes)

		if r.Fleet.Slices == 0 || r.Fleet.Provisional > 0 {
			t.Errorf("the fleet: %+v", r.Fleet)
		}
	}

	out, err := exec.Command(path, "fleet", "--prometheus.url="+url, "--time="+end.Format(time.RFC3339),
		"--price=H100=2.5").Output()
	t.Logf("%v\n%s", err, out)
}

func programPath(t *testing.T) (string, error) {
	t.Helper()
	path, err := program()

	return filepath.Join(filepath.Dir(path), "migctl"), err
}

// writeBlocks writes the history in blocks of a day, unless it is there.
func writeBlocks(t *testing.T, dir string, units []unit, n naming) {
	t.Helper()

	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return
	}

	began := time.Now()
	start := scraped()

	const day = 24 * 60
	for from := 0; from < benchMinutes; from += day {
		w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, (2 * 24 * time.Hour).Milliseconds())
		if err != nil {
			t.Fatal(err)
		}

		open := func() storage.Appender { return w.Appender(context.Background()) }
		if err := appendHistory(open, units, start, from, from+day, benchMinutes, n); err != nil {
			t.Fatal(err)
		}

		if _, err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}

		if err := w.Close(); err != nil {
			t.Fatal(err)
		}

		t.Logf("day %d written after %s", from/day, time.Since(began).Round(time.Second))
	}

	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startPrometheus starts the program over blocks and waits until it answers.
func startPrometheus(t *testing.T, program, dir string) (url string, server *exec.Cmd) {
	t.Helper()

	config := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(config, []byte("global: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	address := listener.Addr().String()
	listener.Close()
	// No blocks are compacted while it is asked.
	server = exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+dir,
		"--storage.tsdb.retention.time=100y",
		"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--web.listen-address="+address,
		"--log.level=warn")

	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGTERM)
		server.Wait()
	})

	url = "http://" + address
	for range 600 {
		if resp, err := http.Get(url + "/-/ready"); err == nil {
			resp.Body.Close()

			if resp.StatusCode == http.StatusOK {
				return url, server
			}
		}

		time.Sleep(100 * time.Millisecond) // by hand only: a real server's port opens when it has read the blocks
	}

	t.Fatal("Prometheus is not ready after a minute")

	return "", nil
}

// serverUsage says how much memory and processor time the server used.
func serverUsage(server *exec.Cmd) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.Process.Pid))
	if err != nil {
		return err.Error()
	}

	used := ""

	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			used = strings.TrimSpace(rest) + " at most"
		}
	}

	// utime and stime are the 14th and 15th fields, in hundredths of a second; the second one, the
	// name, has no space.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", server.Process.Pid))
	if err != nil {
		return err.Error()
	}

	fields := strings.Fields(string(stat))
	user, errUser := strconv.Atoi(fields[13])

	system, errSystem := strconv.Atoi(fields[14])
	if err := errors.Join(errUser, errSystem); err != nil {
		return err.Error()
	}

	return fmt.Sprintf("%s, %d s of processor time since its start", used, (user+system)/100)
}
