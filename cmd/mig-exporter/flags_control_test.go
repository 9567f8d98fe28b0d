package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// What cannot be is refused with the flag that says it and what was expected.
func TestControlFlags(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		says string // empty: it is good
	}{
		{"the socket alone", []string{"--control.enabled"}, ""},
		{"off", []string{"--control.listen-address=:9402"},
			"--control.listen-address has no effect: expected --control.enabled"},
		{"off, as two words", []string{"--control.mode", "apply"},
			"--control.mode has no effect: expected --control.enabled"},
		{"off, a switch", []string{"--no-control.restore"}, "--control.restore has no effect"},
		{"a network address", []string{"--control.enabled", "--control.listen-address=:9402", "--control.config.file=c.yml"},
			""},
		{"a network address without rights", []string{"--control.enabled", "--control.listen-address=:9402"},
			"--control.config.file"},
		{"rights without a listener", []string{"--control.enabled", "--control.config.file=c.yml"},
			"--control.listen-address"},
		{"no way in", []string{"--control.enabled", "--control.socket="}, "--control.socket"},
		{"a socket that the kernel would not take",
			[]string{"--control.enabled", "--control.socket=/run/" + strings.Repeat("x", 90) + "/s"}, "80 bytes"},
		{"no state", []string{"--control.enabled", "--control.state-dir="}, "--control.state-dir"},
		{"mode", []string{"--control.enabled", "--control.mode=yes"}, "plan or apply"},
		{"group", []string{"--control.enabled", "--control.allow-gid=-2"}, "--control.allow-gid=-2"},
		{"a hook that is no list", []string{"--control.enabled", "--control.hook=systemctl restart x"}, "--control.hook"},
		{"a hook", []string{"--control.enabled", `--control.hook=["systemctl","restart","x"]`}, ""},
		{"idle before it was", []string{"--control.enabled", "--control.idle-for=-1s"}, "--control.idle-for=-1s: expected 0s"},
		{"a device plugin without cordon", []string{"--control.enabled", "--control.device-plugin=nvidia/app=plugin"},
			"--control.device-plugin=nvidia/app=plugin: expected --control.cordon with it"},
		{"a device plugin without a namespace", []string{"--control.enabled", "--control.cordon", "--kubernetes.node-name=n",
			"--control.device-plugin=app=plugin"}, "--control.device-plugin: app=plugin: \"app=plugin\" is no namespace"},
		{"a device plugin without a kubelet", []string{"--control.enabled", "--control.cordon", "--kubernetes.node-name=n",
			"--kubernetes.socket=", "--control.device-plugin=nvidia/app=plugin"}, "expected a path in --kubernetes.socket"},
		{"a device plugin", []string{"--control.enabled", "--control.cordon", "--kubernetes.node-name=n",
			"--control.device-plugin=nvidia/app=plugin"}, ""},
		{"cordon without a node name", []string{"--control.enabled", "--control.cordon"}, "--kubernetes.node-name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseCommandLine(tt.args, nil)
			switch {
			case tt.says == "" && err != nil:
				t.Error(err)
			case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("%v; want %q in it", err, tt.says)
			}
		})
	}
}

// check-config reads the files of partition control too.
func TestCheckConfigOfControl(t *testing.T) {
	check := func(args ...string) (int, string) {
		var out, errOut strings.Builder
		code := execute(t.Context(), append([]string{"check-config", "--control.enabled"}, args...), &out, &errOut)

		return code, out.String() + errOut.String()
	}
	if code, text := check("--control.layouts=../../testdata/mig-configs/field.yaml"); code != exitOK {
		t.Errorf("exit code %d: %s", code, text)
	}

	bad := write(t, "layouts.yaml",
		"version: v1\nmig-configs:\n  half:\n  - {devices: all, mig-enabled: true, mig-devcies: {}}\n")
	code, text := check("--control.layouts=" + bad)
	cmptest.Equal(t, "exit code with a misspelt key of layouts", code, exitFailure)
	cmptest.HasTexts(t, text, bad+":4: mig-configs.half[0].mig-devcies: ")

	file := write(t, "control.yml", "tokens: []\ntokns: []\n")
	if code, text := check("--control.listen-address=:0", "--control.config.file="+file); code != exitFailure ||
		!strings.Contains(text, "--control.config.file") {
		t.Errorf("a configuration with a misspelt key: exit code %d, %q", code, text)
	}
}

func TestHostNames(t *testing.T) {
	names := hostNames([]string{":9401", "metrics.local:9401", "127.0.0.1:0", "no port"}, "gpu-node")
	for _, want := range []string{"gpu-node", "metrics.local", "127.0.0.1"} {
		if !slices.Contains(names, want) {
			t.Errorf("%q lacks %s", names, want)
		}
	}

	if slices.Contains(names, "") {
		t.Errorf("%q has an empty name", names)
	}
}
