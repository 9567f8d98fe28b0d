package pidns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestCheckInitial(t *testing.T) {
	process := t.TempDir()

	link := filepath.Join(process, "ns", "pid")
	if err := CheckInitial(process); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, gpu.ErrPIDNamespace) {
		t.Errorf("without the link: %v, want %v and %v", err, fs.ErrNotExist, gpu.ErrPIDNamespace)
	}

	if err := os.Mkdir(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}

	for target, want := range map[string]error{
		"pid:[4026531836]": nil,
		"pid:[4026532574]": gpu.ErrPIDNamespace,
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}

		err := CheckInitial(process)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", target, err, want)
		}

		if err != nil && !strings.Contains(err.Error(), target) {
			t.Errorf("%v does not name %s", err, target)
		}

		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}
