package migctl

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// TestReadFromTheMetricsListener: commands that only read need no partition control. They draw what they draw of
// the control API.
func TestReadFromTheMetricsListener(t *testing.T) {
	f := &fake{routes: recommended(established(observed(advise.DefaultOptions(), 26*time.Hour, mixedNode(t)...)))}
	listener := httptest.NewServer(f)
	t.Cleanup(listener.Close)
	_, socket := serve(t, f.routes)
	const nowhere = "unix:///nowhere/control.sock"

	for _, command := range []string{"get", "get 2", "get -o json", "profiles 0", "recommend", "recommend -o spec",
		"recommend --explain 0"} {
		words := strings.Fields(command)
		want := runner{}.run(t, socket, words...)
		cmptest.Equal(t, command+", of the socket", want.code, exitOK)

		got := runner{}.run(t, nowhere, append(words, "--url="+listener.URL)...)
		cmptest.Equal(t, command, got, want)
	}

	cmptest.Equal(t, "requests that a listener has no answer to", len(f.requests("GET /operations")), 0)

	got := runner{}.run(t, nowhere, "get", "--url="+listener.URL, "--address="+socket)
	cmptest.Equal(t, "exit code with two addresses", got.code, exitUsage)
	cmptest.HasTexts(t, flat(got.err), "--url and --address: expected one of them")

	got = runner{}.run(t, nowhere, "recommend", "--url=http://127.0.0.1:1")
	cmptest.Equal(t, "exit code if nothing listens", got.code, exitUnreachable)
	cmptest.HasTexts(t, flat(got.err), "--web.listen-address")

	for command, says := range map[string]bool{"get": true, "recommend": true, "profiles": true, "operations": false} {
		got := runner{}.run(t, nowhere, command)
		cmptest.Equal(t, command+": exit code without a socket", got.code, exitUnreachable)

		if hint := "migctl " + command + " --url=" + defaultURL; strings.Contains(flat(got.err), hint) != says {
			t.Errorf("%s: the hint %q: %t, want %t: %s", command, hint, !says, says, got.err)
		}
	}
}

// TestURLsThatAreNoListener: a control socket, of which get would leave out the operations, is none, nor are
// the several nodes of migctl top.
func TestURLsThatAreNoListener(t *testing.T) {
	_, socket := serve(t, applied())

	for _, url := range []string{socket, strings.TrimPrefix(socket, "unix://")} {
		for _, command := range []string{"get", "profiles", "recommend"} {
			got := runner{}.run(t, "unix:///nowhere", command, "--url="+url)
			cmptest.Equal(t, command+": exit code", got.code, exitUsage)
			cmptest.HasTexts(t, flat(got.err), "--url (or MIGCTL_URL) \""+url+"\" is a socket: expected http://HOST:PORT or "+
				"https://HOST:PORT; --address takes a control socket")
		}
	}

	for _, c := range []struct {
		o    options
		want string
	}{
		{options{Command: commandGet, ExporterURL: "http://u:pw@a:1\nhttp://b:1"},
			"MIGCTL_URL names 2 nodes, and migctl get asks one: name it with --url"},
		{options{Command: commandGet, ExporterURL: "ftp://h"},
			`--url (or MIGCTL_URL) "ftp://h": expected http://HOST:PORT or https://HOST:PORT`},
		{options{Command: commandGet, ExporterURL: "http://u:pw@h x", urlGiven: true},
			`--url (or MIGCTL_URL) "xxxxx@h x": expected http://HOST:PORT or https://HOST:PORT`},
	} {
		_, err := newClient(&c.o)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.o.ExporterURL, err, c.want)
		}
	}
}

// TestCompletionAsksAsTheCommand: a word is completed by the node that the command asks.
func TestCompletionAsksAsTheCommand(t *testing.T) {
	_, socket := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-rtxpro.json")})
	listener := serveNode(t, map[string]http.HandlerFunc{
		"GET /node": answer(nodedoc.Document{GPUs: []nodedoc.GPU{{Index: 7, UUID: "GPU-7"}}}),
	})
	t.Setenv("MIGCTL_URL", listener.URL)

	const ofSocket = "0 1 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a000 GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a001"

	for words, want := range map[string]string{
		"get ": ofSocket, "profiles ": ofSocket, "recommend ": ofSocket, "mode on ": ofSocket,
		"get --url " + listener.URL + " ": "7 GPU-7", "get --url " + listener.URL + " --address " + socket + " ": "",
		"evaluate ": "7 GPU-7", "evaluate --url " + listener.URL + " ": "7 GPU-7",
	} {
		args := append([]string{"--completion-bash"}, strings.Split(words, " ")...)
		cmptest.Equal(t, words, flat(runProgram(t, socket, "", args...)), want)
	}
}

// TestURLOfTheEnvironment: MIGCTL_URL may name another node than that of the control socket, so it counts only
// where there is none.
func TestURLOfTheEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		o    options
		want string
	}{
		"flag":               {options{ExporterURL: "http://h", urlGiven: true, Address: "unix:///other"}, "http://h"},
		"no socket":          {options{ExporterURL: "http://h", Address: defaultAddress}, "http://h"},
		"another address":    {options{ExporterURL: "http://h", Address: "unix:///other"}, ""},
		"an address by flag": {options{ExporterURL: "http://h", Address: defaultAddress, addressGiven: true}, ""},
	} {
		o := c.o
		if err := o.checkURL(func(string) bool { return false }); err != nil {
			t.Errorf("%s: %v", name, err)
		}

		cmptest.Equal(t, name, o.ExporterURL, c.want)
	}

	o := options{ExporterURL: "http://h", Address: defaultAddress}
	if err := o.checkURL(func(path string) bool { return "unix://"+path == defaultAddress }); err != nil {
		t.Error(err)
	}

	cmptest.Equal(t, "with a socket", o.ExporterURL, "")
}
