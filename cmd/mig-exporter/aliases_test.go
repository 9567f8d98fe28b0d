package main

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"
)

func TestAliasesOfDCGMExporter(t *testing.T) {
	for _, tt := range []struct{ args, env, want string }{
		{args: "-f counters.csv -a :9400 -c 30000",
			want: "--dcgm.counters=counters.csv --web.listen-address=:9400 --poll.interval=30s"},
		{args: "--collectors=c.csv -collectors d.csv -f=e.csv",
			want: "--dcgm.counters=c.csv --dcgm.counters=d.csv --dcgm.counters=e.csv"},
		{args: "--collectors=+pipes -collectors -ecc --collectors info,up -f counters",
			want: "--collectors=+pipes --collectors=-ecc --collectors=info,up --dcgm.counters=counters"},
		{args: "--collectors=+pipes --collectors=/etc/counters", want: "--collectors=+pipes --dcgm.counters=/etc/counters"},
		{args: "-x 60000 --clock-events-count-window-size=1500",
			want: "--xid-count-window-size=60000 --clock-events-count-window-size=1500"},
		{args: "-k", want: "--kubernetes.labels=container"},
		{args: "-k=false", want: "--kubernetes.labels=off"},
		{args: "-r localhost:5555", want: "--dcgm.address=localhost:5555"},
		{args: "-n --debug", want: "--dcgm.hostname-label=off --log.level=debug"},
		{args: "--debug=false", want: ""},
		{args: "--f c.csv --k", want: "--dcgm.counters=c.csv --kubernetes.labels=container"},
		{args: "--debug=false", env: "DCGM_EXPORTER_DEBUG=true", want: ""}, // the flag counts more than its variable
		{args: "--enable-pprof --web-systemd-socket=0", want: "--web.pprof --no-web.systemd-socket"},
		{args: "--nvidia-resource-names nvidia.com/a100,nvidia.com/a10",
			want: "--kubernetes.resource-name=nvidia.com/a100 --kubernetes.resource-name=nvidia.com/a10"},
		{args: "--log-format text --hpc-job-mapping-dir /run/jobs",
			want: "--log.format=logfmt --hpc.job-mapping-dir=/run/jobs"},
		{args: "serve --poll.interval=2s --output - -- -k", want: "serve --poll.interval=2s --output - -- -k"},
		{env: "DCGM_EXPORTER_LISTEN=:9400 DCGM_EXPORTER_KUBERNETES=true DCGM_EXPORTER_INTERVAL=",
			want: "--web.listen-address=:9400 --kubernetes.labels=container"},
		{args: "--web.listen-address=:1", env: "DCGM_EXPORTER_LISTEN=:9400", want: "--web.listen-address=:1"},
		{args: "-a :1", env: "DCGM_EXPORTER_LISTEN=:9400", want: "--web.listen-address=:1"},
		{args: "--no-web.pprof", env: "DCGM_EXPORTER_ENABLE_PPROF=true", want: "--no-web.pprof"},
		{env: "DCGM_EXPORTER_LISTEN=:9400 MIG_EXPORTER_WEB_LISTEN_ADDRESS=:1", want: ""},
		{env: "DCGM_EXPORTER_LISTEN=:9400 MIG_EXPORTER_WEB_LISTEN_ADDRESS=", want: "--web.listen-address=:9400"},
		{args: "serve", env: "DCGM_REMOTE_HOSTENGINE_INFO=dcgm:5555",
			want: "--dcgm.address=dcgm:5555 serve"},
	} {
		got, _, err := translateAliases(strings.Fields(tt.args), lookupIn(strings.Fields(tt.env)))
		if err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%q with %q: %q, %v; want %q", tt.args, tt.env, got, err, tt.want)
		}
	}
}

func TestAliasesWithBadValues(t *testing.T) {
	for _, tt := range []struct{ args, env, want string }{
		{args: "-c soon", want: `-c="soon": expected a number of milliseconds`},
		{args: "-c -1", want: "milliseconds"},
		{args: "-k=maybe", want: `-k="maybe": expected true or false`},
		{args: "-f", want: "-f: expected a value"},
		{args: "--log-format=logfmt", want: "expected text or json"},
		{env: "DCGM_EXPORTER_INTERVAL=1s", want: `DCGM_EXPORTER_INTERVAL="1s": expected a number of milliseconds`},
	} {
		_, _, err := translateAliases(strings.Fields(tt.args), lookupIn(strings.Fields(tt.env)))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q with %q: %v; want %q", tt.args, tt.env, err, tt.want)
		}
	}
}

// TestRepeatedAliases: a flag that is given twice, by a name of dcgm-exporter, is named by the
// words that the command line has.
func TestRepeatedAliases(t *testing.T) {
	for args, want := range map[string]string{
		"--kubernetes.labels=info -k":              "--kubernetes.labels is set by --kubernetes.labels and -k: expected one of them",
		"-k --kubernetes.labels info":              "--kubernetes.labels is set by -k and --kubernetes.labels: expected",
		"-f a.csv --collectors=b.csv":              "--dcgm.counters is set by -f and --collectors: expected",
		"--web.pprof --enable-pprof=false":         "--web.pprof is set by --web.pprof and --enable-pprof: expected",
		"-r dcgm:5555 --dcgm.address=embedded":     "--dcgm.address is set by -r and --dcgm.address: expected",
		"-k -x 1000 --xid-count-window-size=1000":  "--xid-count-window-size is set by -x and --xid-count-window-size: expected",
		"--log.level=info --debug=false":           "", // it says nothing
		"-a :1 --web.listen-address=:2":            "", // repeatable
		"--nvidia-resource-names=a.b/c,d.e/f -k":   "",
		"capture --output=x -k -- --enable-pprof":  "unexpected --enable-pprof",
		"--poll.interval=1s --poll.interval=2s -k": "'poll.interval' cannot be repeated",
	} {
		_, err := parseCommandLine(strings.Fields(args), nil)
		expectError(t, args, err, want)
	}
}

// TestWindows: the windows of dcgm-exporter's counts are as long as the flags say.
func TestWindows(t *testing.T) {
	for args, want := range map[string]string{
		"-x 0":                                "--xid-count-window-size=0: expected more than 0 and at most 86400000",
		"-x 5m":                               "--xid-count-window-size=5m: expected a number of milliseconds",
		"--xid-count-window-size=90000000":    "--xid-count-window-size=90000000: expected more than 0",
		"--clock-events-count-window-size=-1": "--clock-events-count-window-size=-1: expected a number of milliseconds",
	} {
		if _, err := parseCommandLine(strings.Fields(args), nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}

	counters := write(t, "counters.csv",
		"DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs.\nDCGM_EXP_CLOCK_EVENTS_COUNT, gauge, Clock events.\n")

	args := []string{"--sim.scenario=../../testdata/scenarios/a30.yaml", "--metrics.names=dcgm", "-f", counters}
	for _, test := range []struct {
		args        []string
		xid, clocks string
	}{
		{nil, "300000", "300000"},
		{[]string{"-x", "60000", "--clock-events-count-window-size=120000"}, "60000", "120000"},
	} {
		w := httptest.NewRecorder()
		runInProcess(t, append(args, test.args...)...).handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))

		for field, window := range map[string]string{"DCGM_EXP_XID_ERRORS_COUNT": test.xid,
			"DCGM_EXP_CLOCK_EVENTS_COUNT": test.clocks} {
			of := regexp.MustCompile(`(?m)^` + field + `\{.*window_size_in_ms="(\d+)"`).FindStringSubmatch(w.Body.String())
			if of == nil || of[1] != window {
				t.Errorf("%q: window of %s: %v, want %s ms", test.args, field, of, window)
			}
		}
	}
}

// TestEveryAliasHasItsFlag: what an alias stands for exists, under the environment variable that
// counts more.
func TestEveryAliasHasItsFlag(t *testing.T) {
	cfg := Config{}
	app := newApp()
	declareFlags(app, &cfg, &logOptions{})

	if _, err := app.Parse(nil); err != nil { // it names the variables
		t.Fatal(err)
	}

	flags := map[string]*kingpin.FlagModel{}
	for _, f := range app.Model().Flags {
		flags[f.Name] = f
	}

	for _, a := range translatedAliases() {
		f := flags[a.flag]
		if f == nil {
			t.Errorf("--%s stands for --%s, which there is not", a.name, a.flag)
			continue
		}

		if a.name == a.flag { // the same flag: the alias is its short name and its variable
			if !f.Hidden || f.Envar != "" {
				t.Errorf("--%s is hidden: %v, and has the variable %q", a.flag, f.Hidden, f.Envar)
			}

			continue
		}

		if f.Envar != envName(a.flag) {
			t.Errorf("--%s has the environment variable %s, not %s", a.flag, f.Envar, envName(a.flag))
		}

		for _, other := range app.Model().Flags {
			if other.Name == a.name && a.name != collectorsFlag || a.short != "" && string(other.Short) == a.short {
				t.Errorf("--%s, %q, has a name of the alias --%s, %q", other.Name, other.Short, a.name, a.short)
			}
		}
	}
}
