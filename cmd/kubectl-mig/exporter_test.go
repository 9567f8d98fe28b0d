package main

import (
	"bufio"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

const scenario = `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}]
`

// startExporter starts the real program on a simulated node, and returns the address of its control
// listener. It knows the tokens that the fake API server issues for the node.
func startExporter(t *testing.T, w *world, node, scenario string) string {
	t.Helper()

	programs, err := testbuild.Programs()
	if err != nil {
		t.Fatal(err)
	}

	// t.TempDir's path may be too long for a socket.
	dir, err := os.MkdirTemp("", "kubectl-mig") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	config := "tls: {cert_file: tls.crt, key_file: tls.key}\ntokens:\n"

	for account, rights := range map[string]string{
		"get": "[read]", "plan": "[read, plan]", "apply": "[read, plan, apply]",
	} {
		sum := sha256.Sum256([]byte(jwt(defaultConfigMap+"-"+account, audienceOf(node))))
		config += fmt.Sprintf("  - {name: %s, sha256: %s, rights: %s}\n", account, hex.EncodeToString(sum[:]), rights)
	}

	cert, key := issue(t, serverName, w.by)

	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	for name, content := range map[string]string{
		"scenario.yaml": scenario,
		"control.yaml":  config,
		"tls.crt":       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})),
		"tls.key":       string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	command := exec.CommandContext(t.Context(), filepath.Join(programs, "mig-exporter"),
		"--driver=sim", "--sim.scenario="+filepath.Join(dir, "scenario.yaml"), "--web.listen-address=127.0.0.1:0",
		"--control.enabled", "--control.mode=apply", "--control.socket="+filepath.Join(dir, "control", "s"),
		"--control.state-dir="+filepath.Join(dir, "state"), "--control.listen-address=127.0.0.1:0",
		"--control.config.file="+filepath.Join(dir, "control.yaml"), "--control.idle-for=0s")

	log, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})

	return awaitListener(t, bufio.NewScanner(log))
}

// awaitListener reads the log until it has the address of the control listener, and goes on
// reading.
func awaitListener(t *testing.T, log *bufio.Scanner) string {
	t.Helper()

	listening := regexp.MustCompile(`partition control is listening" component=control address=(127\.0\.0\.1:\d+)`)
	found := make(chan string, 1)

	go func() {
		for log.Scan() {
			if match := listening.FindStringSubmatch(log.Text()); match != nil {
				found <- match[1]
			}
		}
	}()

	select {
	case address := <-found:
		return address
	case <-time.After(30 * time.Second): // a start takes less than a second
		t.Fatal("the exporter does not listen")
		return ""
	}
}

// TestExporter: the real program, from the layout to a change and back.
func TestExporter(t *testing.T) {
	w := newWorld(t)
	pod := w.one.pod("gpu-01")
	pod.address = startExporter(t, w, "gpu-01", scenario)
	w.api.pods = []fakePod{pod}

	must := func(args ...string) string {
		t.Helper()

		got := w.run(t, args...)
		if got.code != 0 {
			t.Fatalf("%v: exit code %d: %s%s", args, got.code, got.out, got.err)
		}

		return got.out
	}

	cmptest.HasTexts(t, must("get", "gpu-01"), "A100-SXM4-40GB", "3g.20gb")
	cmptest.HasTexts(t, must("top", "gpu-01", "--once"), "3g.20gb")
	cmptest.HasTexts(t, must("recommend", "gpu-01", "-o", "json"), `"devices"`)

	wanted := []string{"gpu-01", "--context=prod", "--gpus=0", "--devices=2g.10gb=1,3g.20gb=1"}
	cmptest.HasTexts(t, must(append([]string{"plan"}, wanted...)...), "+ 2g.10gb at 0:2",
		"kubectl mig --context=prod apply gpu-01 --plan")

	out := must(append([]string{"apply", "--yes", "--reason=ticket 17"}, wanted...)...)
	undo := regexp.MustCompile(`To undo: kubectl mig --context=prod rollback gpu-01 (\w+)`).FindStringSubmatch(out)

	if undo == nil {
		t.Fatalf("apply does not say how to undo it:\n%s", out)
	}

	cmptest.HasTexts(t, must("operations", "gpu-01", undo[1]), `Says      "ticket 17"`)
	must("rollback", "gpu-01", undo[1], "--yes", "--reason=undo")
	cmptest.HasTexts(t, must("operations", "gpu-01", "-o", "json"), `"statedReason": "undo"`)
	cmptest.HasTexts(t, must("operations", "gpu-01"), undo[1], "rollback")
	cmptest.LacksTexts(t, must("get", "gpu-01"), "2g.10gb")

	// A token of another node is not known here.
	pod.node = "gpu-02"
	w.api.set(func() { w.api.pods = []fakePod{pod} })

	got := w.run(t, "get", "gpu-02")
	cmptest.Equal(t, "exit code with another node's token", got.code, 1)
	cmptest.HasTexts(t, flat(got.err), "the exporter does not accept the token of the service account")
}
