package spec

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// FleetKind is the kind of a file with layouts for the nodes of a cluster.
const FleetKind = "Fleet"

// Fleet has layouts for the nodes of a cluster.
type Fleet struct {
	APIVersion string       `json:"apiVersion" oneof:"mig-exporter/v1"`
	Kind       string       `json:"kind"       oneof:"Fleet"`
	Entries    []FleetEntry `json:"entries"    range:"1..4096" expected:"a list of nodes, each with its spec"`
}

// FleetEntry is the layout of one node, or of the nodes with some labels.
type FleetEntry struct {
	Node     string   `json:"node,omitempty"     nonzero:"the name of a node"`
	Selector string   `json:"selector,omitempty" nonzero:"labels of nodes, such as pool=h100"`
	Spec     api.Spec `json:"spec"               expected:"a spec such as {layout: all-balanced}"`
}

// FinishYAML checks an entry, as far as that is possible without the nodes.
func (e *FleetEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if (e.Node == "") == (e.Selector == "") {
		r.Fail(n, key, "expected either node or selector")
	}

	if err := check(e.Spec); err != nil {
		inEntry := strictyaml.Join(key, "spec")
		if err.Key != "" {
			inEntry += "." + err.Key
		}

		err.Key = inEntry
		r.FailFound(n, key, err)
	}
}

// Describe returns the name of an entry in messages.
func (e *FleetEntry) Describe(index int) string {
	if e.Node != "" {
		return fmt.Sprintf("entries[%d] (node %s)", index, e.Node)
	}

	return fmt.Sprintf("entries[%d] (selector %s)", index, e.Selector)
}

// SameLayout reports whether two entries have the same spec, word for word.
func (e *FleetEntry) SameLayout(other *FleetEntry) bool {
	a, errA := json.Marshal(e.Spec)
	b, errB := json.Marshal(other.Spec)

	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// DecodeFleet reads a fleet from YAML or JSON, as strictly as Decode. The error joins every
// *strictyaml.Error found.
func DecodeFleet(name string, data []byte) (*Fleet, error) {
	var f Fleet
	if err := strictyaml.Decode(name, data, &f, forms()...); err != nil {
		return nil, err
	}

	return &f, nil
}

// IsFleet reports whether a document has the kind Fleet.
func IsFleet(data []byte) bool {
	root, err := strictyaml.Document("", data)
	if err != nil {
		return false
	}

	kind := strictyaml.Value(root, "kind")

	return kind != nil && kind.Value == FleetKind
}
