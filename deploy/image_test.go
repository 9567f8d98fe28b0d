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

// runLines returns the commands that the Dockerfile's first stage runs.
func runLines(t *testing.T) []string {
	t.Helper()
	text, _, found := strings.Cut(readFile(t, "../Dockerfile"), "\nFROM scratch\n")
	if !found {
		t.Fatal("the Dockerfile's second stage does not begin with FROM scratch")
	}
	var list []string
	for _, m := range regexp.MustCompile(`(?m)^RUN (.*)$`).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// cleanCopy returns a folder with the files that `docker build` sends: those of the repository that .dockerignore lets
// through.
func cleanCopy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list, err := exec.Command("git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("NOT TESTED: this is no checkout of git: %v", err)
	}
	sent := isSent(t)
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		info, err := os.Stat(filepath.Join("..", name))
		if err != nil || !sent(name) {
			continue // removed from the working tree, or not sent
		}
		writeFile(t, filepath.Join(dir, name), readFile(t, filepath.Join("..", name)), info.Mode().Perm())
	}
	return dir
}

// isSent reports which files .dockerignore lets through. It knows the forms that the file has: *, !PATH, PATH, **/NAME.
func isSent(t *testing.T) func(name string) bool {
	t.Helper()
	patterns := strings.Split(strings.TrimSpace(readFile(t, "../.dockerignore")), "\n")
	return func(name string) bool {
		sent := true
		for _, pattern := range patterns {
			path, allow := strings.CutPrefix(pattern, "!")
			last, anywhere := strings.CutPrefix(path, "**/")
			below := strings.HasPrefix(name+"/", path+"/")
			if anywhere {
				for part := range strings.SplitSeq(name, "/") {
					matches, err := filepath.Match(last, part)
					below = below || err == nil && matches
				}
			}
			if path == "*" || below {
				sent = allow
			}
		}
		return sent
	}
}

// buildImage runs the commands of the Dockerfile's first stage in a clean folder, and returns the root file system.
func buildImage(t *testing.T, dcgm string) root {
	t.Helper()
	needs(t, "setpriv")
	r := newRoot(t)
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	source := cleanCopy(t)
	for _, command := range runLines(t) {
		cmd := exec.Command("/bin/sh", "-ec", strings.ReplaceAll(command, "/rootfs", r.dir))
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "REVISION=0123456789ab", "BRANCH=main", "DATE=2026-01-02T03:04:05Z",
			"SOURCE_DATE_EPOCH=1767323045", "DCGM="+dcgm)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("RUN %s: %v\n%s", command, err, out)
		}
	}
	return r
}

// TestImage assembles the image's root file system with the Dockerfile's own commands and runs the program in it, as the
// image's user and as another one, with no capability at all. No container engine takes part.
func TestImage(t *testing.T) {
	dockerfile := readFile(t, "../Dockerfile")
	for _, want := range []string{"\nUSER 0:0\n", "\nENTRYPOINT [\"/usr/bin/mig-exporter\"]\n"} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile lacks %q", want)
		}
	}
	if regexp.MustCompile(`(?m)^[^#]*MIG_MONITOR_DEVICES`).MatchString(dockerfile) {
		t.Error("the toolkit refuses to start the image without CAP_SYS_ADMIN")
	}
	r := buildImage(t, dcgmPackage(t))
	r.expectImageFiles()
	out, err := r.command(0, "/usr/bin/mig-exporter", "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "revision: 0123456789ab") {
		t.Errorf("--version: %v\n%s", err, out)
	}
	r.copy("../testdata/scenarios/dgx-a100-mixed.yaml", "/tmp/node.yaml")
	setpriv, err := exec.LookPath("setpriv") // of this machine; it gives up what it has and becomes the program
	if err != nil {
		t.Fatal(err)
	}
	r.copy(setpriv, "/setpriv")
	r.copyLibraries(setpriv)
	for _, user := range []string{"0", "65532"} {
		t.Run("user "+user, func(t *testing.T) { runWithoutRights(t, r, user) })
	}
}

// expectImageFiles checks what is in the image and what is not.
func (r root) expectImageFiles() {
	r.t.Helper()
	files := strings.Join(r.files(), "\n") + "\n"
	for _, want := range []string{"/usr/bin/mig-exporter\n", "/usr/bin/migctl\n", "/libc.so.6\n", "/libm.so.6\n",
		"/librt.so.1\n", "/usr/share/doc/mig-exporter/sbom.cdx.json\n",
		"/usr/share/doc/mig-exporter/THIRD_PARTY_LICENSES\n", "/etc/debian_version\n", "/libdcgm.so.4\n",
		"/libstdc++.so.6\n"} {
		if !strings.Contains(files, want) {
			r.t.Errorf("the image lacks %q", want)
		}
	}
	for _, not := range []string{"/sh\n", "/bash\n", "libnvidia-ml", "nv-hostengine"} {
		if strings.Contains(files, not) {
			r.t.Errorf("the image has %q", not)
		}
	}
}

// runWithoutRights runs the image's program as a user without any capability, and scrapes it.
func runWithoutRights(t *testing.T, r root, user string) {
	t.Helper()
	cmd := r.command(0, "/setpriv", "--reuid="+user, "--regid="+user, "--clear-groups", "--no-new-privs",
		"--bounding-set=-all", "--inh-caps=-all", "/usr/bin/mig-exporter", "--driver=sim",
		"--sim.scenario=/tmp/node.yaml", "--web.listen-address=127.0.0.1:0")
	exporter := serve(t, cmd)
	status := readFile(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	for _, set := range []string{"CapBnd", "CapPrm", "CapInh", "CapAmb"} {
		if !strings.Contains(status, set+":\t0000000000000000\n") {
			t.Errorf("%s is not empty:\n%s", set, status)
		}
	}
	if !strings.Contains(status, "Uid:\t"+user+"\t"+user+"\t") || !strings.Contains(status, "NoNewPrivs:\t1\n") {
		t.Errorf("not the user %s, or new privileges:\n%s", user, status)
	}
	for body := ""; !strings.Contains(body, "nvidia_mig_gpu_instance_info{"); {
		code, text := exporter.get("GET", "/metrics")
		if body = text; code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
}

// dcgmPackage returns a folder with a package that looks like one of DCGM's.
func dcgmPackage(t *testing.T) string {
	t.Helper()
	content, folder := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(content, "DEBIAN/control"),
		"Package: datacenter-gpu-manager-4-core\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n", 0o644)
	writeFile(t, filepath.Join(content, "usr/lib/x86_64-linux-gnu/libdcgm.so.4"), "a library", 0o644)
	writeFile(t, filepath.Join(content, "usr/bin/nv-hostengine"), "a program, which is left out", 0o755)
	out, err := exec.Command(needs(t, "dpkg-deb"), "--build", content, filepath.Join(folder, "dcgm.deb")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}
