package deploy

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// The tags of an RPM's header that the tests read.
const (
	rpmName         = 1000
	rpmArch         = 1022
	rpmPostInstall  = 1024
	rpmPreUninstall = 1025
	rpmPostRemove   = 1026
	rpmRequires     = 1049
)

// rpm is an RPM package: the texts of its header, and its files.
type rpm struct {
	tags  map[uint32][]string
	files map[string]string
}

// readRPM reads the package that `make test-packages` has built: lead, signature, header, and a
// compressed cpio.
func readRPM(t *testing.T) *rpm {
	t.Helper()

	path := os.Getenv("TEST_RPM")
	if path == "" {
		t.Skip("NOT TESTED: run make test-packages, which builds the packages")
	}

	const lead = 96

	data := []byte(readFile(t, path))[lead:]
	_, size := readRPMHeader(t, data)
	data = data[(size+7)&^7:] // the signature is padded

	tags, size := readRPMHeader(t, data)

	zip, err := gzip.NewReader(bytes.NewReader(data[size:]))
	if err != nil {
		t.Fatal(err)
	}

	return &rpm{tags: tags, files: readCPIO(t, zip)}
}

// readRPMHeader returns the texts of a header, and its size.
func readRPMHeader(t *testing.T, data []byte) (tags map[uint32][]string, size int) {
	t.Helper()

	if !bytes.HasPrefix(data, []byte{0x8e, 0xad, 0xe8, 0x01}) {
		t.Fatal("no header of an RPM")
	}

	const intro, entry = 16, 16

	number := int(binary.BigEndian.Uint32(data[8:]))
	store := data[intro+number*entry:]
	tags = map[uint32][]string{}

	for i := range number {
		e := data[intro+i*entry:]
		kind := binary.BigEndian.Uint32(e[4:])
		at := binary.BigEndian.Uint32(e[8:])
		count := binary.BigEndian.Uint32(e[12:])

		if kind != 6 && kind != 8 && kind != 9 { // a text, a list of texts, texts by language
			continue
		}

		texts := strings.SplitN(string(store[at:]), "\x00", int(count)+1)
		tags[binary.BigEndian.Uint32(e)] = texts[:count]
	}

	return tags, intro + number*entry + int(binary.BigEndian.Uint32(data[12:]))
}

// readCPIO returns the files of an archive in the format newc, by path.
func readCPIO(t *testing.T, r io.Reader) map[string]string {
	t.Helper()

	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}

	files := map[string]string{}

	for at := 0; ; {
		field := func(n int) int {
			v, err := strconv.ParseUint(string(data[at+6+8*n:at+14+8*n]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}

			return int(v)
		}
		const header = 110
		size := field(6)
		nameSize := field(11)

		name := string(data[at+header : at+header+nameSize-1])
		if name == "TRAILER!!!" {
			return files
		}

		body := (at + header + nameSize + 3) &^ 3
		files["/"+strings.TrimLeft(name, "./")] = string(data[body : body+size])
		at = (body + size + 3) &^ 3
	}
}

// TestRPMContents: the RPM has what the Debian package has, where its distributions look for it.
func TestRPMContents(t *testing.T) {
	r := readRPM(t)
	first, _ := packages(t)

	dir := t.TempDir()
	if out, err := exec.Command(needs(t, "dpkg-deb"), "--extract", first, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		name := strings.Replace(strings.TrimPrefix(path, dir), "/zsh/vendor-completions/", "/zsh/site-functions/", 1)
		if r.files[name] != readFile(t, path) {
			t.Errorf("%s differs from the Debian package's", name)
		}

		delete(r.files, name)

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	for name := range r.files {
		t.Errorf("%s is in the RPM alone", name)
	}
}

// TestRPMHeader: the RPM names what it needs, and its scripts are those of the repository.
func TestRPMHeader(t *testing.T) {
	r := readRPM(t)
	cmptest.Equal(t, "name", r.tags[rpmName], []string{"mig-exporter"})

	if arch := r.tags[rpmArch]; !slices.Contains([]string{"x86_64", "aarch64"}, strings.Join(arch, "")) {
		t.Errorf("architecture %q", arch)
	}

	for _, want := range []string{"glibc", "util-linux"} {
		if !slices.Contains(r.tags[rpmRequires], want) {
			t.Errorf("it requires %q, not %s", r.tags[rpmRequires], want)
		}
	}

	for tag, name := range map[uint32]string{
		rpmPostInstall: "postinst", rpmPreUninstall: "prerm", rpmPostRemove: "postrm",
	} {
		got := strings.TrimSpace(strings.Join(r.tags[tag], ""))
		cmptest.Equal(t, name, got, strings.TrimSpace(readFile(t, "rpm/"+name)))
	}
}

// TestRPMScripts: what the scripts call at an installation, an upgrade and a removal, on a host
// with systemd.
func TestRPMScripts(t *testing.T) {
	root := newRoot(t, "sh")
	if _, err := os.Lstat(root.path("bin")); err != nil {
		if err := os.Symlink("usr/bin", root.path("bin")); err != nil {
			t.Fatal(err)
		}
	}

	for _, name := range []string{"systemctl", "systemd-tmpfiles"} {
		writeFile(t, root.path("usr/bin/"+name), fake, 0o755)
	}

	if err := os.MkdirAll(root.path("run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}

	for _, tt := range []struct{ script, versions, want string }{
		{"postinst", "1", "systemd-tmpfiles --create mig-exporter.conf\n" +
			"systemctl --no-reload preset mig-exporter.service\nsystemctl --system daemon-reload\n"},
		{"postinst", "2", "systemd-tmpfiles --create mig-exporter.conf\nsystemctl --system daemon-reload\n"},
		{"prerm", "1", ""},
		{"postrm", "1", "systemctl --system daemon-reload\nsystemctl try-restart mig-exporter.service\n"},
		{"prerm", "0", "systemctl --no-reload disable --now mig-exporter.socket mig-exporter.service\n"},
		{"postrm", "0", "systemctl --system daemon-reload\n"},
	} {
		_ = os.Remove(root.path("calls"))
		root.copy("rpm/"+tt.script, "/tmp/script")

		if out, err := root.command(0, "/bin/sh", "/tmp/script", tt.versions).CombinedOutput(); err != nil {
			t.Errorf("%s %s: %v\n%s", tt.script, tt.versions, err, out)
		}

		calls, err := os.ReadFile(root.path("calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}

		cmptest.Equal(t, tt.script+" "+tt.versions, string(calls), tt.want)
	}
}
