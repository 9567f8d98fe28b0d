package kubelettest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
)

// imageName is the one image of the node: busybox, mig-exporter and the simulated node's C library. Pods' sandboxes
// have it, too. No registry has it.
const imageName = "kubelettest.invalid/node:1"

// libraryPath is the path in the image of the simulated node's C library.
const libraryPath = "/lib/libnvidia-ml.so.1"

// imageFile is a file of the image.
type imageFile struct{ path, from string }

// writeImage writes the image as an archive that containerd imports.
func writeImage(archive, programs, workspace string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	files := []imageFile{
		{"bin/busybox", busybox},
		{"bin/mig-exporter", filepath.Join(programs, "mig-exporter")},
		{libraryPath[1:], filepath.Join(programs, "libnvidia-ml.so.1")},
	}
	out, err := exec.Command("ldd", filepath.Join(programs, "mig-exporter"),
		filepath.Join(programs, "libnvidia-ml.so.1")).Output()
	if err != nil {
		return fmt.Errorf("shared libraries of mig-exporter: %w", err)
	}
	known := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^\s.*?(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		if path := string(match[1]); !known[path] {
			known[path] = true
			files = append(files, imageFile{path[1:], path})
		}
	}
	layer, err := packFiles(files)
	if err != nil {
		return err
	}
	return writeArchive(archive, layer, workspace)
}

// packFiles returns a layer with the files.
func packFiles(files []imageFile) ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"bin", "etc", "lib", "run", "tmp", "proc", "sys", "dev", "var/lib", "var/run",
		"var/log"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		content, err := os.ReadFile(f.from)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: 0o755, Size: int64(len(content))})
		}
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			return nil, fmt.Errorf("image: %w", err)
		}
	}
	return layer.Bytes(), w.Close()
}

// writeArchive writes an image of one layer in the form of docker save. Its environment names the run, by which the
// supervisor finds containers that are left.
func writeArchive(archive string, layer []byte, workspace string) error {
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{"/bin/busybox", "sleep", "infinity"},
			"Env":        []string{"PATH=/bin", workspaceVariable + "=" + workspace},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{imageName}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, f := range []struct {
		name    string
		content []byte
	}{{"manifest.json", manifest}, {"config.json", config}, {"layer.tar", layer}} {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(fs.ModePerm), Size: int64(len(f.content))}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(archive, all.Bytes(), 0o644)
}
