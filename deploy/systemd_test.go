package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// needs returns the path of a program of the system; without it the test is skipped, which `make
// test-packages` shows.
func needs(t *testing.T, program string) string {
	t.Helper()

	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("NOT TESTED: %s is missing here", program)
	}

	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()

	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// unitFolder is a folder with the service and the socket as they are installed, and a drop-in if
// there is one.
func unitFolder(t *testing.T, dropIn string) string {
	t.Helper()

	dir := t.TempDir()
	for _, name := range []string{"mig-exporter.service", "mig-exporter.socket"} {
		writeFile(t, filepath.Join(dir, name), readFile(t, filepath.Join("systemd", name)), 0o644)
	}

	if dropIn != "" {
		writeFile(t, filepath.Join(dir, "mig-exporter.service.d", dropIn), readFile(t, filepath.Join("systemd", dropIn)),
			0o644)
	}

	return dir
}

// dropIns are the forms of the service: as it is, and with each drop-in.
func dropIns() []string {
	return []string{"", "partition-control.conf", "unprivileged.conf", "xid-kernel-log.conf"}
}

// TestExposure holds the figures of docs/deploy-server.md, which systemd-analyze computes from the
// units.
func TestExposure(t *testing.T) {
	analyze := needs(t, "systemd-analyze")
	figure := regexp.MustCompile(`Overall exposure level for mig-exporter\.service: ([0-9.]+)`)

	page := readFile(t, "../docs/deploy-server.md")
	for _, dropIn := range dropIns() {
		unit := filepath.Join(unitFolder(t, dropIn), "mig-exporter.service")
		out, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", unit).CombinedOutput()

		m := figure.FindStringSubmatch(string(out))
		if err != nil || m == nil {
			t.Fatalf("systemd-analyze security, drop-in %q: %v\n%s", dropIn, err, out)
		}

		name := dropIn
		if name == "" {
			name = "mig-exporter.service"
		}

		t.Logf("%s: exposure %s", name, m[1])

		if row := fmt.Sprintf("| `%s` | %s |", name, m[1]); !strings.Contains(page, row) {
			t.Errorf("docs/deploy-server.md lacks the row %q", row)
		}
	}
}

// TestUnitsAreValid: systemd knows every setting of the units. What the units name besides, such as
// the program, is not installed here.
func TestUnitsAreValid(t *testing.T) {
	analyze := needs(t, "systemd-analyze")
	elsewhere := regexp.MustCompile(`(?m)^.*(is not executable: No such file|Command 'man |Unit \S+ not found).*\n?`)

	for _, dropIn := range dropIns() {
		dir := unitFolder(t, dropIn)

		out, err := exec.Command(analyze, "verify", filepath.Join(dir, "mig-exporter.service"),
			filepath.Join(dir, "mig-exporter.socket")).CombinedOutput()
		if rest := elsewhere.ReplaceAllString(string(out), ""); strings.TrimSpace(rest) != "" {
			t.Errorf("systemd-analyze verify, drop-in %q: %v\n%s", dropIn, err, rest)
		}
	}

	broken := unitFolder(t, "")
	path := filepath.Join(broken, "mig-exporter.service")
	writeFile(t, path, readFile(t, path)+"\n[Service]\nProtectHoem=yes\n", 0o644)

	out, _ := exec.Command(analyze, "verify", path).CombinedOutput()
	if !strings.Contains(string(out), "ProtectHoem") {
		t.Errorf("a setting that systemd does not know is not found:\n%s", out)
	}
}

// TestEnvironmentFile: each variable that the environment file proposes is that of a flag, and
// check-config accepts all of them together.
func TestEnvironmentFile(t *testing.T) {
	variable := regexp.MustCompile(`(?m)^#?((?:MIG_EXPORTER_)[A-Z_]+)=(.*)$`)

	found := variable.FindAllStringSubmatch(readFile(t, "systemd/default"), -1)
	if len(found) < 5 {
		t.Fatalf("%d variables", len(found))
	}

	check := exec.Command(programs(t).exporter, "check-config")

	for _, m := range found {
		value := m[2]
		if strings.HasSuffix(m[1], "CONFIG_FILE") {
			value = filepath.Join(t.TempDir(), "web.yml")
			writeFile(t, value, "", 0o600)
		}

		check.Env = append(check.Env, m[1]+"="+value)
	}

	out, err := check.CombinedOutput()
	if err != nil || strings.Contains(string(out), "belongs to no flag") {
		t.Errorf("check-config: %v\n%s", err, out)
	}

	check = exec.Command(programs(t).exporter, "check-config")

	check.Env = []string{"MIG_EXPORTER_NO_SUCH_FLAG=1"}
	if out, _ := check.CombinedOutput(); !strings.Contains(string(out), "belongs to no flag") {
		t.Errorf("a variable that no flag has is not found:\n%s", out)
	}
}
