package advise

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Recommend returns what is recommended for the devices of a Snapshot, which is the last one that
// was observed, without the packing.
func (a *Advisor) Recommend(s *gpu.Snapshot) *Report {
	report := &Report{
		APIVersion:     "mig-exporter/v1",
		Time:           s.Time,
		Node:           s.Hostname,
		Strict:         a.options.Strict,
		SingleStrategy: a.options.SingleStrategy,
	}
	held := countGPUs(s)
	var trials [][]trial // by device

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == "" || !g.Up {
			continue
		}

		if g.MIG.Enabled.Or(false) {
			a.addTenants(report, g)

			for k := range g.Instances {
				r := a.computeInstance(s, g, &g.Instances[k])
				report.Devices = append(report.Devices, r)
				trials = append(trials, nil)
			}

			continue
		}

		r, tried := a.computeWhole(s, g, held)
		report.Devices = append(report.Devices, r)
		trials = append(trials, tried)
	}

	if a.options.SingleStrategy {
		unify(report.Devices, trials, s.GPUs, a.options)
	}

	for i := range report.Devices {
		r := &report.Devices[i]
		r.sentence = r.explain(a.options) + r.serverAdvice()
		r.Explanation = r.sentence
	}

	report.WithoutKubernetes = !hasKubernetes(s)
	report.Notes = notes(s)

	return report
}

// hasKubernetes reports whether a node has a kubelet, or anything else that knows of pods.
func hasKubernetes(s *gpu.Snapshot) bool {
	sources := []string{gpu.SourceKubelet, gpu.SourceCheckpoint, gpu.SourceKubernetes}

	if slices.ContainsFunc(s.Sources, func(o gpu.SourceState) bool {
		return slices.Contains(sources, o.Name)
	}) {
		return true
	}

	for d := range s.Devices() {
		if len(d.Holders) > 0 {
			return true
		}
	}

	return false
}

// addTenants adds what the workloads on the GPU instances of a GPU draw.
func (a *Advisor) addTenants(report *Report, g *gpu.GPU) {
	w := a.workloads[tenantsKey(g)]
	if w == nil || w.Power.total() == 0 {
		return
	}

	if report.tenants == nil {
		report.tenants = map[gpu.UUID]draw{}
	}

	report.tenants[g.UUID] = draw{power: w.Power.quantile(0.95), pcie: float64(w.sums(a.now).PCIe)}
}

// podKey names a pod of the node.
type podKey struct {
	namespace, name string
}

// gpuCounts are how many whole GPUs each pod and each batch job holds, and each process without a
// pod works on.
type gpuCounts struct {
	pods      map[podKey]int
	jobs      map[string]int
	processes map[uint32]int
}

func countGPUs(s *gpu.Snapshot) gpuCounts {
	c := gpuCounts{map[podKey]int{}, map[string]int{}, map[uint32]int{}}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		for k := range g.Holders {
			c.pods[podKey{g.Holders[k].Namespace, g.Holders[k].Pod}]++
		}

		for _, job := range g.Jobs {
			c.jobs[job]++
		}

		if len(g.Holders) > 0 {
			continue
		}

		pids := map[uint32]bool{}
		for _, p := range g.Readings.Processes.Or(nil) {
			pids[p.PID] = true
		}

		for pid := range pids {
			c.processes[pid]++
		}
	}

	return c
}

// hasSeveral reports whether a holder of a whole GPU has others, too.
func (c gpuCounts) hasSeveral(g *gpu.GPU) bool {
	if len(g.Holders) > 0 {
		return slices.ContainsFunc(g.Holders, func(h gpu.Holder) bool {
			return c.pods[podKey{h.Namespace, h.Pod}] > 1
		})
	}

	return slices.ContainsFunc(g.Jobs, func(job string) bool { return c.jobs[job] > 1 }) ||
		slices.ContainsFunc(g.Readings.Processes.Or(nil), func(p gpu.Process) bool {
			return c.processes[p.PID] > 1
		})
}

func (a *Advisor) computeWhole(
	s *gpu.Snapshot,
	g *gpu.GPU,
	held gpuCounts,
) (Recommendation, []trial) {
	r := Recommendation{GPU: g.UUID, Index: g.Index, Model: g.Name}

	d := a.devices[gpu.IDOfGPU(g.UUID)]
	if d == nil || d.workload == nil {
		r.setUnheld(s, g.Allocated, g.Readings.Processes.Present())
		return r, nil
	}

	r.Workload = &d.workload.Key
	r.Pod = podOf(g.Holders)
	r.job = a.findJob(s, g, d, held)
	tried := a.recommendWhole(&r, g, d.workload, hintsHere(s, g.Holders))

	return r, tried
}

func (a *Advisor) computeInstance(s *gpu.Snapshot, g *gpu.GPU, i *gpu.GPUInstance) Recommendation {
	r := Recommendation{
		GPU:       g.UUID,
		Index:     g.Index,
		Model:     g.Name,
		Instance:  gpu.Some(i.ID),
		Placement: i.Placement,
		Profile:   i.Profile,
	}
	if len(i.ComputeInstances) == 1 {
		r.MIGDevice = i.ComputeInstances[0].UUID
	}

	d := a.devices[gpu.IDOfInstance(g.UUID, i)]
	if d == nil || d.workload == nil {
		r.setUnheld(s, i.Allocated, i.Processes.Present())
		return r
	}

	holders := holdersOf(i)
	r.job = findJobOfInstance(holders)
	r.Workload = &d.workload.Key
	r.Pod = podOf(holders)
	a.recommendInstance(&r, g, i, d, hintsHere(s, holders))

	return r
}

// setUnheld fills in the answer for a device without a holder. It is free if that is known: by the
// kubelet, or on a node without one by its processes.
func (r *Recommendation) setUnheld(s *gpu.Snapshot, allocated gpu.Opt[bool], processesKnown bool) {
	r.Action = ActionFree
	if allocated.Or(s.HoldersIncomplete != "" || !processesKnown) {
		r.Action = ActionKeep
		r.Reason = ReasonHoldersUnknown
	}
}

// podOf returns the only holder of a device.
func podOf(holders []gpu.Holder) *Pod {
	if len(holders) != 1 {
		return nil
	}

	h := &holders[0]

	return &Pod{Namespace: h.Namespace, Name: h.Pod, Container: h.Name, Resource: h.Resource}
}

func hintsOf(holders []gpu.Holder) gpu.RightsizingHints {
	if len(holders) == 0 {
		return gpu.RightsizingHints{}
	}

	return holders[0].Rightsizing
}

// unify makes the recommendations of a node one that the device plugin's single strategy can carry
// out: one profile that does for every pod and is no smaller than what is recommended for any of
// them, or none. If one of them is provisional, all are.
func unify(devices []Recommendation, trials [][]trial, gpus []gpu.GPU, o Options) {
	held := 0
	fits := map[string]int{} // devices that each profile does for

	for i, tried := range trials {
		if devices[i].Action == ActionFree || devices[i].Instance.Present() {
			continue
		}

		held++

		for k := range tried {
			r := &devices[i]
			t := &tried[k]
			profiles := profilesOf(gpus, r.GPU)

			if r.Action == ActionSlice && t.reason == ReasonNone && !t.notChecked &&
				sizeOf(t.profile.Name, profiles) >= sizeOf(r.Recommended, profiles) {
				fits[tried[k].profile.Name]++
			}
		}
	}

	one := ""

	for _, tried := range trials { // each has the smallest profile first
		at := slices.IndexFunc(tried, func(t trial) bool { return fits[t.profile.Name] == held })
		if at >= 0 {
			one = tried[at].profile.Name
			break
		}
	}

	provisional := slices.ContainsFunc(devices, func(r Recommendation) bool {
		return r.Action == ActionSlice && r.Provisional
	})
	for i, tried := range trials {
		r := &devices[i]
		if r.Action != ActionSlice {
			continue
		}

		at := slices.IndexFunc(tried, func(t trial) bool { return t.profile.Name == one })
		if at < 0 {
			r.Action = ActionKeep
			r.Reason = ReasonSingleStrategy
			r.Recommended = ""
			r.Predicted = nil
			r.Reclaimable = 0
			r.NotChecked = false
			continue
		}

		r.Recommended = one
		r.Provisional = provisional
		r.predict(&tried[at], o)
	}
}

func profilesOf(gpus []gpu.GPU, id gpu.UUID) []gpu.Profile {
	return gpus[slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == id })].Profiles
}

// notes say what the report could not take into account.
func notes(s *gpu.Snapshot) []string {
	list := []string{
		"not seen: the share of the L2 cache, clocks, wave quantization, CUDA IPC between processes of a pod",
	}

	kubernetes := false
	described := false

	for _, source := range s.Sources {
		isKubelet := source.Name == gpu.SourceKubelet && !errors.Is(source.Err, gpu.ErrNotConfigured)
		kubernetes = kubernetes || isKubelet
		described = described || source.Name == gpu.SourceKubernetes && source.Up
	}

	if kubernetes && !described {
		list = append(
			list,
			"the API server is not asked: pods of one owner do not add up, and annotations are not seen",
		)
	}

	list = append(
		list,
		fmt.Sprintf(
			"nothing rarer than %d days is known: what comes once a month was not seen, or is "+
				"forgotten. migctl fleet --window=30d looks further back, as far as Prometheus keeps it",
			keptDays,
		),
	)
	if s.HoldersIncomplete != "" {
		list = append(list, "devices without a holder may be held: "+s.HoldersIncomplete)
	}

	return list
}
