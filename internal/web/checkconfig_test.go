package web

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckConfig(t *testing.T) {
	want := map[string]string{
		"unknown-key.bad.yml": "line 2: field cert_fil not found in type web.TLSConfig",
		"unknown-keys.bad.yml": "line 2: field cert_fil not found in type web.TLSConfig; line 3: field key_fil not found " +
			"in type web.TLSConfig",
		"tab.bad.yml":        "yaml: line 2: found character that cannot start any token",
		"wrong-type.bad.yml": "line 2: cannot unmarshal !!str `many` into int",
		"plain-password.bad.yml": "basic_auth_users: expected bcrypt hashes of the passwords: crypto/bcrypt: hashedSecret " +
			"too short to be a bcrypted password",
		"missing-cert.bad.yml": "failed to read cert_file (testdata/missing.crt): open testdata/missing.crt: no such " +
			"file or directory",
		"no-key.bad.yml":      "missing one of key or key_file",
		"tls-version.bad.yml": "unknown TLS version: TLS9",
		"header.bad.yml":      "HTTP header \"Server\" can not be configured",
	}

	files, err := filepath.Glob("testdata/*.yml")
	if err != nil {
		t.Fatal(err)
	}

	seen := 0

	for _, file := range files {
		name := filepath.Base(file)

		err := CheckConfig(file)
		if strings.HasSuffix(name, ".good.yml") {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}

			continue
		}

		seen++

		if err == nil {
			t.Errorf("%s is accepted", name)
		} else if err.Error() != "web config "+file+": "+want[name] {
			t.Errorf("%s:\ngot  %v\nwant web config %s: %s", name, err, file, want[name])
		}
	}

	if seen != len(want) {
		t.Errorf("%d bad files, %d expected errors", seen, len(want))
	}

	if err := CheckConfig(""); err != nil {
		t.Errorf("no file: %v", err)
	}

	const missing = "web config testdata/absent.yml: no such file or directory"
	if err := CheckConfig("testdata/absent.yml"); err == nil || err.Error() != missing {
		t.Errorf("got %v, want %s", err, missing)
	}
}
