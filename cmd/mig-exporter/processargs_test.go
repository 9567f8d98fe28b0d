package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// What a process was started with, and must be served nowhere.
const (
	secretArgument    = "--token=hunter2-argument"
	secretEnvironment = "TOKEN=hunter2-environment"
)

// oneProcess takes each process of a node for one of this machine.
type oneProcess struct {
	poll.ProcessTable

	pid uint32
}

// Describe implements poll.ProcessTable.
func (p oneProcess) Describe(uint32) (name, user string) { return p.ProcessTable.Describe(p.pid) }

// startSecretive starts a process of this machine, and returns its id.
func startSecretive(t *testing.T) uint32 {
	t.Helper()

	// The shell waits for a line that never comes.
	cmd := exec.Command("/bin/sh", "-c", "read line", "train", secretArgument)
	cmd.Env = []string{secretEnvironment}

	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	return uint32(cmd.Process.Pid)
}

// TestArgumentsAreNowhere: with names and users on, whatever is served or logged of a process has
// neither its arguments nor its environment.
func TestArgumentsAreNowhere(t *testing.T) {
	table := oneProcess{machine{}.openProcessTable(true), startSecretive(t)}
	name, _ := table.Describe(0)

	logFile, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()

	x := startOn(t, log.NewLogfmtLogger(logFile), func(n *node) { n.poll.ProcessTable = table },
		"--sim.clock=step", "--sim.scenario="+write(t, "jobs.yaml", jobNode), "--web.processes=users",
		"--collectors=+process,+process_info,+instance_processes")
	for range 3 {
		pollOnce(t, x)
	}

	server := httptest.NewServer(x.handler)
	defer server.Close()
	defer x.state.Close() // the streams

	served := map[string]string{}

	for path, has := range map[string]string{
		"/":                               "<td>" + name + "</td>",
		"/api/v1/node":                    `"name":"` + name + `"`,
		"/api/v1/node/stream":             `"name":"` + name + `"`,
		"/api/v1/node/stream?view=page":   "<td>" + name + "</td>",
		"/api/v1/node/history":            "powerWatts",
		"/metrics":                        `name="` + name + `"`,
		"/metrics?collect[]=process_info": `name="` + name + `"`,
		"/-/ready":                        "ready",
	} {
		served[path] = readUntil(t, server.URL+path, has)
	}

	logged, err := os.ReadFile(logFile.Name())
	if err != nil {
		t.Fatal(err)
	}

	served["the log"] = string(logged)

	for where, text := range served {
		t.Run(where, func(t *testing.T) { cmptest.LacksTexts(t, text, "hunter2", "token=", "read line") })
	}
}

// readUntil reads an answer to its end or, if it is a stream, to the end of its first event. It must
// have a text.
func readUntil(t *testing.T, url, has string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()

	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}

	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	var text strings.Builder

	chunk := make([]byte, 1<<16)

	for err == nil && !endsEvent(text.String()) {
		var n int

		n, err = answer.Body.Read(chunk)
		text.Write(chunk[:n])
	}

	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}

	cmptest.HasTexts(t, text.String(), has)

	return text.String()
}

// endsEvent reports whether a text ends with an event of the node.
func endsEvent(text string) bool {
	return strings.Contains(text, "\nevent: node\n") && strings.HasSuffix(text, "\n\n")
}
