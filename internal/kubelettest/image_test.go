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
	"runtime"
)

// podImage is the image of the tests' pods and of every pod's sandbox: busybox. No registry has it.
const podImage = "kubelettest.invalid/node:1"

// scenarioPath is the path in the exporter's image of the scenario of the simulated driver.
const scenarioPath = "/etc/mig-sim/node.yaml"

// image is one of an archive's images, of one layer.
type image struct {
	name       string
	entrypoint []string
	env        []string
	root       string // folder
}

// writeImages writes the images of the node as an archive that containerd imports. Their
// environment names the run, by which the supervisor finds containers that are left.
func writeImages(archive, programs, workspace string) error {
	run := workspaceVariable + "=" + workspace
	pods := image{name: podImage, entrypoint: []string{"/bin/busybox", "sleep", "infinity"},
		env: []string{"PATH=/bin", run}, root: filepath.Join(workspace, "pod-image")}

	busybox, err := exec.LookPath("busybox")
	if err == nil {
		err = copyFile(filepath.Join(pods.root, "bin/busybox"), busybox)
	}

	if err != nil {
		return err
	}

	exporter := image{entrypoint: []string{"/usr/bin/mig-exporter"},
		env: []string{"MIG_SIM_SCENARIO=" + scenarioPath, run}, root: filepath.Join(workspace, "exporter-image")}
	if exporter.name, err = chartImage(); err != nil {
		return err
	}

	if err := assembleExporter(exporter.root, programs); err != nil {
		return err
	}

	return writeArchive(archive, pods, exporter)
}

// chartImage returns the image that the chart names, as the container runtime completes it.
func chartImage() (string, error) {
	m, err := readManifest(profiles[0].manifest, profiles[0].namespace)
	if err != nil {
		return "", err
	}

	return "docker.io/library/" + m.daemonSet.Spec.Template.Spec.Containers[0].Image, nil
}

// assembleExporter makes the root file system of the project's image, with a driver as NVIDIA's
// container toolkit puts it in: the simulated node's C library in Debian's folder of libraries.
func assembleExporter(root, programs string) error {
	c := exec.Command("deploy/image/assemble.sh", root)

	c.Dir = filepath.Join("..", "..")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("assemble the image: %w: %s", err, out)
	}

	libc, err := filepath.Glob(filepath.Join(root, "lib/*-linux-gnu"))
	if err != nil || len(libc) != 1 {
		return fmt.Errorf("folder of libraries in %s: %q %w", root, libc, err)
	}

	if err := copyFile(filepath.Join(libc[0], "libnvidia-ml.so.1"),
		filepath.Join(programs, "libnvidia-ml.so.1")); err != nil {
		return err
	}

	return copyFile(filepath.Join(root, scenarioPath), filepath.Join("testdata", "node.yaml"))
}

// copyFile copies a file, and makes the folder that it goes to.
func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}

	if err != nil {
		return err
	}

	return os.WriteFile(to, content, 0o755)
}

// writeArchive writes images in the form of docker save.
func writeArchive(archive string, images ...image) error {
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	add := func(name string, content []byte) error {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(fs.ModePerm), Size: int64(len(content))}
		if err := w.WriteHeader(header); err != nil {
			return err
		}

		_, err := w.Write(content)

		return err
	}
	var manifest []map[string]any

	for _, i := range images {
		var layer bytes.Buffer

		files := tar.NewWriter(&layer)
		if err := files.AddFS(os.DirFS(i.root)); err != nil {
			return fmt.Errorf("image %s: %w", i.name, err)
		}

		if err := files.Close(); err != nil {
			return err
		}

		sum := sha256.Sum256(layer.Bytes())
		id := hex.EncodeToString(sum[:])

		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Entrypoint": i.entrypoint, "Env": i.env},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + id}},
		})
		if err == nil {
			err = add(id+".json", config)
		}

		if err == nil {
			err = add(id+".tar", layer.Bytes())
		}

		if err != nil {
			return err
		}

		manifest = append(manifest, map[string]any{
			"Config": id + ".json", "RepoTags": []string{i.name}, "Layers": []string{id + ".tar"},
		})
	}

	text, err := json.Marshal(manifest)
	if err == nil {
		err = add("manifest.json", text)
	}

	if err == nil {
		err = w.Close()
	}

	if err != nil {
		return err
	}

	return os.WriteFile(archive, all.Bytes(), 0o644)
}
