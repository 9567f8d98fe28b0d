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
	Freed   int            // how many of the node's GPUs its slices need no more
}

// Layouts returns the final slices as layouts, by node; LeftOut says which others are recommended. It
// packs the slices of a node onto as few of the node's GPUs as they need; its other GPUs stay whole.
// It leaves out the nodes whose layouts one spec cannot say, or of which a profile is unknown, with a
// sentence on each. It returns an error if there is no layout, a node is unknown, or the slices are of
// several clusters.
func (r *Report) Layouts() (layouts []NodeLayout, leftOut []string, err error) {
	nodes := map[string][]*GPU{}
	clusters := map[string]bool{}

	for i := range r.GPUs {
		g := &r.GPUs[i]
		if !g.isFinal() {
			continue
		}

		if g.Node == "" {
			return nil, nil, fmt.Errorf("the history does not name the node of %s", g.UUID)
		}

		nodes[g.Node] = append(nodes[g.Node], g)
		clusters[g.Cluster] = true
	}

	if len(nodes) == 0 {
		if left := r.LeftOut(); left != "" {
			return nil, nil, errors.New("no slice is final yet: " + left)
		}

		return nil, nil, errors.New("no slices are recommended")
	}

	if len(clusters) > 1 {
		return nil, nil, fmt.Errorf("the layouts are of %d clusters; choose one with --match", len(clusters))
	}

	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		l, err := layoutOf(node, nodes[node])
		if err != nil {
			leftOut = append(leftOut, err.Error())
			continue
		}

		layouts = append(layouts, l)
	}

	if len(layouts) == 0 {
		return nil, nil, errors.New(strings.Join(leftOut, "; "))
	}

	return layouts, leftOut, nil
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

// layoutOf packs the slices of one node. All of its GPUs get the layout of the one that needs most: the last
// one may have slices to spare.
func layoutOf(node string, gpus []*GPU) (NodeLayout, error) {
	l := NodeLayout{Node: node}
	profiles := gpus[0].model.Profiles

	var wanted []string

	for _, g := range gpus {
		if g.Profile == "" {
			return l, fmt.Errorf("node %s: the profile that %s should become is not known", node, g.UUID)
		}

		if g.model.Name != gpus[0].model.Name {
			return l, fmt.Errorf("node %s has GPUs of several models, for which one spec cannot say layouts: "+
				"migctl recommend -o spec writes those of a node", node)
		}

		wanted = append(wanted, g.Profile)
	}

	packed := pack(profiles, wanted)
	if len(packed) == 0 {
		return l, fmt.Errorf("node %s: %s has no profile %s", node, gpus[0].Model, wanted[0])
	}

	var all []map[string]int

	for i, p := range packed {
		devices := map[string]int{}
		for _, at := range p.profiles {
			devices[profiles[at].Name]++
		}

		l.GPUs = append(l.GPUs, gpus[i].UUID)
		all = append(all, devices)
	}

	l.Freed = len(gpus) - len(packed)

	doesForAll := func(devices map[string]int) bool {
		return !slices.ContainsFunc(all, func(other map[string]int) bool { return !hasAll(devices, other) })
	}

	at := slices.IndexFunc(all, doesForAll)
	if at < 0 {
		return l, fmt.Errorf("the GPUs of node %s would get different layouts, which one spec cannot say by "+
			"UUIDs: migctl recommend -o spec writes those of a node", node)
	}

	l.Devices = all[at]

	return l, nil
}

// hasAll reports whether a layout has all instances of another one.
func hasAll(devices, other map[string]int) bool {
	for profile, n := range other {
		if devices[profile] < n {
			return false
		}
	}

	return true
}
