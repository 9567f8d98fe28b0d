package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// goneCase is a flag of an earlier version as it was typed, and what became of it and of its
// variable, which had the same value.
type goneCase struct{ arg, became, variable string }

// goneCases has each of them. The text of a variable is empty if it is the flag's.
func goneCases() []goneCase {
	const (
		milliseconds = "=MILLISECONDS, as in dcgm-exporter"
		lenient      = " that mig-exporter check-config names"
	)

	return []goneCase{
		{"--collector.pipes", "use --collectors=+pipes", "use MIG_EXPORTER_COLLECTORS=+pipes"},
		{"--collector.ecc=false", "use --collectors=-ecc", "use MIG_EXPORTER_COLLECTORS=-ecc"},
		{"--advise.headroom=0.2",
			"leave it out: a recommended slice has 0.15 of the highest memory use free", ""},
		{"--advise.target-busy=0.9",
			"leave it out: a recommended slice is busy for at most 0.8 at p99", ""},
		{"--control.call-timeout=1m", "leave it out: a driver call is stuck after 30s", ""},
		{"--control.settle-timeout=5m", "leave it out: an operation is unsettled after 2m0s, and " +
			"succeeds when the kubelet has followed", ""},
		{"--control.hook-timeout=5m", "leave it out: a hook may take 2m0s", ""},
		{"--dcgm.clock-events-window=1m", "use --clock-events-count-window-size" + milliseconds,
			"use DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE" + milliseconds},
		{"--dcgm.counters.lenient", "correct or remove the rows of --dcgm.counters" + lenient,
			"correct or remove the rows of the counters file" + lenient},
		{"--dcgm.mode=remote",
			"use --dcgm.address=HOST:PORT or --dcgm.address=embedded; without it DCGM is off",
			"use MIG_EXPORTER_DCGM_ADDRESS=HOST:PORT or MIG_EXPORTER_DCGM_ADDRESS=embedded; without it"},
		{"--dcgm.xid-window=1m", "use --xid-count-window-size" + milliseconds,
			"use DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE" + milliseconds},
		{"--force", "remove the file before mig-exporter capture writes it", ""},
		{"--kubernetes.container-logs=/logs",
			"leave it out: the kubelet's links are in /var/log/containers", ""},
		{"--kubernetes.stale-after=1m",
			"leave it out: the kubelet's last answer is used for 5m0s", ""},
		{"--path.procfs=/host/proc", "leave it out: processes are read from /proc", ""},
		{"--poll.stale-after=5",
			"leave it out: readings of a GPU that does not answer end after 3 intervals", ""},
		{"--web.max-scrapes=100", "leave it out: 40 scrapes are served at the same time", ""},
		{"--web.openmetrics-created", "leave it out: protobuf says when counters began; Prometheus " +
			"asks for it with --enable-feature=created-timestamp-zero-ingestion", ""},
		{"--web.ready-max-age=0s", "leave it out: the node is not ready if its last reading is " +
			"older than 3 intervals, and than 15s", ""},
		{"--web.telemetry-path=/gpu",
			"leave it out: the metrics are at /metrics; a proxy can serve them elsewhere", ""},
	}
}

// TestGoneFlags: a flag of an earlier version, and its variable, end the program with code 2 and
// what became of it, for each command, and as two words.
func TestGoneFlags(t *testing.T) {
	expect := func(t *testing.T, says string, args ...string) {
		t.Helper()
		var out, errOut strings.Builder
		cmptest.Equal(t, "exit code", execute(t.Context(), args, &out, &errOut), exitUsage)
		cmptest.HasTexts(t, errOut.String(), "mig-exporter: "+says)
	}

	for _, tt := range goneCases() {
		t.Run(tt.arg, func(t *testing.T) {
			name, value, valued := strings.Cut(tt.arg, "=")
			variable := envName(strings.TrimPrefix(name, "--"))

			if !valued {
				value = "true"
			}

			if strings.HasPrefix(name, "--collector.") {
				name = tt.arg // a switch
			}

			expect(t, name+" is gone: "+tt.became, tt.arg)
			expect(t, name+" is gone: "+tt.became, "check-config", tt.arg)

			if valued && name != tt.arg {
				expect(t, name+" is gone: "+tt.became, "check-node", name, value)
			}

			t.Setenv(variable, value)
			expect(t, variable+" is gone: "+cmp.Or(tt.variable, tt.became), "serve")

			_, err := parseCommandLine(nil, []string{variable + "="}) // as if it were not set
			expectError(t, "empty variable", err, "")
		})
	}
}

// TestEveryGoneFlagIsGone: the table has each of them, and the program declares none.
func TestEveryGoneFlagIsGone(t *testing.T) {
	for _, g := range goneFlags() {
		found := false
		for _, tt := range goneCases() {
			found = found || hasFlag([]string{tt.arg}, g.name)
		}

		if !found {
			t.Errorf("the table of this test lacks --%s", g.name)
		}

		for _, f := range allFlags() {
			if f.Name == g.name {
				t.Errorf("--%s is gone, and declared", g.name)
			}
		}
	}
}

// TestGoneCollectors: several flags of collectors are replaced by one, and values of other flags
// are none of them.
func TestGoneCollectors(t *testing.T) {
	for _, tt := range []struct{ env, args, want string }{
		{"", "--collector.pipes --no-collector.ecc",
			"--collector.pipes is gone: use --collectors=+pipes,-ecc\n" +
				"--no-collector.ecc is gone: use --collectors=+pipes,-ecc"},
		{"", "--no-collector.ecc --log.level=none", "--no-collector.ecc is gone: use --collectors=-ecc"},
		{"MIG_EXPORTER_COLLECTOR_XID=0 MIG_EXPORTER_COLLECTOR_MEDIA=1", "",
			"use MIG_EXPORTER_COLLECTORS=-xid,+media"},
		{"", "--collector.ecc=off", "--collector.ecc=off is gone: use --collectors=+ecc or -ecc"},
		{"", "--collector.speed", "--collector.speed is gone: use --collectors=+NAME"},
		{"MIG_EXPORTER_COLLECTOR_ECC=off", "", "use MIG_EXPORTER_COLLECTORS=+ecc or -ecc"},
		{"", "-f --collector.pipes", ""},
		{"", "capture --output=x -- --collector.pipes", "unexpected --collector.pipes"},
	} {
		_, err := parseCommandLine(strings.Fields(tt.args), strings.Fields(tt.env))
		expectError(t, tt.env+" "+tt.args, err, tt.want)
	}
}

// TestHelpDespiteGoneVariables: a variable of an earlier version does not keep the help from those
// who need it now.
func TestHelpDespiteGoneVariables(t *testing.T) {
	command := exec.CommandContext(t.Context(), binary, "--help")
	command.Env = append(os.Environ(), "MIG_EXPORTER_DCGM_MODE=remote")

	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}

	cmptest.HasTexts(t, string(out), "--dcgm.address")
}

// TestWordsOfDCGMMode: what was a value of --dcgm.mode is no host name.
func TestWordsOfDCGMMode(t *testing.T) {
	for value, want := range map[string]string{
		"off":    "--dcgm.address=off: leave it out",
		"none":   "--dcgm.address=none: leave it out",
		"remote": "--dcgm.address=remote: expected HOST:PORT",
	} {
		_, err := parseCommandLine([]string{"--dcgm.address=" + value}, nil)
		expectError(t, value, err, want)
	}
}

// TestGoneFlagsInAFile: a flag of an earlier version ends the program from a file of arguments,
// too.
func TestGoneFlagsInAFile(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	outer := filepath.Join(dir, "outer")

	for path, text := range map[string]string{
		inner: "# ours\n--path.procfs=/host/proc\n\n--collector.pipes\n",
		outer: "--log.level=debug\n@" + inner + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	circle := filepath.Join(dir, "circle")
	if err := os.WriteFile(circle, []byte("@"+circle+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := parseCommandLine([]string{"@" + circle}, nil)
	expectError(t, "a file that names itself", err, "expected at most 100 files of arguments")

	_, err = parseCommandLine([]string{"@" + dir + "/none"}, nil)
	expectError(t, "a file that is not there", err, "none")

	_, err = parseCommandLine([]string{"--", "@" + inner}, nil)
	expectError(t, "no file", err, "unexpected @"+inner)

	for _, args := range [][]string{{"@" + inner}, {"check-config", "@" + outer}} {
		var out, errOut strings.Builder
		cmptest.Equal(t, "exit code", execute(t.Context(), args, &out, &errOut), exitUsage)
		cmptest.HasTexts(t, errOut.String(),
			"--path.procfs is gone: leave it out: processes are read from /proc",
			"--collector.pipes is gone: use --collectors=+pipes")
	}
}

// TestUnknownGoneCollectors: a variable of a collector that there never was is refused as those of
// the others are, unless the kubelet has set it for a service of that name.
func TestUnknownGoneCollectors(t *testing.T) {
	command := exec.CommandContext(t.Context(), binary, "check-config")
	command.Env = append(os.Environ(), "MIG_EXPORTER_COLLECTOR_FOO=true", "MIG_EXPORTER_COLLECTOR_ECC=off",
		"MIG_EXPORTER_COLLECTOR_SERVICE_HOST=10.0.0.1", "MIG_EXPORTER_COLLECTOR_PORT_80_TCP=tcp://10.0.0.1:80",
		"MIG_EXPORTER_COLLECTOR_BAR=")

	text, err := command.CombinedOutput()
	cmptest.Equal(t, "exit code", command.ProcessState.ExitCode(), exitUsage)
	cmptest.HasTexts(t, string(text),
		"MIG_EXPORTER_COLLECTOR_FOO is gone: use MIG_EXPORTER_COLLECTORS=+ecc or -ecc,+NAME",
		"MIG_EXPORTER_COLLECTOR_ECC is gone: use ")
	cmptest.LacksTexts(t, string(text), "COLLECTOR_SERVICE", "COLLECTOR_PORT", "COLLECTOR_BAR is gone")

	if err == nil {
		t.Error("the program has run")
	}
}
