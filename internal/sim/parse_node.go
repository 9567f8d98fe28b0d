package sim

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// node reads the node section; every key has a default.
func (p *parser) node(top object) NodeSpec {
	spec := NodeSpec{
		Hostname: "gpu-node", Driver: "580.95.05", CUDA: "13.0", Kubernetes: true, Privileged: true,
		Allocator: AllocatorDevicePlugin, GIIDs: GIIDByPlacement,
	}
	n := top.fields["node"]
	if n == nil {
		return spec
	}
	o := p.object(n, "node", "hostname", "driver", "cuda", "kubernetes", "privileged", "allocator", "strategy", "migUUIDs", "giIDs", "passThrough")
	spec.Hostname = o.text("hostname", spec.Hostname)
	spec.Driver = o.text("driver", spec.Driver)
	if _, ok := driverMajor(spec.Driver); !ok {
		p.fail(o.at("driver"), "node.driver", "is %q; expected a driver version such as \"580.95.05\"", spec.Driver)
	}
	spec.CUDA = o.text("cuda", spec.CUDA)
	if _, ok := cudaVersion(spec.CUDA); !ok {
		p.fail(o.at("cuda"), "node.cuda", "is %q; expected a CUDA version such as \"13.0\"", spec.CUDA)
	}
	spec.Kubernetes = o.boolean("kubernetes", spec.Kubernetes)
	spec.Privileged = o.boolean("privileged", spec.Privileged)
	spec.Allocator = Allocator(o.choice("allocator", string(spec.Allocator),
		string(AllocatorDevicePlugin), string(AllocatorGKE), string(AllocatorHAMi), string(AllocatorDRA)))
	spec.SingleStrategy = o.choice("strategy", "mixed", "mixed", "single") == "single"
	spec.LegacyMIGUUIDs = o.choice("migUUIDs", "uuid", "uuid", "legacy") == "legacy"
	spec.PassThrough = o.boolean("passThrough", false)
	spec.GIIDs = GIIDOrder(o.choice("giIDs", string(spec.GIIDs), string(GIIDByPlacement), string(GIIDByCreation)))
	return spec
}

// driverMajor is the branch of a driver version: 580 of "580.95.05".
func driverMajor(version string) (int, bool) {
	major, _, ok := strings.Cut(version, ".")
	n, isNumber := gpu.ParseDecimal(major)
	return int(n), ok && isNumber
}

// cudaVersion is NVML's form of a CUDA version: 13000 of "13.0".
func cudaVersion(version string) (int, bool) {
	major, minor, ok := strings.Cut(version, ".")
	a, aOK := gpu.ParseDecimal(major)
	b, bOK := gpu.ParseDecimal(minor)
	return int(a)*1000 + int(b)*10, ok && aOK && bOK && a < 1000 && b < 100
}

// maxGPUs bounds a node; it leaves room for far more devices than any node has.
const maxGPUs = 4096

// maxFans bounds the fans of a GPU.
const maxFans = 8

// gpus reads the list of GPUs, one GPUSpec for each GPU.
func (p *parser) gpus(top object, s *Scenario) {
	for _, item := range top.list("gpus") {
		o := p.object(item.node, item.key, "model", "count", "minor", "fans", "mig", "layout", "sharing")
		spec := GPUSpec{Model: o.required("model")}
		count := o.integer("count", 1, 1, maxGPUs)
		board, ok := p.model(spec.Model)
		if !ok {
			if spec.Model != "" {
				p.fail(o.at("model"), o.sub("model"), "is %q, which cannot be simulated; expected one of %s", spec.Model, modelKeys())
			}
			continue
		}
		spec.board = board
		if o.has("minor") {
			spec.Minor = gpu.Some(int(o.integer("minor", 0, 0, 1<<16)))
			if count > 1 {
				p.fail(o.at("minor"), o.sub("minor"), "is given for %d GPUs; expected one GPU in an entry with a minor number", count)
			}
		}
		spec.Fans = int(o.integer("fans", 0, 0, maxFans))
		spec.MIG = o.migMode()
		if n := o.fields["layout"]; n != nil {
			if spec.MIG != MIGOn {
				p.fail(n, o.sub("layout"), "is given without mig: true")
			}
			spec.Layout = p.layout(n, o.sub("layout"), board)
		}
		spec.Sharing = p.sharing(o)
		if len(s.GPUs)+int(count) > maxGPUs {
			p.fail(item.node, item.key, "makes more than %d GPUs", maxGPUs)
			return
		}
		for range count {
			s.GPUs = append(s.GPUs, spec)
		}
	}
}

// model finds a model and keeps it for the next GPU of its kind: the table of models is large.
func (p *parser) model(name string) (gpuModel, bool) {
	if b, ok := p.models[name]; ok {
		return b, true
	}
	b, ok := findModel(name)
	if ok {
		p.models[name] = b
	}
	return b, ok
}

// migMode reads "mig: true | false | pending".
func (o object) migMode() MIGModeSpec {
	n := o.fields["mig"]
	if n != nil && n.Kind == yaml.ScalarNode && n.Value == "pending" {
		return MIGPending
	}
	if n != nil && (n.Kind != yaml.ScalarNode || n.Tag != "!!bool") {
		o.p.fail(n, o.sub("mig"), "is %s; expected true, false or pending", kindOf(n))
		return MIGOff
	}
	if o.boolean("mig", false) {
		return MIGOn
	}
	return MIGOff
}

// sharing reads "{kind: mps, replicas: 4, rename: true}".
func (p *parser) sharing(parent object) SharingSpec {
	n := parent.fields["sharing"]
	if n == nil {
		return SharingSpec{}
	}
	o := p.object(n, parent.sub("sharing"), "kind", "replicas", "rename")
	if o.fields == nil {
		return SharingSpec{}
	}
	return SharingSpec{
		Kind:     gpu.Sharing(o.choice("kind", "", string(gpu.SharingTimeSlicing), string(gpu.SharingMPS))),
		Replicas: int(o.integer("replicas", 2, 2, maxReplicas)),
		Rename:   o.boolean("rename", false),
	}
}

// layout reads GPU instances: "3g.20gb@4", or {gi: "3g.20gb@0", ci: ["1c", "2c"]} where its compute instances are not
// the one that takes it whole.
func (p *parser) layout(n *yaml.Node, key string, board gpuModel) []LayoutSpec {
	var layout []LayoutSpec
	model := board.mig
	for _, item := range p.list(n, key) {
		text, computes := item.node, []element(nil)
		whole := true
		if item.node.Kind == yaml.MappingNode {
			o := p.object(item.node, item.key, "gi", "ci")
			if !o.has("gi") {
				p.fail(item.node, o.sub("gi"), "is missing; expected a GPU instance such as 3g.20gb@4")
				continue
			}
			text, whole = o.fields["gi"], !o.has("ci")
			computes = o.list("ci")
		}
		spec, ok := p.instance(text, item.key, model.Profiles)
		if !ok {
			continue
		}
		if whole {
			spec.computes = []int{spec.profile.ComputeSlices}
		}
		for _, c := range computes {
			spec.computes = append(spec.computes, p.computeSlices(c, spec))
		}
		if used := sum(spec.computes); used > spec.profile.ComputeSlices {
			p.fail(item.node, item.key, "its compute instances take %d slices of %d", used, spec.profile.ComputeSlices)
			continue
		}
		if problem := fits(model.ComputeSlices, layout, spec); problem != "" {
			p.fail(item.node, item.key, "%s", problem)
			continue
		}
		layout = append(layout, spec)
	}
	return layout
}

// instance reads "profile@start".
func (p *parser) instance(n *yaml.Node, key string, profiles []gpu.Profile) (LayoutSpec, bool) {
	text, ok := p.text(n, key)
	if !ok {
		return LayoutSpec{}, false
	}
	name, start, _ := strings.Cut(text, "@")
	at, isNumber := gpu.ParseDecimal(start)
	i := slices.IndexFunc(profiles, func(f gpu.Profile) bool { return f.Name == name })
	if i < 0 {
		p.fail(n, key, "is %q; expected one of the model's profiles (%s) and where it starts, such as %s@0",
			text, profileNames(profiles), profiles[0].Name)
		return LayoutSpec{}, false
	}
	for _, placement := range profiles[i].Placements {
		if isNumber && placement.Start == int(at) {
			return LayoutSpec{profile: profiles[i], placement: placement}, true
		}
	}
	p.fail(n, key, "is %q; expected %s at one of its placements, %s", text, name, starts(profiles[i]))
	return LayoutSpec{}, false
}

// computeSlices reads "2c".
func (p *parser) computeSlices(e element, gi LayoutSpec) int {
	text, ok := p.text(e.node, e.key)
	if !ok {
		return 0
	}
	digits, isC := strings.CutSuffix(text, "c")
	n, isNumber := gpu.ParseDecimal(digits)
	if !isC || !isNumber || !slices.Contains(computeSizes(gi.profile.ComputeSlices), int(n)) {
		p.fail(e.node, e.key, "is %q; expected a compute instance of %s such as 1c or %dc", text, gi.profile.Name, gi.profile.ComputeSlices)
		return 0
	}
	return int(n)
}

// fits tells what stands against one more instance on an empty GPU with the given ones; empty where nothing does.
func fits(computeSlices int, have []LayoutSpec, add LayoutSpec) string {
	used := add.profile.ComputeSlices
	for _, h := range have {
		if h.placement.Overlaps(add.placement) {
			return add.profile.Name + "@" + add.placement.String() + " overlaps " + h.profile.Name + "@" + h.placement.String()
		}
		if hasMediaExtensions(h.profile) && hasMediaExtensions(add.profile) {
			return "a second profile with media extensions (+me); a GPU has one"
		}
		used += h.profile.ComputeSlices
	}
	if used > computeSlices {
		return "the layout takes more compute slices than the GPU has"
	}
	return ""
}

func sum(list []int) int {
	total := 0
	for _, v := range list {
		total += v
	}
	return total
}

func profileNames(profiles []gpu.Profile) string {
	var names []string
	for _, f := range profiles {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// starts lists the placements of a profile as an author writes them.
func starts(f gpu.Profile) string {
	placements := slices.SortedFunc(slices.Values(f.Placements), func(a, b gpu.Placement) int { return cmp.Compare(a.Start, b.Start) })
	var list []string
	for _, p := range placements {
		list = append(list, "@"+strings.SplitN(p.String(), ":", 2)[0])
	}
	return strings.Join(list, " ")
}
