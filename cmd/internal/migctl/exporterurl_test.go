package migctl

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
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
