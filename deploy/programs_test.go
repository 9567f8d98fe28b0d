package deploy

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// built are the paths of the programs.
type built struct{ exporter, migctl string }

func programs(t *testing.T) built {
	t.Helper()

	dir, err := testbuild.Programs()
	if err != nil {
		t.Fatal(err)
	}

	return built{filepath.Join(dir, "mig-exporter"), filepath.Join(dir, "migctl")}
}

// server is a program that serves on a port of its own.
type server struct {
	t   *testing.T
	url string
}

// serve starts a program, which is mig-exporter with --web.listen-address=127.0.0.1:0, and waits
// until it listens.
func serve(t *testing.T, cmd *exec.Cmd) server {
	t.Helper()

	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})
	addresses := make(chan string, 1)
	var said strings.Builder
	go func() {
		defer close(ended)
		defer close(addresses)
		listening := regexp.MustCompile(`msg=listening address=(\S+)`)

		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")

			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m[1]
			}
		}
	}()

	address, ok := <-addresses
	if !ok {
		t.Fatalf("the program does not listen:\n%s", said.String())
	}

	return server{t, "http://" + address}
}

// get returns what the program answers.
func (s server) get(method, path string) (status int, body string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()

	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}

	return response.StatusCode, string(text)
}

// waitFor scrapes until the metrics have a text.
func (s server) waitFor(text string) {
	s.t.Helper()

	for body := ""; !strings.Contains(body, text); {
		var status int
		if status, body = s.get("GET", "/metrics"); status != 200 {
			s.t.Fatalf("%d %s", status, body)
		}
	}
}
