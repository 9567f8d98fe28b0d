package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// hangUp sends SIGHUP and waits until the log, from then on, says something.
func (p *program) hangUp(what string) string {
	p.t.Helper()

	before := len(p.logText())
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}

	late := time.After(testTimeout)

	for {
		p.mu.Lock()
		said := p.log.String()[before:]
		heard := p.heard
		p.mu.Unlock()

		if strings.Contains(said, what) {
			return said
		}

		select {
		case <-heard:
		case err := <-p.done:
			p.t.Fatalf("the program ends with SIGHUP: %v\n%s", err, p.logText())
		case <-late:
			p.t.Fatalf("after SIGHUP the program never says %q:\n%s", what, p.logText())
		}
	}
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestHangUpWithoutFiles: SIGHUP ends nothing, and says that there is nothing to read.
func TestHangUpWithoutFiles(t *testing.T) {
	p := simulate(t, "a30")
	p.hangUp("reloaded nothing")
	p.advance(time.Second)

	if r := p.get("/metrics"); !strings.Contains(string(r.body), "nvidia_gpu_up{") {
		t.Error("no metrics after SIGHUP")
	}

	if code := p.stop(); code != exitOK || !strings.Contains(p.logText(), "msg=stopping signal=terminated") {
		t.Errorf("exit code %d:\n%s", code, p.logText())
	}
}

// TestHangUpReadsTheCountersFile: what changed is said and served at once; a broken file leaves the
// old one in force.
func TestHangUpReadsTheCountersFile(t *testing.T) {
	const temperature, power = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n", "DCGM_FI_DEV_POWER_USAGE, gauge, Power.\n"
	file := write(t, "counters.csv", temperature)
	p := simulate(t, "a30", "--metrics.names=both", "--dcgm.counters="+file)
	p.advance(time.Second)

	serves := func(field string) bool {
		return strings.Contains(string(p.get("/metrics").body), "\n"+field+"{")
	}
	if !serves("DCGM_FI_DEV_GPU_TEMP") || serves("DCGM_FI_DEV_POWER_USAGE") {
		t.Error("the counters file is not in force")
	}

	p.hangUp(`msg="file has not changed" flag=--dcgm.counters file=` + file)

	rewrite(t, file, power)
	p.hangUp(`changes="DCGM_FI_DEV_GPU_TEMP removed, DCGM_FI_DEV_POWER_USAGE added"`)

	if serves("DCGM_FI_DEV_GPU_TEMP") || !serves("DCGM_FI_DEV_POWER_USAGE") {
		t.Error("the new counters file is not in force")
	}

	rewrite(t, file, temperature+"DCGM_FI_DEV_POWER_USAGE, gouge, Power.\n")
	said := p.hangUp("what was read before stays in force")
	cmptest.HasTexts(t, said, file, "gouge", "level=error")
	p.advance(time.Second)

	if serves("DCGM_FI_DEV_GPU_TEMP") || !serves("DCGM_FI_DEV_POWER_USAGE") {
		t.Error("a broken file took the old one out of force")
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}

	p.hangUp("no such file")

	if !serves("DCGM_FI_DEV_POWER_USAGE") || !serves("nvidia_gpu_up") {
		t.Error("a file that is gone took the old one out of force")
	}

	if !strings.Contains(string(p.get("/metrics").body), `mig_exporter_collector_success{collector="dcgm"} 1`) {
		t.Error("the collector failed")
	}

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestHangUpBeginsToReadMediaEngines: a counter of them in the new file is enough for the driver to
// be asked.
func TestHangUpBeginsToReadMediaEngines(t *testing.T) {
	const temperature = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
	file := write(t, "counters.csv", temperature)
	p := simulate(t, "rtx-pro-video", "--metrics.names=dcgm", "--dcgm.counters="+file)
	p.advance(time.Second)

	serves := func() bool { return strings.Contains(string(p.get("/metrics").body), "\nDCGM_FI_DEV_ENC_UTIL{") }
	if serves() {
		t.Error("the encoder is served, and not in the file")
	}

	rewrite(t, file, temperature+"DCGM_FI_DEV_ENC_UTIL, gauge, Encoder.\n")
	p.hangUp(`changes="DCGM_FI_DEV_ENC_UTIL added"`)

	if !serves() {
		t.Error("the encoder is in the file, and not served")
	}

	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestHangUpReadsControlsFiles: named layouts and who may come in by TCP.
func TestHangUpReadsControlsFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	config := func(names ...string) string {
		text := "tls:\n  cert_file: " + cert + "\n  key_file: " + key + "\ntokens:\n"

		for _, name := range names {
			sum := sha256.Sum256([]byte(name))
			text += "  - {name: " + name + ", sha256: " + hex.EncodeToString(sum[:]) + ", rights: [read]}\n"
		}

		return text
	}
	layout := func(name string) string {
		return "version: v1\nmig-configs:\n  " + name + ":\n  - {devices: all, mig-enabled: true, mig-devices: {}}\n"
	}
	layouts := write(t, "layouts.yaml", layout("day"))
	file := filepath.Join(dir, "control.yml")
	rewrite(t, file, config("one"))
	c := controlNode(t, write(t, "s.yaml", repartitionScenario), "--control.layouts="+layouts,
		"--control.listen-address=127.0.0.1:0", "--control.config.file="+file)

	lists := func(name string) bool { return strings.Contains(c.must(0, "layouts"), name) }
	if !lists("day") {
		t.Error("the layouts are not there")
	}

	last := "flag=--control.config.file"
	if said := c.hangUp(last); strings.Count(said, "has not changed") != 2 {
		t.Errorf("nothing has changed:\n%s", said)
	}

	rewrite(t, layouts, layout("night"))
	rewrite(t, file, config("two"))

	said := c.hangUp(last)
	for _, want := range []string{`changes="day removed, night added"`, `changes="token two added, token one removed"`} {
		if !strings.Contains(said, want) {
			t.Errorf("the log lacks %s:\n%s", want, said)
		}
	}

	if lists("day") || !lists("night") {
		t.Error("the new layouts are not in force")
	}

	rewrite(t, layouts, "version: v2\n")
	rewrite(t, file, "tokens: [\n")

	said = c.hangUp(last)
	for _, want := range []string{"what was read before stays in force\" flag=--control.layouts file=" + layouts,
		"expected v1",
		"refuses all TCP clients", file} {
		if !strings.Contains(said, want) {
			t.Errorf("the log lacks %s:\n%s", want, said)
		}
	}

	if !lists("night") {
		t.Error("a broken file took the old layouts out of force")
	}

	rewrite(t, file, config("two"))
	c.hangUp("the file is valid again")

	if code := c.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
