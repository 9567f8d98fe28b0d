package main

import (
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestContained: any sign of a container counts, since a container may not see its host's kubelet.
// Mounts that cannot be read count, too.
func TestContained(t *testing.T) {
	const (
		disk = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" +
			"30 22 0:40 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw,lowerdir=/a\n"
		overlay = "600 500 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/a\n"
	)

	for _, tt := range []struct {
		about, variable, mounts string
		file, want              bool
	}{
		{about: "host", mounts: disk},
		{about: "file of a container", mounts: disk, file: true, want: true},
		{about: "LXC", variable: "lxc", mounts: disk, want: true},
		{about: "containerd with the host's processes", mounts: overlay, want: true},
		{about: "no mounts to read", want: true},
	} {
		t.Run(tt.about, func(t *testing.T) {
			mounts := filepath.Join(t.TempDir(), "mountinfo")
			if tt.mounts != "" {
				mounts = write(t, "mountinfo", tt.mounts)
			}

			files := []string{filepath.Join(t.TempDir(), "absent")}
			if tt.file {
				files = append(files, write(t, "dockerenv", ""))
			}

			getenv := func(name string) string {
				if name != "container" {
					t.Errorf("asks for %s", name)
				}

				return tt.variable
			}
			cmptest.Equal(t, "contained", isContained(getenv, files, mounts), tt.want)
		})
	}
}
