package spec

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// version is the only version of mig-parted's form.
const version = "v1"

// LoadLayouts reads the named layouts of a file in mig-parted's form, version v1. The error joins
// every *strictyaml.Error found, in the order of their lines.
func LoadLayouts(path string) (map[string][]api.LayoutRule, error) {
	data, err := strictyaml.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("layouts: %w", err)
	}

	return ReadLayouts(path, data)
}

// ReadLayouts reads the named layouts of a document in mig-parted's form, as LoadLayouts does.
// Errors name the document.
func ReadLayouts(name string, data []byte) (map[string][]api.LayoutRule, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("layouts: %s has %d bytes; expected at most %d", name, len(data), maxFile)
	}

	var file layoutFile
	if err := strictyaml.Decode(name, data, &file, forms()...); err != nil {
		return nil, fmt.Errorf("layouts: %w", err)
	}

	return file.MIGConfigs, nil
}

// layoutFile is a file of layouts. All of them must be valid.
type layoutFile struct {
	Version    string                      `yaml:",omitempty" oneof:"v1" expected:"v1"`
	MIGConfigs map[string][]api.LayoutRule `yaml:"mig-configs,omitempty" range:"0..1024"`
}

// FinishYAML checks the layouts of a file.
func (f *layoutFile) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	// A file, unlike a spec, does not choose one of its layouts: any name will do for the check.
	err := checkDocument(api.Spec{Layout: "any", Version: f.Version, MIGConfigs: f.MIGConfigs})
	if err == nil {
		err = checkLayouts(f.MIGConfigs)
	}

	if err != nil {
		r.FailFound(n, key, err)
	}
}

// readDeviceList reads all, or a list of indexes of GPUs.
func readDeviceList(r *strictyaml.Reader, n *strictyaml.Node, key string, into *api.DeviceList) {
	switch {
	case n.Kind == strictyaml.ScalarNode && n.Value == "all":
		into.All = true
	case n.Kind != strictyaml.SequenceNode:
		r.Expected(n, key, "all or a list of indexes of GPUs")
	default:
		into.Indexes = readList(r, n, key, wholeNumber(maxIndex, "the index of a GPU"))
	}
}

// readFilters reads a PCI device id, or a list of them. As in mig-parted, an empty text excludes no
// GPU.
func readFilters(r *strictyaml.Reader, n *strictyaml.Node, key string, into *api.Strings) {
	*into = api.Strings{}

	switch {
	case n.Kind == strictyaml.SequenceNode:
		*into = readList(r, n, key, readFilter)
	case n.Tag != "!!str" || n.Value != "":
		*into = api.Strings{""}
		readFilter(r, n, key, &(*into)[0])
	}
}

func readFilter(r *strictyaml.Reader, n *strictyaml.Node, key string, into *string) {
	*into = n.Value
	if _, ok := pciDevice(n.Value); !ok || !isText(n) {
		r.Expected(n, key, `a PCI device id such as "0x20B010DE", or a list of them`)
	}
}
