package server

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestConfigFixtures reads testdata: *.good.yml can be used, and the error of *.bad.yml is in
// *.bad.txt.
func TestConfigFixtures(t *testing.T) {
	a := newAuthority(t)
	good, _ := filepath.Glob("testdata/*.good.yml")

	bad, _ := filepath.Glob("testdata/*.bad.yml")
	if len(good) == 0 || len(bad) == 0 {
		t.Fatal("no fixtures")
	}

	for _, name := range append(good, bad...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}

		want := ""
		if line, err := os.ReadFile(strings.TrimSuffix(name, ".yml") + ".txt"); err == nil {
			want = strings.TrimSpace(string(line))
		} else if strings.HasSuffix(name, ".bad.yml") {
			t.Errorf("%s has no text: %v", name, err)
		}

		path := writeConfig(t, a, string(text))
		got := ""

		if err := CheckConfig(path); err != nil {
			rest, ok := strings.CutPrefix(err.Error(), "--control.config.file="+path+": ")
			if !ok {
				t.Errorf("%s: %q does not begin with the flag", name, err)
			}

			got = strings.ReplaceAll(rest, filepath.Dir(path)+"/", "")
		}

		if got != want {
			t.Errorf("%s:\n%q, want\n%q", name, got, want)
		}
	}
}

// TestConfigOfTheDocs: the example of the docs is a fixture, and can be used.
func TestConfigOfTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/partition-control.md")
	if err != nil {
		t.Fatal(err)
	}

	_, example, ok := strings.Cut(string(page), "\n## Over the network\n")
	_, example, _ = strings.Cut(example, "```yaml\n")
	example, _, _ = strings.Cut(example, "```\n")

	fixture, err := os.ReadFile("testdata/all.good.yml")
	if !ok || err != nil {
		t.Fatalf("an example was found: %t; %v", ok, err)
	}

	cmptest.Equal(t, "the example, compared with testdata/all.good.yml", example, string(fixture))
}

func TestConfigIsNotForOthers(t *testing.T) {
	path := writeConfig(t, newAuthority(t), "tls: {cert_file: cert.pem, key_file: key.pem}\nkubernetes: true\n")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}

	if err := CheckConfig(path); err == nil ||
		!strings.HasSuffix(err.Error(), "mode 0644: expected no rights for others, such as 0640") {
		t.Errorf("got %v", err)
	}
}

// TestConfigThatIsAPipe: reading it would not return, and every call would wait for it.
func TestConfigThatIsAPipe(t *testing.T) {
	for name, text := range map[string]string{"control.yml": "/control.yml: ", "cert.pem": "/cert.pem: ",
		"ca.pem": "/ca.pem: "} {
		t.Run(name, func(t *testing.T) {
			path := writeConfig(t, newAuthority(t),
				"tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}\nkubernetes: true\n")
			if err := CheckConfig(path); err != nil {
				t.Fatal(err)
			}

			file := filepath.Join(filepath.Dir(path), name)
			if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}

			if err := CheckConfig(path); err == nil || !strings.HasSuffix(err.Error(), text+"expected a regular file") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestConfigIsReadAnew: a token that is taken out ends, also if the file is broken then.
func TestConfigIsReadAnew(t *testing.T) {
	const tls = "tls: {cert_file: cert.pem, key_file: key.pem}\n"
	token := func(s string) string { return "tokens: [{name: ci, sha256: " + hashOf(s) + ", rights: [read]}]\n" }
	path := writeConfig(t, newAuthority(t), tls+token("old"))

	f, err := newConfigFile(path, log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	at := time.Now()
	rewrite := func(text string) {
		t.Helper()
		at = at.Add(time.Second)

		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	d := &tlsAuthenticator{config: f}
	knows := func(token string) string {
		c, err := f.currentConfig()
		if err != nil {
			return "error"
		}

		id, err := d.byToken(c, token)
		if err != nil {
			return "no"
		}

		return id.name
	}

	steps := []struct{ text, old, fresh string }{
		{"", "token:ci", "no"},
		{tls + token("new"), "no", "token:ci"},
		{tls + "tokens: [", "error", "error"},
		{tls + token("old"), "token:ci", "no"},
	}
	for i, s := range steps {
		if s.text != "" {
			rewrite(s.text)
		}

		if knows("old") != s.old || knows("new") != s.fresh {
			t.Errorf("step %d: old %s, new %s", i, knows("old"), knows("new"))
		}
	}
}

// TestConfigIsReadAnewForEveryFileOfIt: one that is replaced by one as old and as long; one that
// the configuration named before it was there.
func TestConfigIsReadAnewForEveryFileOfIt(t *testing.T) {
	const tls = "tls: {cert_file: cert.pem, key_file: key.pem}\n"
	token := func(s string) string { return "tokens: [{name: ci, sha256: " + hashOf(s) + ", rights: [read]}]\n" }
	path := writeConfig(t, newAuthority(t), tls+token("old"))

	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}

	f, err := newConfigFile(path, log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	replace := func(text string) {
		t.Helper()

		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if err := os.Chtimes(path+".new", at, at); err != nil {
			t.Fatal(err)
		}

		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	replace(tls + token("new"))

	if c, err := f.currentConfig(); err != nil || c.tokens[0].sum != sha256.Sum256([]byte("new")) {
		t.Errorf("as old and as long: %v", err)
	}

	replace(strings.Replace(tls, "cert.pem", "later.pem", 1) + token("new"))

	if _, err := f.currentConfig(); err == nil {
		t.Error("a certificate that is not there: no error")
	}

	if err := os.Rename(filepath.Join(filepath.Dir(path), "cert.pem"),
		filepath.Join(filepath.Dir(path), "later.pem")); err != nil {
		t.Fatal(err)
	}

	if _, err := f.currentConfig(); err != nil {
		t.Errorf("the certificate is there now: %v", err)
	}
}

func TestBucketsAreBounded(t *testing.T) {
	looks := 0 // at the clock: one for each bucket that is looked at

	b := newBuckets(1, 1, func() time.Time { looks++; return time.Unix(0, 0) })
	for i := range 3 * bucketsKept {
		b.takeToken(string(rune(i)))
	}

	if len(b.byKey) > bucketsKept {
		t.Errorf("%d keys", len(b.byKey))
	}

	if looks > 30*bucketsKept {
		t.Errorf("%d buckets were looked at for %d keys", looks, 3*bucketsKept)
	}
}

// TestReload: it says what changed, without secrets, and a broken file admits no caller.
func TestReload(t *testing.T) {
	const tls = "tls: {cert_file: cert.pem, key_file: key.pem}\n"
	token := func(name, s, right string) string {
		return "- {name: " + name + ", sha256: " + hashOf(s) + ", rights: [" + right + "]}\n"
	}
	path := writeConfig(t, newAuthority(t),
		tls+"tokens:\n"+token("ci", "1", "read")+token("old", "2", "read")+token("same", "3", "read"))

	var r Reloader
	if changes, err := r.Read(path)(); len(changes) > 0 || err != nil {
		t.Errorf("before it is served: %q, %v", changes, err)
	}

	f, err := newConfigFile(path, log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	r.set(f)

	for _, s := range []struct{ text, changes, err string }{
		{"", "", ""},
		{tls + "kubernetes: true\ntokens:\n" + token("ci", "1", "plan") + token("fresh", "4", "read") +
			token("same", "3", "read"),
			"kubernetes: true; token ci changed; token fresh added; token old removed", ""},
		{tls + "tokens: [", "", "--control.config.file=" + path},
		{tls + "kubernetes: true\ntokens:\n" + token("ci", "1", "plan") + token("fresh", "4", "read") +
			token("same", "3", "read"),
			"the file is valid again", ""},
	} {
		if s.text != "" {
			if err := os.WriteFile(path, []byte(s.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}

		changes, err := r.Read(path)()
		if got := strings.Join(changes, "; "); got != s.changes {
			t.Errorf("changes %q, want %q", got, s.changes)
		}

		if (err != nil) != (s.err != "") || !strings.Contains(fmt.Sprint(err), s.err) {
			t.Errorf("got the error %v, want %q", err, s.err)
		}

		if _, now := f.currentConfig(); (now != nil) != (err != nil) {
			t.Errorf("in force: %v", now)
		}
	}
}
