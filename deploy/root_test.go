package deploy

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// root is the root folder of a system of its own. Programs of it are started by chroot, which needs
// root's rights.
type root struct {
	t   *testing.T
	dir string
}

// newRoot returns an empty root with the programs of this machine that are named, and what they are
// linked with.
func newRoot(t *testing.T, programs ...string) root {
	t.Helper()

	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root may change the root folder of a process")
	}

	r := root{t, t.TempDir()}
	if err := os.Chmod(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}

	for _, dir := range []string{"tmp", "run", "proc", "dev", "var/lib", "etc", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}

		r.copy(path, filepath.Join("/usr/bin", program))
		r.copyLibraries(path)
	}

	return r
}

// path returns the path of a file of the root, as this process sees it.
func (r root) path(name string) string { return filepath.Join(r.dir, name) }

// copy copies a file of this machine into the root.
func (r root) copy(from, to string) {
	r.t.Helper()

	info, err := os.Stat(from)
	if err != nil {
		r.t.Fatal(err)
	}

	writeFile(r.t, r.path(to), readFile(r.t, from), info.Mode().Perm())
}

// copyLibraries copies the shared libraries of a program and its loader to the same paths.
func (r root) copyLibraries(program string) {
	r.t.Helper()

	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		r.t.Fatalf("ldd %s: %v", program, err)
	}

	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		r.copy(m[1], m[1])
	}
}

// command returns a command in the root as a user, with no capability but those that the user has
// by being root. The environment is nearly empty.
func (r root) command(user uint32, args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Path = args[0]
	cmd.Err = nil // in the root, not here
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir, Credential: &syscall.Credential{Uid: user, Gid: user}}

	return cmd
}

// files lists all files of the root, without folders, and what is under the folders that are named.
func (r root) files(without ...string) []string {
	r.t.Helper()
	var list []string

	err := filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		name := strings.TrimPrefix(path, r.dir)
		if e.IsDir() {
			if slices.Contains(without, name) {
				return fs.SkipDir
			}

			return nil
		}

		list = append(list, name)

		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}

	return list
}
