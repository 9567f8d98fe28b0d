package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// checkpointName is the name of the device manager's file, which real kubelets have in
// /var/lib/kubelet/device-plugins. The types below have the names and encodings of Kubernetes'
// pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go.
const checkpointName = "kubelet_internal_checkpoint"

type checkpointFile struct {
	Data     checkpointData
	Checksum uint64
}

type checkpointData struct {
	PodDeviceEntries  []podDevicesEntry
	RegisteredDevices map[string][]string
}

type podDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[int64][]string // by NUMA node
	AllocResp     []byte             // the device plugin's answer, a ContainerAllocateResponse
}

// checkpointer keeps the file of a node's checkpoint.
type checkpointer struct {
	node NodeView
	path string

	mu      sync.Mutex
	version int // the sim.Checkpoint.Version that the file has
}

// sync writes the file if the checkpoint has changed. Like the kubelet's file store it replaces the
// file as a whole.
func (c *checkpointer) sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := c.node.Checkpoint()
	if now.Version == c.version {
		return nil
	}

	text, err := encodeCheckpoint(&now)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}

	if now.Invalid { // FaultBadCheckpoint cuts the file short
		text = text[:len(text)/2]
	}

	if err := c.replace(text); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}

	c.version = now.Version

	return nil
}

func (c *checkpointer) replace(text []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(c.path), ".") // with mode 0600
	if err != nil {
		return err
	}

	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()

	if _, err := file.Write(text); err != nil {
		return errors.Join(err, file.Close())
	}

	if err := file.Close(); err != nil {
		return err
	}

	return os.Rename(file.Name(), c.path)
}

// encodeCheckpoint returns the text of the file. The checksum differs from the kubelet's, which hashes
// a dump of its Go structs.
func encodeCheckpoint(c *sim.Checkpoint) ([]byte, error) {
	data := checkpointData{RegisteredDevices: map[string][]string{}}

	for _, e := range c.Entries {
		response, err := allocResponse(&e)
		if err != nil {
			return nil, err
		}

		data.PodDeviceEntries = append(data.PodDeviceEntries, podDevicesEntry{
			PodUID:        e.PodUID,
			ContainerName: e.Container,
			ResourceName:  e.Resource,
			DeviceIDs:     e.DeviceIDs,
			AllocResp:     response,
		})
	}

	for _, r := range c.Registered {
		data.RegisteredDevices[r.Resource] = r.IDs
	}

	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}

	sum := fnv.New32a()
	_, _ = sum.Write(text) // never fails

	return json.Marshal(checkpointFile{Data: data, Checksum: uint64(sum.Sum32())})
}

// allocResponse returns the answer of NVIDIA's device plugin in its default mode: the devices in an
// environment variable.
func allocResponse(e *sim.CheckpointEntry) ([]byte, error) {
	var ids []string
	for _, numa := range slices.Sorted(maps.Keys(e.DeviceIDs)) {
		ids = append(ids, e.DeviceIDs[numa]...)
	}

	return proto.MarshalOptions{
		Deterministic: true,
	}.Marshal(
		&deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(ids, ",")},
		},
	)
}
