package podresources

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultCheckpoint is where the kubelet's device manager stores its assignments. Only root can
// read it.
const DefaultCheckpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"

// maxCheckpoint bounds the checkpoint in bytes. With 110 pods that have 64 devices each, it has
// less than 2 MiB.
const maxCheckpoint = 16 << 20

// checkpointDevice is one device of the checkpoint.
type checkpointDevice struct {
	uid                     string // the pod's UID; the file does not have its name
	container, resource, id string
}

// checkpointKey has the fields that both the checkpoint and the kubelet's list have for a device.
type checkpointKey struct{ container, resource, id string }

// checkpoint is the file in which the kubelet's device manager keeps the devices of every container
// over a restart, including init containers. A pod that has ended stays in the file until the
// kubelet assigns another device. We cannot verify the file's checksum, which covers the kubelet's
// own structures. A nil checkpoint stands for a file that we do not read.
type checkpoint struct {
	path  string
	names resourceNames
	now   func() time.Time

	lastFile    os.FileInfo // of the last successful read; nil before
	version     uint64      // grows by one with every observed change of the file
	devices     []checkpointDevice
	registered  bool                       // a device plugin of the matching resources has registered
	byKey       map[checkpointKey][]string // the UIDs of the pods that have a device
	lastSuccess time.Time                  // when the devices were last known to be in the file
	err         error                      // why the last attempt to read failed
}

// readIfChanged reads the file if it has changed. If that fails, the devices of the last successful
// read stay.
func (c *checkpoint) readIfChanged() {
	if c == nil {
		return
	}

	// We look at the file before we read it: if the kubelet writes it in between, the next call sees
	// that it has changed.
	file, err := statRegular(c.path)
	if err != nil {
		c.err = checkpointError(err)
		return
	}

	if c.err == nil && sameFile(file, c.lastFile) {
		c.lastSuccess = c.now()
		return
	}

	devices, registered, err := c.load()
	if err != nil {
		c.err = checkpointError(err)
		return
	}

	if !sameFile(file, c.lastFile) {
		c.version++
	}

	c.lastFile = file
	c.devices = devices
	c.registered = registered
	c.lastSuccess = c.now()
	c.err = nil
	c.indexDevices()
}

// statRegular returns the state of a regular file. It refuses others: to open a FIFO would block.
func statRegular(path string) (os.FileInfo, error) {
	file, err := os.Stat(path)
	if err != nil {
		return nil, err
	}

	if !file.Mode().IsRegular() {
		return nil, errors.New(path + ": expected a regular file")
	}

	return file, nil
}

// indexDevices fills byKey.
func (c *checkpoint) indexDevices() {
	c.byKey = make(map[checkpointKey][]string, len(c.devices))
	for _, d := range c.devices {
		key := checkpointKey{d.container, d.resource, d.id}
		if !slices.Contains(c.byKey[key], d.uid) {
			c.byKey[key] = append(c.byKey[key], d.uid)
		}
	}
}

func checkpointError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("kubelet checkpoint: %w: %w", err, gpu.ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("kubelet checkpoint: %w: %w", err, gpu.ErrNoPermission)
	}

	return fmt.Errorf("kubelet checkpoint: %w: %w", err, gpu.ErrUnavailable)
}

// load reads the devices of the matching resources. registered is whether a device plugin of these
// resources has registered with the kubelet.
func (c *checkpoint) load() (devices []checkpointDevice, registered bool, err error) {
	f, err := os.Open(c.path)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, maxCheckpoint+1))
	if err != nil {
		return nil, false, err
	}

	if len(text) > maxCheckpoint {
		return nil, false, fmt.Errorf("%s has more than %d MiB", c.path, maxCheckpoint>>20)
	}

	devices, registered, err = parseCheckpoint(text, c.names)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", c.path, err)
	}

	return devices, registered, nil
}

// checkpointFile is the file's format since Kubernetes 1.20
// (pkg/kubelet/cm/devicemanager/checkpoint).
type checkpointFile struct {
	Data *struct {
		PodDeviceEntries []struct {
			PodUID        string
			ContainerName string
			ResourceName  string
			DeviceIDs     map[string][]string // by NUMA node
		}
		RegisteredDevices map[string][]string // by resource; empty until its plugin registers with a new kubelet
	}
}

// parseCheckpoint parses the text of a checkpoint; see load for its results.
func parseCheckpoint(
	text []byte,
	names resourceNames,
) (devices []checkpointDevice, registered bool, err error) {
	var file checkpointFile

	if err = json.NewDecoder(bytes.NewReader(text)).Decode(&file); err != nil {
		return nil, false, fmt.Errorf("expected the JSON of the kubelet's device manager: %w", err)
	}

	if file.Data == nil {
		return nil, false, errors.New(
			"expected the JSON of the kubelet's device manager: it has no Data",
		)
	}

	for resource := range file.Data.RegisteredDevices {
		registered = registered || names.matches(resource)
	}

	for _, e := range file.Data.PodDeviceEntries {
		if !names.matches(e.ResourceName) {
			continue
		}

		if e.PodUID == "" || e.ContainerName == "" {
			return nil, false, fmt.Errorf(
				"an entry of resource %q has no pod UID or no container",
				e.ResourceName,
			)
		}

		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				if _, ok := parseDeviceID(id); !ok {
					return nil, false, fmt.Errorf(
						"device id %.128q of resource %q has no known form",
						id,
						e.ResourceName,
					)
				}

				devices = append(
					devices,
					checkpointDevice{e.PodUID, e.ContainerName, e.ResourceName, id},
				)
			}
		}
	}

	return devices, registered, nil
}

// currentVersion returns the version of the last successful read; 0 if there was none.
func (c *checkpoint) currentVersion() uint64 {
	if c == nil {
		return 0
	}

	return c.version
}

// readAt returns when the devices were last known to be in the file; zero if never.
func (c *checkpoint) readAt() time.Time {
	if c == nil {
		return time.Time{}
	}

	return c.lastSuccess
}

// coversNode reports whether the checkpoint shows who held the node's devices: we have read it, and
// a device plugin of the matching resources has registered with the kubelet. If none has, the node
// may allocate its devices by DRA claims, which the checkpoint lacks.
func (c *checkpoint) coversNode() bool { return c != nil && c.err == nil && c.registered }

// podUIDs returns the UIDs of the pods for which the checkpoint has the device of a holding, in a
// container of the same name.
func (c *checkpoint) podUIDs(h *holding) []string {
	return c.byKey[checkpointKey{h.Holder.Name, h.Holder.Resource, h.ID}]
}

// hasDevice reports whether we can read the checkpoint and it has the device for the holding's pod.
func (c *checkpoint) hasDevice(h *holding) bool {
	return c != nil && c.err == nil && h.Holder.PodUID != "" &&
		slices.Contains(c.podUIDs(h), h.Holder.PodUID)
}

// rewrittenWithout reports whether the kubelet has written the file since a holding went missing,
// and without it.
func (c *checkpoint) rewrittenWithout(h *holding) bool {
	return c != nil && c.err == nil && c.version > h.checkpointVersion &&
		!slices.Contains(c.podUIDs(h), h.Holder.PodUID)
}

// sourceState returns the checkpoint's state as a source; false if there never was a file that we
// had the right to read.
func (c *checkpoint) sourceState() (gpu.SourceState, bool) {
	if c.lastFile == nil &&
		(c.err == nil || errors.Is(c.err, gpu.ErrNotFound) || errors.Is(c.err, gpu.ErrNoPermission)) {
		return gpu.SourceState{}, false
	}

	return gpu.SourceState{
		Name:        gpu.SourceCheckpoint,
		Up:          c.err == nil,
		Stale:       c.err != nil && c.lastFile != nil,
		LastSuccess: c.lastSuccess,
		Err:         c.err,
	}, true
}
