package migctl

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// flat undoes the wrapping of lines.
func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestEveryProblemSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		problem api.ProblemType
		code    int
		says    string
	}{
		{api.Malformed, exitFailed, "versions"},
		{api.Unauthenticated, exitFailed, "--token-file"},
		{api.Forbidden, exitFailed, "the group of --control.allow-gid all but force"},
		{api.PlanOnly, exitFailed, "--control.mode=apply"},
		{api.NotFound, exitFailed, "migctl operations"},
		{api.NoMethod, exitFailed, "versions"},
		{api.StalePlan, exitFailed, "Plan again"},
		{api.Busy, exitFailed, "ask for less"},
		{api.InProgress, exitFailed, "migctl operations --follow op-7"},
		{api.KeyReused, exitFailed, "try again"},
		{api.TooLarge, exitFailed, "versions"},
		{api.MediaType, exitFailed, "versions"},
		{api.UnknownProfile, exitUsage, "offered: 1g.5gb, 2g.10gb"},
		{api.Infeasible, exitFailed, "migctl profiles"},
		{api.ModeDiffers, exitFailed, "migctl mode on"},
		{api.BadSpec, exitUsage, "correct the spec"},
		{api.ForeignOwner, exitFailed, "--take-over"},
		{api.RateLimited, exitFailed, "wait"},
		{api.Internal, exitFailed, "log"},
		{api.NotBuilt, exitFailed, "does not offer"},
		{api.Unavailable, exitFailed, "migctl get"},
		{api.ReadOnly, exitFailed, "--control.state-dir"},
		{api.DegradedNode, exitDegraded, "migctl rollback op-7"},
		{api.DegradedNode, exitDegraded, "migctl accept op-7"},
		{api.LayoutChanged, exitFailed, "plan again"},
		{api.StuckNode, exitDegraded, "driver call hangs"},
		{api.DriverFailed, exitFailed, "migctl operations op-7"},
	} {
		t.Run(string(c.problem), func(t *testing.T) {
			p := api.Problem{Type: c.problem, Title: "It was refused", Status: 409, Detail: "Because.", Operation: "op-7"}
			if c.problem == api.UnknownProfile {
				p.Profiles = []string{"1g.5gb", "2g.10gb"}
			}

			_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": refuse(p)})
			got := runner{}.run(t, address, "plan", "--layout=x")
			text := flat(got.err)
			cmptest.Equal(t, "exit code", got.code, c.code)

			if !strings.HasPrefix(text, "migctl: It was refused: Because.") {
				t.Error(text)
			}

			cmptest.HasTexts(t, text, c.says, "What to do: ")
			cmptest.LacksTexts(t, text, "{", "}")
			fits(t, got.err)
		})
	}
}

// TestUncheckedCredentials: the remedy is where the mistake is, which is not the driver.
func TestUncheckedCredentials(t *testing.T) {
	for detail, says := range map[string]string{
		": the file of --control.config.file does not exist":        "mig-exporter check-config",
		": the cluster refuses to review them: the right to create": "the detail",
		" now; try again": "API server",
	} {
		p := api.Problem{Type: api.Unavailable, Title: "Unavailable", Status: 503, Detail: api.CredentialsUnchecked + detail}
		_, address := serve(t, map[string]http.HandlerFunc{"*": refuse(p)})

		for _, command := range []string{"get", "recommend", "restore", "release 0"} {
			got := runner{}.run(t, address, strings.Fields(command)...)
			cmptest.Equal(t, command+": exit code", got.code, exitFailed)
			cmptest.HasTexts(t, flat(got.err), detail, "What to do: ", says)
			cmptest.LacksTexts(t, flat(got.err), "driver", "GPUs' errors", "has read the GPUs")
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")

	listener, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}

	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()

	for name, c := range map[string]struct {
		address, says string
		code          int
	}{
		"no socket":    {"unix://" + filepath.Join(dir, "none"), "--control.enabled", exitUnreachable},
		"dead socket":  {"unix://" + dead, "--control.enabled", exitUnreachable},
		"only a path":  {filepath.Join(dir, "none"), "--control.socket", exitUnreachable},
		"closed port":  {"https://127.0.0.1:1", "--control.listen-address", exitUnreachable},
		"plain http":   {"http://127.0.0.1:1", "expected unix:///PATH or https://HOST:PORT", exitUsage},
		"no address":   {"nonsense", "expected unix:///PATH or https://HOST:PORT", exitUsage},
		"with a path":  {"https://127.0.0.1:1/api", "expected unix:///PATH", exitUsage},
		"other server": {otherServer(t), "metrics", exitUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			got := runner{}.run(t, c.address, "get")
			cmptest.Equal(t, "exit code", got.code, c.code)
			cmptest.HasTexts(t, flat(got.err), c.says)
			cmptest.Equal(t, "standard output", got.out, "")
		})
	}

	t.Run("permission denied", func(t *testing.T) { // root may open every socket: the error itself
		e := &unreachable{"unix:///s", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}}
		if h := unreachableHint(e); !strings.Contains(h, "--control.allow-gid") {
			t.Error(h)
		}
	})
}

// otherServer answers with a page.
func otherServer(t *testing.T) string {
	t.Helper()
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>", http.StatusBadGateway)
	}})

	return address
}

func TestSlowServer(t *testing.T) {
	release := make(chan struct{})
	_, address := serve(t,
		map[string]http.HandlerFunc{"GET /node": func(http.ResponseWriter, *http.Request) { <-release }})
	t.Cleanup(func() { close(release) })
	got := runner{}.run(t, address, "get", "--timeout=20ms")
	cmptest.Equal(t, "exit code", got.code, exitUnreachable)
	cmptest.HasTexts(t, flat(got.err), "no answer within 20ms", "--timeout")
}

// TestAnswersThatAreNone: what another server answers is not a node without GPUs, nor one that has each
// layout already.
func TestAnswersThatAreNone(t *testing.T) {
	const foreign = "does not seem to be mig-exporter's control address: "

	commands := []string{
		"get", "get 0", "recommend", "operations", "layouts", "restore", "profiles", "release 0", "mode on 0",
		"plan --layout=all-disabled", "apply -y --layout=all-disabled", "confirm-free -y MIG-1",
	}

	for document, says := range map[string]string{
		"":                                   foreign + "it answers with no JSON object",
		"{":                                  foreign + "it answers with no JSON object",
		"[]":                                 foreign + "it answers with no JSON object",
		"null":                               foreign + "its answer has no apiVersion",
		"{}":                                 foreign + "its answer has no apiVersion",
		`{"status": "ok", "gpus": []}`:       foreign + "its answer has no apiVersion",
		`{"apiVersion": "mig-exporter/v99"}`: `it answers in "mig-exporter/v99"`,
	} {
		_, address := serve(t, map[string]http.HandlerFunc{"*": raw(document)})

		for _, command := range commands {
			got := runner{}.run(t, address, strings.Fields(command)...)
			if got.code != exitUnreachable || !strings.Contains(flat(got.err), says) || got.out != "" {
				t.Errorf("%s, %q: exit code %d: %s%s", command, document, got.code, got.out, got.err)
			}
		}

		server := httptest.NewServer(raw(document))
		t.Cleanup(server.Close)

		for _, form := range []string{"text", "json"} {
			got := runner{}.run(t, "", "top", "--once", "-o", form, "--url="+server.URL)
			cmptest.Equal(t, document+": exit code of top -o "+form, got.code, exitUnreachable)
		}
	}

	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": raw(`{"apiVersion": "mig-exporter/v1", "gpus": 7}`)})
	got := runner{}.run(t, address, "get")
	cmptest.Equal(t, "exit code", got.code, exitUnreachable)
	cmptest.HasTexts(t, flat(got.err), "not what migctl")
}

// brokenPipe fails as a pipe without a reader does.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, fmt.Errorf("write: %w", syscall.ENOSPC) }

func TestOutputThatCannotBeWritten(t *testing.T) {
	routes := map[string]http.HandlerFunc{"GET /node": file(t, "node-a30.json")}

	_, address := serve(t, routes)
	for _, form := range []string{"table", "json", "yaml"} {
		got := runner{out: brokenPipe{}}.run(t, address, "get", "-o", form)
		if got.code != exitOK || got.err != "" {
			t.Errorf("%s: exit code %d: %s", form, got.code, got.err)
		}

		if got := (runner{out: fullDisk{}}).run(t, address, "get", "-o", form); got.code != exitFailed || got.err == "" {
			t.Errorf("%s on a full disk: exit code %d", form, got.code)
		}
	}
}

func TestOverTLSWithAToken(t *testing.T) {
	f := &fake{routes: map[string]http.HandlerFunc{"GET /node": file(t, "node-a30.json")}}
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}

		return name
	}
	ca := write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	token := write("token", []byte("s3cret\n"))
	got := runner{}.run(t, server.URL, "get", "--ca-file", ca, "--token-file", token)
	asked := f.requests("GET /node")
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.Equal(t, "asked", asked, []request{{line: "GET /node", token: "Bearer s3cret"}})

	if got := (runner{}).run(t, server.URL, "get"); got.code != exitUnreachable ||
		!strings.Contains(got.err, "--ca-file") {
		t.Errorf("unknown authority: exit code %d: %s", got.code, got.err)
	}

	for _, args := range [][]string{{"--token-file", "/none"}, {"--ca-file", token}, {"--ca-file", "/none"},
		{"--cert-file", ca}, {"--cert-file", ca, "--key-file", ca}} {
		got := runner{}.run(t, server.URL, append([]string{"get"}, args...)...)
		if got.code != exitUsage || strings.Contains(got.err, "s3cret") {
			t.Errorf("%v: exit code %d: %s", args, got.code, got.err)
		}
	}
}

// TestTokenFileWithoutAToken: nothing is sent, and the file is named.
func TestTokenFileWithoutAToken(t *testing.T) {
	f, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-a30.json")})

	for text, says := range map[string]string{"": "is empty", "\n": "is empty", "s3cret\x00": "expected a token", "a\ns3cret": "one line"} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		for _, command := range []string{"get", "top --once --url=" + address} {
			got := runner{}.run(t, address, append(strings.Fields(command), "--token-file", path)...)
			cmptest.Equal(t, command+": exit code", got.code, exitUsage)
			cmptest.HasTexts(t, strings.Join(strings.Fields(got.err), ""), "--token-file", strings.Join(strings.Fields(path), ""))
			cmptest.HasTexts(t, flat(got.err), says)
			cmptest.LacksTexts(t, got.err, "s3cret")
		}
	}

	cmptest.Equal(t, "requests", len(f.requests("")), 0)
}

func TestARequestWhoseConnectionBreaksIsRepeatedOnce(t *testing.T) {
	routes := applied()
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	routes["POST /operations"] = inTurn(abort, routes["POST /operations"])
	f, address := serve(t, routes)
	got := runner{}.run(t, address, "apply", "--layout=x", "--yes")
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.Equal(t, "times asked", len(f.bodies(t, "POST /operations")), 2)
	asked := f.requests("POST /operations")
	cmptest.Equal(t, "second request", asked[1], asked[0])
}

// TestAnAnswerIsNotRepeated: what is no document of ours is an answer, too: the server has seen the request.
func TestAnAnswerIsNotRepeated(t *testing.T) {
	badGateway := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadGateway) }

	for name, answers := range map[string]http.HandlerFunc{
		"of another version": raw(`{"apiVersion":"mig-exporter/v99"}`), "without version": raw(`{}`), "no JSON": raw("<html>"),
		"502": badGateway,
	} {
		routes := applied()
		routes["POST /operations"] = answers
		f, address := serve(t, routes)
		got := runner{}.run(t, address, "apply", "--layout=x", "--yes")
		cmptest.Equal(t, name+": exit code", got.code, exitUnreachable)
		cmptest.Equal(t, name+": times asked", len(f.requests("POST /operations")), 1)
	}
}

// TestWantedCredentials: a server that asks who we are is not said to ask for a password unless it does.
func TestWantedCredentials(t *testing.T) {
	const (
		password = "a user and a password"
		inURL    = "https://USER:PASSWORD@HOST:PORT"
		token    = "it asks for a bearer token"
		others   = "it asks for credentials that migctl cannot give"
	)

	for about, c := range map[string]struct {
		challenges []string
		says       []string
	}{
		"basic":         {[]string{`Basic realm="x"`}, []string{password, inURL}},
		"lower case":    {[]string{`basic`}, []string{password, inURL}},
		"bearer":        {[]string{`Bearer realm="Basic"`}, []string{token, "--token-file"}},
		"negotiate":     {[]string{"Negotiate"}, []string{others, `"Negotiate"`, "proxy"}},
		"with a token":  {[]string{"Negotiate YII="}, []string{others, `"Negotiate"`}},
		"several":       {[]string{`Negotiate, Digest realm="a, Basic b", nonce = "c", qop=auth`, "NTLM"}, []string{others, `"Negotiate, Digest, NTLM"`}},
		"basic, too":    {[]string{"Negotiate", `Digest realm="\"", Basic realm="x"`}, []string{password, inURL}},
		"bearer, too":   {[]string{"Negotiate", "Bearer"}, []string{token}},
		"none":          {nil, []string{"it answers 401"}},
		"nothing of it": {[]string{" , "}, []string{"it answers 401"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, challenge := range c.challenges {
				w.Header().Add("WWW-Authenticate", challenge)
			}

			http.Error(w, "Unauthorized", http.StatusUnauthorized)
		}))
		t.Cleanup(server.Close)

		got := runner{}.run(t, "unix:///nowhere", "get", "--url="+server.URL)
		cmptest.Equal(t, about+": exit code", got.code, exitUnreachable)
		cmptest.HasTexts(t, flat(got.err), c.says...)

		for _, text := range []string{password, token, others} {
			cmptest.Equal(t, about+": "+text, strings.Contains(flat(got.err), text), slices.Contains(c.says, text))
		}
	}
}

// TestPasswordOfAnAddress: a user and a password are sent to a control API, too, before which a proxy may ask for
// them.
func TestPasswordOfAnAddress(t *testing.T) {
	f := &fake{routes: map[string]http.HandlerFunc{"GET /node": answer(nodedoc.Document{})}}
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)

	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}

	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}

	got := runner{}.run(t, strings.Replace(server.URL, "https://", "https://anna:pw@", 1), "get", "--ca-file="+ca)
	cmptest.Equal(t, got.err+": exit code", got.code, exitOK)
	cmptest.Equal(t, "credentials", f.requests("GET /node")[0].token, "Basic YW5uYTpwdw==")
}

// TestRightSizingThatIsOff: what is off can be switched on; a server without the API needs another
// version.
func TestRightSizingThatIsOff(t *testing.T) {
	recommend := &options{Command: commandRecommend}
	cmptest.Equal(t, "off", problemHint(&api.Problem{Type: api.NotBuilt, Status: 501}, recommend),
		"start mig-exporter without --no-advise.enabled.")
	cmptest.HasTexts(t, problemHint(&api.Problem{Type: api.NotBuilt, Status: 404}, recommend), "this version")
}
