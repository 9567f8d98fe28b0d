package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestBadVariables: an error about a value names the variable that it comes from.
func TestBadVariables(t *testing.T) {
	for _, tt := range []struct {
		env, args string
		says      []string
	}{
		{"MIG_EXPORTER_POLL_TIMEOUT=soon", "", []string{"MIG_EXPORTER_POLL_TIMEOUT: --poll.timeout=soon: expected"}},
		{"MIG_EXPORTER_WEB_STATE=yes", "", []string{"MIG_EXPORTER_WEB_STATE=yes: expected true or false"}},
		{"MIG_EXPORTER_DRIVER=rocm", "check-config", []string{"MIG_EXPORTER_DRIVER", "nvml or sim"}},
		{"MIG_EXPORTER_POLL_INTERVAL=1us", "", []string{"50ms", "--poll.interval is set by MIG_EXPORTER_POLL_INTERVAL"}},
		{"DCGM_EXPORTER_INTERVAL=1", "", []string{"50ms", "--poll.interval is set by DCGM_EXPORTER_INTERVAL"}},
		{"MIG_EXPORTER_CONTROL_HOOK=reload", "--control.enabled",
			[]string{"--control.hook: ", "(--control.hook is set by MIG_EXPORTER_CONTROL_HOOK)"}},
		{"MIG_EXPORTER_CONTROL_DEVICE_PLUGIN=n/a=b", "--control.enabled --kubernetes.socket=",
			[]string{"=n/a=b: expected a path in --kubernetes.socket: ", "--control.device-plugin=n/a=b: expected --control.cordon",
				"(--control.device-plugin is set by MIG_EXPORTER_CONTROL_DEVICE_PLUGIN)"}},
		{"MIG_EXPORTER_CONTROL_ENABLED=false", "--control.mode=apply",
			[]string{"--control.mode has no effect: expected --control.enabled with it (--control.enabled is set by MIG_"}},
		{"MIG_EXPORTER_ADVISE_MAX_STRETCH=0.5", "",
			[]string{"--advise.max-stretch=0.5: expected 1 to 100 (--advise.max-stretch is set by"}},
		{"MIG_EXPORTER_CAPTURE_POLLS=few", "capture --output=-", []string{"MIG_EXPORTER_CAPTURE_POLLS"}},
	} {
		t.Run(tt.env, func(t *testing.T) {
			name, value, _ := strings.Cut(tt.env, "=")
			t.Setenv(name, value)

			_, err := parseCommandLine(strings.Fields(tt.args), os.Environ())
			for _, want := range tt.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q in it", err, want)
				}
			}
		})
	}

	t.Setenv("MIG_EXPORTER_POLL_INTERVAL", "1us")

	_, err := parseCommandLine([]string{"--poll.interval=2us"}, os.Environ())
	if err == nil || strings.Contains(err.Error(), "MIG_EXPORTER") {
		t.Errorf("the command line has the value: %v", err)
	}

	if _, err := parseCommandLine([]string{"--poll.interval=2s"}, os.Environ()); err != nil {
		t.Errorf("the command line overrules a bad variable: %v", err)
	}

	t.Setenv("MIG_EXPORTER_VERSION", "1.2.3")

	if _, err := parseCommandLine([]string{"--poll.interval=2s"}, os.Environ()); err != nil {
		t.Errorf("a variable that images have: %v", err)
	}
}

// TestVariablesThatNoFlagHas: each is named with the nearest; those of a Kubernetes service are
// none.
func TestVariablesThatNoFlagHas(t *testing.T) {
	got := fmt.Sprint(unknownVariables([]string{
		"MIG_EXPORTER_POL_INTERVAL=1s", "MIG_EXPORTER_POLL_INTERVAL=1s", "MIG_EXPORTER_KUBERNETES_NODENAME=n", "PATH=/bin",
		"MIG_EXPORTER_COLLECTORS=-ecc", "MIG_EXPORTER_CAPTURE_POLLS=3", "MIG_EXPORTER_WEB_PORT=1",
		"MIG_EXPORTER_SERVICE_HOST=10.0.0.1", "MIG_EXPORTER_SERVICE_PORT=9401", "MIG_EXPORTER_SERVICE_PORT_METRICS=9401",
		"DCGM_EXPORTER_LISTEN=:9400", "DCGM_EXPORTER_COLECTORS=f.csv", "DCGM_EXPORTER_PORT=tcp://10.0.0.1:9400",
		"DCGM_EXPORTER_SERVICE_HOST=10.0.0.1", "DCGM_EXPORTER_SERVICE_PORT_METRICS=9400",
		"DCGM_EXPORTER_PORT_9400_TCP_PROTO=tcp",
		"MIG_EXPORTER_PORT=tcp://10.0.0.1:9401", "MIG_EXPORTER_PORT_9401_TCP=tcp://10.0.0.1:9401",
		"MIG_EXPORTER_PORT_9401_TCP_ADDR=10.0.0.1",
	}))
	for _, want := range []string{
		"MIG_EXPORTER_POL_INTERVAL nearest MIG_EXPORTER_POLL_INTERVAL",
		"MIG_EXPORTER_KUBERNETES_NODENAME nearest MIG_EXPORTER_KUBERNETES_NODE_NAME",
		"MIG_EXPORTER_WEB_PORT", "variable DCGM_EXPORTER_COLECTORS see docs/migration.md",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}

	if n := strings.Count(got, "no effect"); n != 4 {
		t.Errorf("%d warnings, want 4: %s", n, got)
	}
}

// TestIneffective: what has no effect beside the other flags is warned of by the name that it was
// given.
func TestIneffective(t *testing.T) {
	for _, tt := range []struct{ env, args, want string }{
		{"MIG_EXPORTER_CONTROL_MODE=apply", "", "variable MIG_EXPORTER_CONTROL_MODE needs --control.enabled"},
		{"MIG_EXPORTER_CONTROL_MODE=apply", "--control.enabled", ""},
		{"", "--dcgm.counters=f.csv", "flag --dcgm.counters needs --metrics.names=dcgm or both"},
		{"", "-f f.csv", "flag -f needs --metrics.names=dcgm or both"},
		{"DCGM_EXPORTER_COLLECTORS=f.csv", "", "variable DCGM_EXPORTER_COLLECTORS needs --metrics.names=dcgm or both"},
		{"", "--dcgm.counters=f.csv --metrics.names=both", ""},
		{"", "--collectors=f.csv", "flag --collectors needs --metrics.names=dcgm or both"},
		{"", "--collectors=+pipes", ""},
		{"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE=1000", "", "variable DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE needs --metrics.names"},
		{"", "-x 1000", "flag -x needs --metrics.names=dcgm or both"},
		{"", "--sim.clock=step", "flag --sim.clock needs --driver=sim"},
		{"MIG_EXPORTER_KUBERNETES_SOCKET=", "",
			"an empty variable has no effect [variable MIG_EXPORTER_KUBERNETES_SOCKET use --kubernetes.socket=]"},
		{"MIG_EXPORTER_XID_COUNT_WINDOW_SIZE=1000", "", ""},
		{"MIG_EXPORTER_NVML_LIBRARY_PATH=/x", "--driver=sim --sim.scenario=s.yaml",
			"variable MIG_EXPORTER_NVML_LIBRARY_PATH needs --driver=nvml"},
	} {
		t.Run(tt.env+" "+tt.args, func(t *testing.T) {
			if name, value, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(name, value)
			}

			inv, err := parseCommandLine(strings.Fields(tt.args), os.Environ())
			if err != nil {
				t.Fatal(err)
			}

			if got := fmt.Sprint(inv.Warnings); !strings.Contains(got, tt.want) || tt.want == "" && len(inv.Warnings) > 0 {
				t.Errorf("warnings %s, want %q", got, tt.want)
			}
		})
	}

	t.Setenv("MIG_EXPORTER_POL_INTERVAL", "1s")
	var out, errOut strings.Builder
	cmptest.Equal(t, "exit code", execute(t.Context(), []string{"check-config"}, &out, &errOut), exitOK)
	cmptest.HasTexts(t, errOut.String(), "level=warn", "nearest=MIG_EXPORTER_POLL_INTERVAL")
}

// TestHostnameInAPod: dcgm-exporter's manifests name the node by NODE_NAME; the host name of a pod
// is the pod's, another after each restart.
func TestHostnameInAPod(t *testing.T) {
	for _, tt := range []struct{ env, args, want, label string }{
		{"", "", "", ""},
		{"", "--kubernetes.node-name=gpu-8", "gpu-8", ""}, // the label is the host name then
		{"NODE_NAME=gpu-7", "", "gpu-7", "gpu-7"},
		{"NODE_NAME=gpu-7", "--kubernetes.node-name=gpu-8", "gpu-8", "gpu-7"},
		{"NODE_NAME=gpu-7", "--driver=sim --sim.scenario=s.yaml", "", "gpu-7"}, // the host name is that of the scenario
	} {
		inv, err := parseCommandLine(strings.Fields(tt.args), []string{tt.env})
		what := tt.env + " " + tt.args
		expectError(t, what, err, "")
		cmptest.Equal(t, what+": host name", inv.Config.Hostname, tt.want)
		cmptest.Equal(t, what+": label", inv.Config.Metrics.NodeName, tt.label)
	}

	cfg := configOf(t)
	cfg.Hostname = "gpu-7"

	x, err := newExporter(cfg, log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.poller.Run(ctx) }()

	expectError(t, "first poll", x.askLoop(ctx), "")
	cmptest.Equal(t, "host name of readings", x.poller.Current().Hostname, "gpu-7")
	cancel()
	expectError(t, "loop", <-ended, "")
}

// TestCountersFileOfDCGMExportersImage: its manifests name a file that is in its image only; the
// error says what to do.
func TestCountersFileOfDCGMExportersImage(t *testing.T) {
	var out, errOut strings.Builder

	code := execute(t.Context(),
		strings.Fields("check-config --metrics.names=dcgm -f /etc/dcgm-exporter/dcp-metrics-included.csv"), &out, &errOut)
	for _, want := range []string{"/etc/dcgm-exporter/dcp-metrics-included.csv", "leave it out", "docs/migration.md"} {
		if code != exitFailure || !strings.Contains(errOut.String(), want) {
			t.Errorf("exit code %d, %s; want %q", code, errOut.String(), want)
		}
	}
}
