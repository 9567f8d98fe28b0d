package deploy

import (
	"errors"
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

// cleanCopy returns a folder with the files that `docker build` sends: those of the repository that
// .dockerignore lets through.
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

// isSent reports which files .dockerignore lets through. It knows the forms that the file has: *,
// !PATH, PATH, **/NAME.
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

// buildImage runs the commands of the Dockerfile's first stage in a clean folder, and returns the
// root file system. The last command, which assembles it, has to give the same files a second time.
func buildImage(t *testing.T, dcgm string) root {
	t.Helper()
	needs(t, "setpriv")

	r := newRoot(t)

	again := newRoot(t)
	if err := errors.Join(os.RemoveAll(r.dir), os.RemoveAll(again.dir)); err != nil {
		t.Fatal(err)
	}

	source := cleanCopy(t)

	commands := runLines(t)
	for _, command := range append(commands, strings.ReplaceAll(commands[len(commands)-1], "/rootfs", again.dir)) {
		cmd := exec.Command("/bin/sh", "-ec", strings.ReplaceAll(command, "/rootfs", r.dir))
		cmd.Dir = source

		cmd.Env = append(os.Environ(), "REVISION=0123456789ab", "BRANCH=main", "DATE=2026-01-02T03:04:05Z",
			"SOURCE_DATE_EPOCH=1767323045", "DCGM="+dcgm)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("RUN %s: %v\n%s", command, err, out)
		}
	}

	if out, err := exec.Command("diff", "-r", "--no-dereference", r.dir, again.dir).CombinedOutput(); err != nil {
		t.Errorf("a second time the files differ: %v\n%s", err, out)
	}

	return r
}

// TestImage assembles the image's root file system with the Dockerfile's own commands and runs the
// program in it, as the image's user and as another one, with no capability at all. No container
// engine takes part.
func TestImage(t *testing.T) {
	dockerfile := readFile(t, "../Dockerfile")

	version := strings.TrimSpace(readFile(t, "../VERSION"))
	for _, want := range []string{`org.opencontainers.image.version="` + version + `"`, "\nUSER 0:0\n",
		"\nENTRYPOINT [\"/usr/bin/mig-exporter\"]\n"} {
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

	t.Run("driver of RHEL", func(t *testing.T) { runWithDriverOfRHEL(t, r) })
}

// runWithDriverOfRHEL mounts the simulated driver as the NVIDIA container toolkit does by CDI on a
// host that has libraries in /usr/lib64: the library, and what its hook update-ldcache runs up to
// version 1.17.
func runWithDriverOfRHEL(t *testing.T, r root) {
	t.Helper()
	library := r.path("usr/lib64/libnvidia-ml.so.550.54.15")

	build := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1",
		"-o", library, "../cmd/nvml-sim")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}

	args := []string{"-r", r.dir, "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache"}
	if _, err := os.Stat(r.path("etc/ld.so.cache")); err != nil {
		args = []string{"-r", r.dir, "-f", "/etc/ld.so.conf", "-N"} // updates links alone
	}

	writeFile(t, r.path("etc/ld.so.conf.d/nvcr-4711.conf"), "/usr/lib64\n", 0o644)

	if out, err := exec.Command(needs(t, "ldconfig"), args...).CombinedOutput(); err != nil {
		t.Fatalf("ldconfig: %v\n%s", err, out)
	}

	cmd := r.command(0, "/usr/bin/mig-exporter", "--web.listen-address=127.0.0.1:0")
	cmd.Env = append(cmd.Env, "MIG_SIM_SCENARIO=/tmp/node.yaml")

	exporter := serve(t, cmd)
	if status, body := exporter.get("GET", "/-/ready"); strings.Contains(body, "libnvidia-ml") {
		t.Fatalf("the driver's library is not found: %d %s", status, body)
	}

	exporter.waitFor("nvidia_mig_gpu_instance_info{")
}

// TestImageCommand: `make image` names the commit and, if it is known, its date, by RFC 3339.
func TestImageCommand(t *testing.T) {
	engine := filepath.Join(t.TempDir(), "engine")
	writeFile(t, engine, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n", 0o755)
	command := func(variables ...string) string {
		args := append([]string{"--silent", "--no-print-directory", "-C", "..", "image", "ENGINE=" + engine}, variables...)

		out, err := exec.Command(needs(t, "make"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}

		return string(out)
	}

	got := command("DATE=2026-01-02T03:04:05+00:00", "REVISION=0123456789ab", "IMAGE=registry.example.com/x:1", "DCGM=dcgm")
	for _, want := range []string{"build\n", "REVISION=0123456789ab\n", "DATE=2026-01-02T03:04:05+00:00\n", "DCGM=dcgm\n",
		"--label\norg.opencontainers.image.created=2026-01-02T03:04:05+00:00\n", "-t\nregistry.example.com/x:1\n.\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the command lacks %q:\n%s", want, got)
		}
	}

	if got := command("DATE=unknown"); strings.Contains(got, "created") {
		t.Errorf("a label with no date:\n%s", got)
	}
}

// expectImageFiles checks what is in the image and what is not.
func (r root) expectImageFiles() {
	r.t.Helper()

	files := strings.Join(r.files(), "\n") + "\n"
	for _, want := range []string{"/usr/bin/mig-exporter\n", "/usr/bin/migctl\n", "/libc.so.6\n", "/libm.so.6\n",
		"/librt.so.1\n", "/usr/share/doc/mig-exporter/sbom.cdx.json\n",
		"/usr/share/doc/mig-exporter/THIRD_PARTY_LICENSES\n", "/etc/debian_version\n", "/etc/ld.so.cache\n",
		"/usr/share/doc/libc6/copyright\n", "/usr/share/doc/libstdc++6/copyright\n", "/libdcgm.so.4\n",
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

	sbom := readFile(r.t, r.path("usr/share/doc/mig-exporter/sbom.cdx.json"))
	for _, want := range []string{"pkg:golang/github.com/NVIDIA/go-nvml@", "pkg:deb/debian/libc6@2.", "upstream=glibc",
		"pkg:deb/debian/ca-certificates@", "pkg:deb/debian/libstdc%2B%2B6@",
		"pkg:deb/nvidia/datacenter-gpu-manager-4-core@1?arch=all"} {
		if !strings.Contains(sbom, want) {
			r.t.Errorf("the SBOM lacks %q", want)
		}
	}
}

// runWithoutRights runs the image's program as a user without any capability, and scrapes it.
func runWithoutRights(t *testing.T, r root, user string) {
	t.Helper()
	cmd := r.command(0, "/setpriv", "--reuid="+user, "--regid="+user, "--clear-groups", "--no-new-privs",
		"--bounding-set=-all", "--inh-caps=-all", "/usr/bin/mig-exporter", "--driver=sim",
		"--web.listen-address=127.0.0.1:0")
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

	exporter.waitFor("nvidia_mig_gpu_instance_info{")
}

// dcgmPackage returns a folder with a package that looks like one of DCGM's.
func dcgmPackage(t *testing.T) string {
	t.Helper()
	content := t.TempDir()
	folder := t.TempDir()
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
