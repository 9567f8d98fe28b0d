package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// maxScenarioBytes bounds a scenario file, far above any useful one.
const maxScenarioBytes = 16 << 20

// maxDuration bounds durations in scenarios, traces and state files.
const maxDuration = strictyaml.MaxDuration

// Load reads a scenario file.
func Load(path string) (*Scenario, error) {
	data, err := strictyaml.ReadFile(path, maxScenarioBytes)
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}

	return Parse(path, data)
}

// Parse reads a scenario. The path names it in errors, and its directory is where traces are looked
// for. The error joins every *strictyaml.Error found, in the order of their lines.
func Parse(path string, data []byte) (*Scenario, error) {
	name := filepath.Base(path)
	sum := sha256.Sum256(data)

	f := &scenarioFile{
		path: path,
		scenario: &Scenario{
			Name:   strings.TrimSuffix(name, filepath.Ext(name)),
			digest: hex.EncodeToString(sum[:]),
		},
		models:    make(map[string]gpuModel),
		workloads: make(map[string]*Workload),
	}
	if err := strictyaml.Decode(path, data, f, f.forms()...); err != nil {
		return nil, err
	}

	f.scenario.Node = f.Node
	f.scenario.Seed = uint64(f.Seed)
	f.scenario.DriverCosts = f.DriverCosts

	return f.scenario, nil
}

// scenarioFile is the content of a scenario file. Each entry, when it is read, adds what it
// describes to scenario. Entries refer to entries of sections above: a pod to a workload.
type scenarioFile struct {
	path      string
	scenario  *Scenario
	models    map[string]gpuModel  // those looked up so far, by name: the table of models is large
	workloads map[string]*Workload // those read so far, by name

	Version   int             `range:"1..1" expected:"1, the version of the scenario format"`
	Node      NodeSpec        `default:"{}"`
	Seed      int64           `default:"1" range:"0..9007199254740992"`
	GPUs      []gpuEntry      `yaml:"gpus" expected:"a list of GPUs such as {model: A100-40GB, count: 2}"`
	Workloads []workloadEntry `yaml:",omitempty"`
	Pods      []podEntry      `yaml:",omitempty"`
	Processes []processEntry  `yaml:",omitempty"`
	Faults    []faultEntry    `yaml:",omitempty"`
	// DriverCosts are how long driver calls take, by function or class.
	DriverCosts map[CallName]time.Duration `yaml:"driverCosts,omitempty"`
}

// fileOf returns the scenario file that is being read.
func fileOf(r *strictyaml.Reader) *scenarioFile { return r.Root().(*scenarioFile) }

// DecodeYAML reads the file's top level.
func (f *scenarioFile) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if strictyaml.HasKey(n, "recorded") {
		r.FailAt(
			n,
			key,
			"recorded",
			"this is a recording of a node (mig-exporter capture), which mig-exporter "+
				"alone replays; expected a scenario",
		)

		return
	}

	type plain scenarioFile
	r.Decode(n, key, (*plain)(f))

	if len(f.Pods) > 0 && !f.Node.Kubernetes {
		r.FailAt(
			n,
			key,
			"pods",
			"the node has kubernetes: false; expected processes instead of pods",
		)
	}
}

// forms returns how to read types that have no method for it: types of other packages, and names
// that refer to something, such as a workload above.
func (f *scenarioFile) forms() []strictyaml.Form {
	return []strictyaml.Form{
		strictyaml.FormOf(readOpt[int]),
		strictyaml.FormOf(readOpt[DevicePin]),
		strictyaml.FormOf(readOpt[gpu.InstanceID]),
		strictyaml.FormOf(readOpt[gpu.ComputeID]),
		strictyaml.FormOf(f.readModel),
		strictyaml.OneOf(f.workloads),
		strictyaml.OneOf(migModes()),
		strictyaml.OneOf(changeErrors()),
		strictyaml.OneOf(faultKinds()),
		strictyaml.OneOf(faultReadings()),
	}
}

// readOpt reads an optional value.
func readOpt[T any](r *strictyaml.Reader, n *strictyaml.Node, key string, into *gpu.Opt[T]) {
	var value T
	if r.Decode(n, key, &value) {
		*into = gpu.Some(value)
	}
}
