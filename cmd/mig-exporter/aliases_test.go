package main

import (
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"
)

func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, p := range pairs {
			if key, value, _ := strings.Cut(p, "="); key == name {
				return value, true
			}
		}
		return "", false
	}
}

func TestAliasesOfDCGMExporter(t *testing.T) {
	for _, tt := range []struct{ args, env, want string }{
		{args: "-f counters.csv -a :9400 -c 30000", want: "--dcgm.counters=counters.csv --web.listen-address=:9400 --poll.interval=30s"},
		{args: "--collectors=c.csv -collectors d.csv -f=e.csv", want: "--dcgm.counters=c.csv --dcgm.counters=d.csv --dcgm.counters=e.csv"},
		{args: "-k", want: "--kubernetes.labels=container"},
		{args: "-k=false", want: "--kubernetes.labels=off"},
		{args: "-r localhost:5555", want: "--dcgm.mode=remote --dcgm.address=localhost:5555"},
		{args: "-n --debug", want: "--dcgm.hostname-label=off --log.level=debug"},
		{args: "--debug=false", want: ""},
		{args: "--f c.csv --k", want: "--dcgm.counters=c.csv --kubernetes.labels=container"},
		{args: "--debug=false", env: "DCGM_EXPORTER_DEBUG=true", want: ""}, // the flag counts more than its variable
		{args: "--enable-pprof --web-systemd-socket=0", want: "--web.pprof --no-web.systemd-socket"},
		{args: "--nvidia-resource-names nvidia.com/a100,nvidia.com/a10", want: "--kubernetes.resource-name=nvidia.com/a100 --kubernetes.resource-name=nvidia.com/a10"},
		{args: "--log-format text --hpc-job-mapping-dir /run/jobs", want: "--log.format=logfmt --hpc.job-mapping-dir=/run/jobs"},
		{args: "serve --poll.interval=2s --output - -- -k", want: "serve --poll.interval=2s --output - -- -k"},
		{env: "DCGM_EXPORTER_LISTEN=:9400 DCGM_EXPORTER_KUBERNETES=true DCGM_EXPORTER_INTERVAL=",
			want: "--web.listen-address=:9400 --kubernetes.labels=container"},
		{args: "--web.listen-address=:1", env: "DCGM_EXPORTER_LISTEN=:9400", want: "--web.listen-address=:1"},
		{args: "-a :1", env: "DCGM_EXPORTER_LISTEN=:9400", want: "--web.listen-address=:1"},
		{args: "--no-web.pprof", env: "DCGM_EXPORTER_ENABLE_PPROF=true", want: "--no-web.pprof"},
		{env: "DCGM_EXPORTER_LISTEN=:9400 MIG_EXPORTER_WEB_LISTEN_ADDRESS=:1", want: ""},
		{env: "DCGM_EXPORTER_LISTEN=:9400 MIG_EXPORTER_WEB_LISTEN_ADDRESS=", want: "--web.listen-address=:9400"},
		{args: "serve", env: "DCGM_REMOTE_HOSTENGINE_INFO=dcgm:5555", want: "--dcgm.mode=remote --dcgm.address=dcgm:5555 serve"},
	} {
		got, _, err := translateAliases(strings.Fields(tt.args), environment(strings.Fields(tt.env)...))
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
		_, _, err := translateAliases(strings.Fields(tt.args), environment(strings.Fields(tt.env)...))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q with %q: %v; want %q", tt.args, tt.env, err, tt.want)
		}
	}
}

// TestEveryAliasHasItsFlag: what an alias stands for exists, under the environment variable that counts more.
func TestEveryAliasHasItsFlag(t *testing.T) {
	cfg := Config{Disabled: map[string]bool{}}
	app := newApp()
	declareFlags(app, &cfg, &logOptions{})
	if _, err := app.Parse(nil); err != nil { // it names the variables
		t.Fatal(err)
	}
	flags := map[string]*kingpin.FlagModel{}
	for _, f := range app.Model().Flags {
		flags[f.Name] = f
	}
	for _, a := range understood() {
		f := flags[a.flag]
		if f == nil {
			t.Errorf("--%s stands for --%s, which there is not", a.name, a.flag)
			continue
		}
		if f.Envar != envName(a.flag) {
			t.Errorf("--%s has the environment variable %s, not %s", a.flag, f.Envar, envName(a.flag))
		}
		for _, other := range app.Model().Flags {
			if other.Name == a.name || a.short != "" && string(other.Short) == a.short {
				t.Errorf("--%s has the name of an alias", other.Name)
			}
		}
	}
}
