package deploy

import (
	"compress/gzip"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// packages returns the Debian package and the one of a later version, which `make test-packages`
// has built.
func packages(t *testing.T) (first, next string) {
	t.Helper()

	first, next = os.Getenv("TEST_DEB"), os.Getenv("TEST_NEXT_DEB")
	if first == "" || next == "" {
		t.Skip("NOT TESTED: run make test-packages, which builds the packages")
	}

	return first, next
}

// fake is a program of systemd in the root of a test: it writes down how it was called.
const fake = "#!/bin/sh\necho \"${0##*/} $*\" >>/calls\n"

// debian is a clean root with dpkg's database, a shell and what scripts of packages call.
func debian(t *testing.T) root {
	t.Helper()
	needs(t, "dpkg")

	r := newRoot(t, "sh", "rm")
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "run/systemd/system"} {
		if err := os.MkdirAll(r.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := os.Lstat(r.path("bin")); err != nil {
		if err := os.Symlink("usr/bin", r.path("bin")); err != nil {
			t.Fatal(err)
		}
	}

	writeFile(t, r.path("dev/null"), "", 0o666) // a file stands for the device

	for _, name := range []string{"systemctl", "systemd-tmpfiles", "deb-systemd-helper", "deb-systemd-invoke"} {
		writeFile(t, r.path("usr/bin/"+name), fake, 0o755)
	}

	version, err := exec.Command("dpkg-query", "-W", "-f", "${Version}\t${Architecture}", "libc6").Output()
	if err != nil {
		t.Fatal(err)
	}

	libc, arch, _ := strings.Cut(string(version), "\t")
	installed := "Status: install ok installed\nMaintainer: x\nArchitecture: " + arch + "\nVersion: "
	writeFile(t, r.path("var/lib/dpkg/status"), "Package: libc6\n"+installed+libc+
		"\nDescription: the C library, which was copied\n\nPackage: procps\n"+installed+
		"1\nDescription: the name of a package alone\n", 0o644)

	return r
}

// dpkg runs dpkg on the root and returns the calls that the package's scripts made.
func (r root) dpkg(args ...string) string {
	r.t.Helper()
	_ = os.Remove(r.path("calls"))
	cmd := exec.Command("dpkg", append([]string{"--root=" + r.dir, "--force-confold"}, args...)...)

	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("dpkg %q: %v\n%s", args, err, out)
	}

	calls, err := os.ReadFile(r.path("calls"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}

	_ = os.Remove(r.path("calls"))

	return string(calls)
}

// expectCalls fails the test for each call that was not made, in any order, and for each of those
// that must not be.
func expectCalls(t *testing.T, calls string, want, not []string) {
	t.Helper()

	for _, call := range want {
		if !strings.Contains(calls, call+"\n") {
			t.Errorf("no call %q in\n%s", call, calls)
		}
	}

	for _, call := range not {
		if strings.Contains(calls, call) {
			t.Errorf("call %q in\n%s", call, calls)
		}
	}
}

// TestPackageInACleanRoot installs the package, runs it, upgrades it, removes it and purges it.
func TestPackageInACleanRoot(t *testing.T) {
	first, next := packages(t)
	r := debian(t)
	before := r.files("/tmp", "/var/lib/dpkg")

	calls := r.dpkg("--install", first)
	expectCalls(t, calls, []string{"deb-systemd-helper enable mig-exporter.service", "systemctl --system daemon-reload",
		"deb-systemd-invoke start mig-exporter.service", "systemd-tmpfiles --create mig-exporter.conf"}, []string{"restart"})
	r.runInstalled()

	const config, state = "etc/default/mig-exporter", "var/lib/mig-exporter/rightsizing-evidence"
	changed := readFile(t, r.path(config)) + "MIG_EXPORTER_POLL_INTERVAL=5s\n"
	writeFile(t, r.path(config), changed, 0o644)
	writeFile(t, r.path(state), "evidence", 0o600)

	calls = r.dpkg("--install", next)
	expectCalls(t, calls, []string{"deb-systemd-invoke try-restart mig-exporter.service"},
		[]string{"invoke start", "invoke stop", "helper mask"})
	cmptest.Equal(t, "configuration after the upgrade", readFile(t, r.path(config)), changed)
	cmptest.Equal(t, "state after the upgrade", readFile(t, r.path(state)), "evidence")

	status, err := exec.Command("dpkg-query", "--admindir="+r.path("var/lib/dpkg"), "-W", "-f", "${Status} ${Version}",
		"mig-exporter").Output()
	if err != nil || !strings.HasPrefix(string(status), "install ok installed ") || !strings.HasSuffix(string(status), "+next") {
		t.Errorf("status after the upgrade: %q, %v, want \"install ok installed VERSION+next\"", status, err)
	}

	calls = r.dpkg("--remove", "mig-exporter")
	expectCalls(t, calls, []string{"deb-systemd-invoke stop mig-exporter.socket mig-exporter.service",
		"systemctl --system daemon-reload"}, nil)
	kept := append(slices.Clone(before), "/"+config, "/"+state)
	slices.Sort(kept)
	after := r.files("/tmp", "/var/lib/dpkg")
	slices.Sort(after)
	cmptest.Equal(t, "files after the removal", after, kept)

	expectCalls(t, r.dpkg("--purge", "mig-exporter"),
		[]string{"deb-systemd-helper purge mig-exporter.service mig-exporter.socket"}, nil)
	cmptest.Equal(t, "files after the purge", r.files("/tmp", "/var/lib/dpkg"), before)
}

// runInstalled runs the installed programs in the root: on the simulated node, with the environment
// file's variables.
func (r root) runInstalled() {
	t := r.t
	t.Helper()
	version, err := r.command(0, "/usr/bin/mig-exporter", "--version").CombinedOutput()

	product := strings.TrimSpace(readFile(t, "../VERSION"))
	if err != nil || !regexp.MustCompile(`version `+regexp.QuoteMeta(product)+` \(.*revision: [0-9a-f]{12}`).Match(version) {
		t.Errorf("--version: %v\n%s", err, version)
	}

	if out, err := r.command(0, "/usr/bin/migctl", "--version").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), product) {
		t.Errorf("migctl --version: %v\n%s", err, out)
	}

	exporter := serve(t, r.command(0, "/usr/bin/mig-exporter", "--driver=sim", "--web.listen-address=127.0.0.1:0"))
	exporter.waitFor("nvidia_mig_gpu_instance_info{")
}

// TestPackageContents: what is not a program is there, complete and readable.
func TestPackageContents(t *testing.T) {
	first, _ := packages(t)

	dir := t.TempDir()
	if out, err := exec.Command(needs(t, "dpkg-deb"), "--extract", first, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	for name, want := range map[string]string{
		"usr/share/doc/mig-exporter/copyright":                            "Apache License",
		"usr/share/doc/mig-exporter/THIRD_PARTY_LICENSES":                 "github.com/NVIDIA/go-nvml ",
		"usr/share/doc/mig-exporter/sbom.cdx.json":                        `"pkg:golang/github.com/NVIDIA/go-nvml@`,
		"usr/lib/systemd/system/mig-exporter.service":                     "ExecStart=/usr/bin/mig-exporter",
		"usr/share/bash-completion/completions/migctl":                    "complete",
		"usr/share/zsh/vendor-completions/_mig-exporter":                  "#compdef mig-exporter",
		"usr/share/fish/vendor_completions.d/migctl.fish":                 "complete --command migctl",
		"usr/share/mig-exporter/prometheus/alerts-gpu.rules.yaml":         "alert:",
		"usr/share/mig-exporter/prometheus/optional/inference.rules.yaml": "record:",
		"usr/share/mig-exporter/dashboards/mig-fleet.json":                `"title"`,
		"usr/share/mig-exporter/dashboards/provisioning/dashboards.yaml":  "/var/lib/grafana/dashboards/mig-exporter",
		"usr/share/mig-exporter/slurm/prolog.sh":                          "/folder.sh",
		"usr/share/mig-exporter/slurm/epilog.sh":                          "/folder.sh",
		"usr/share/mig-exporter/slurm/folder.sh":                          "trusted() {",
		"usr/lib/tmpfiles.d/mig-exporter.conf":                            "d /run/mig-exporter-jobs 0755 root root",
	} {
		if text := readFile(t, filepath.Join(dir, name)); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}

	for page, want := range map[string][]string{
		"mig-exporter": {"--web.listen-address", "($MIG_EXPORTER_WEB_LISTEN_ADDRESS)", "\nNODE_NAME"},
		"migctl":       {"recommend", "($MIGCTL_ADDRESS)"},
	} {
		text := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fR`, "").
			Replace(unzip(t, filepath.Join(dir, "usr/share/man/man1", page+".1.gz")))

		if !strings.HasPrefix(text, ".TH "+page+" 1 ") || !strings.Contains(text, "\n"+page+" - ") {
			t.Errorf("man page of %s begins with\n%.300s", page, text)
		}

		cmptest.HasTexts(t, text, want...)
	}
}

func unzip(t *testing.T, path string) string {
	t.Helper()

	r, err := gzip.NewReader(strings.NewReader(readFile(t, path)))
	if err != nil {
		t.Fatal(err)
	}

	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// TestPackageHasThePagesThatMessagesName: the pages that the programs name as docs/NAME.md are in
// the package.
func TestPackageHasThePagesThatMessagesName(t *testing.T) {
	first, _ := packages(t)

	dir := t.TempDir()
	if out, err := exec.Command(needs(t, "dpkg-deb"), "--extract", first, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	named := map[string]bool{}

	for _, program := range []string{"mig-exporter", "migctl"} {
		text := readFile(t, filepath.Join(dir, "usr/bin", program))
		for _, page := range regexp.MustCompile(`docs/[a-z-]+\.md`).FindAllString(text, -1) {
			named[page] = true
		}
	}

	if len(named) < 5 {
		t.Errorf("the programs name %v alone", named)
	}

	for page := range named {
		if _, err := os.Stat(filepath.Join(dir, "usr/share/doc/mig-exporter", page)); err != nil {
			t.Error(err)
		}
	}
}

// TestDependencyOnLibc: the version that the package asks for has all symbols that the programs
// need.
func TestDependencyOnLibc(t *testing.T) {
	m := regexp.MustCompile(`libc6 \(>= 2\.(\d+)\)`).FindStringSubmatch(readFile(t, "deb/nfpm.yaml"))
	if m == nil {
		t.Fatal("the package does not depend on libc6")
	}

	declared, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}

	for _, program := range []string{programs(t).exporter, programs(t).migctl} {
		file, err := elf.Open(program)
		if err != nil {
			t.Fatal(err)
		}

		symbols, err := file.ImportedSymbols()
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}

		for _, s := range symbols {
			if v, ok := strings.CutPrefix(s.Version, "GLIBC_2."); ok {
				minor, _, _ := strings.Cut(v, ".")
				if needed, err := strconv.Atoi(minor); err != nil || needed > declared {
					t.Errorf("%s needs %s of %s, the package asks for libc6 2.%d", filepath.Base(program), s.Name, s.Version,
						declared)
				}
			}
		}
	}
}
