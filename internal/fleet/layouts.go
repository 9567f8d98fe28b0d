package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// NodeLayout is the layout that some GPUs of a node should get. All of them get the same instances.
type NodeLayout struct {
	Node    string
	GPUs    []string       // UUIDs
	Devices map[string]int // numbers of instances by profile
}

// Layouts returns the final slices as layouts, by node; LeftOut says which others are recommended. It
// packs the slices of a node onto as few of the node's GPUs as they need; its other GPUs stay whole.
// It returns an error if a node or a profile is unknown, or if the slices are of several clusters.
func (r *Report) Layouts() ([]NodeLayout, error) {
	nodes := map[string][]*GPU{}
	clusters := map[string]bool{}

	for i := range r.GPUs {
		g := &r.GPUs[i]
		if !g.isFinal() {
			continue
		}

		if g.Node == "" {
			return nil, fmt.Errorf("the history does not name the node of %s", g.UUID)
		}

		if g.Profile == "" {
			return nil, fmt.Errorf("node %s: the profile that %s should become is not known", g.Node, g.UUID)
		}

		nodes[g.Node] = append(nodes[g.Node], g)
		clusters[g.Cluster] = true
	}

	if len(nodes) == 0 {
		if left := r.LeftOut(); left != "" {
			return nil, errors.New("no slice is final yet: " + left)
		}

		return nil, errors.New("no slices are recommended")
	}

	if len(clusters) > 1 {
		return nil, fmt.Errorf("the layouts are of %d clusters; choose one with --match", len(clusters))
	}

	var layouts []NodeLayout

	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		l, err := layoutOf(node, nodes[node])
		if err != nil {
			return nil, err
		}

		layouts = append(layouts, l)
	}

	return layouts, nil
}

// LeftOut counts the recommended slices that are not final, with why they are not. It is empty if all
// are.
func (r *Report) LeftOut() string {
	counts := map[advise.Reason]int{}

	for i := range r.GPUs {
		if g := &r.GPUs[i]; g.Action == advise.ActionSlice {
			counts[g.whyNotFinal()]++
		}
	}

	var list []string

	if n := counts[advise.ReasonProvisional]; n > 0 {
		list = append(list, fmt.Sprintf("%d provisional, by evidence that is not complete yet", n))
	}

	if n := counts[advise.ReasonMediaNotChecked]; n > 0 {
		list = append(list, fmt.Sprintf("%d with fewer media engines than the GPU, whose use is unknown", n))
	}

	return strings.Join(list, ", ")
}

// layoutOf packs the slices of one node.
func layoutOf(node string, gpus []*GPU) (NodeLayout, error) {
	l := NodeLayout{Node: node}
	profiles := gpus[0].model.Profiles

	var wanted []string

	for _, g := range gpus {
		if g.model.Name != gpus[0].model.Name {
			return l, fmt.Errorf("node %s has GPUs of several models, for which one spec cannot say layouts: "+
				"migctl recommend -o spec writes those of a node", node)
		}

		wanted = append(wanted, g.Profile)
	}

	for i, p := range pack(profiles, wanted) {
		devices := map[string]int{}
		for _, at := range p.profiles {
			devices[profiles[at].Name]++
		}

		if l.Devices != nil && !maps.Equal(l.Devices, devices) {
			return l, fmt.Errorf("the GPUs of node %s would get different layouts, which one spec cannot say by "+
				"UUIDs: migctl recommend -o spec writes those of a node", node)
		}

		l.GPUs = append(l.GPUs, gpus[i].UUID)
		l.Devices = devices
	}

	if len(l.GPUs) == 0 {
		return l, fmt.Errorf("node %s: %s has no profile %s", node, gpus[0].Model, wanted[0])
	}

	return l, nil
}
