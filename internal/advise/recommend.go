package advise

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Recommend returns what is recommended for the devices of the last Snapshot that was observed. Report.Pack
// adds the packing.
func (a *Advisor) Recommend(s *gpu.Snapshot) *Report {
	report := &Report{
		APIVersion:     "mig-exporter/v1",
		Time:           s.Time,
		Node:           s.Hostname,
		Strict:         a.options.Strict,
		SingleStrategy: a.options.SingleStrategy,
		Devices:        []Recommendation{}, // JSON has [] and not null
	}
	held := countGPUs(s)
	var trials [][]trial // by device; nil for GPU instances, which the single strategy does not change

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !canJudge(g) {
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
	report.NotJudged = notJudged(s)
	report.GPUsUnknown = s.WhyUnknown()
	report.Notes = report.notes(s)

	return report
}

// hasKubernetes reports whether a node has a kubelet, also one that does not answer now, or anything else
// that knows of pods. A container that sees no kubelet lists it as a source that is not configured: the
// host may have none.
func hasKubernetes(s *gpu.Snapshot) bool {
	names := []string{gpu.SourceKubelet, gpu.SourceCheckpoint, gpu.SourceKubernetes}

	for i := range s.Sources {
		source := &s.Sources[i]
		if slices.Contains(names, source.Name) && !errors.Is(source.Err, gpu.ErrNotConfigured) {
			return true
		}
	}

	for d := range s.Devices() {
		if len(d.Holders) > 0 {
			return true
		}
	}

	return false
}

// addTenants adds the power and the traffic that the workloads on the GPU instances of a GPU draw.
func (a *Advisor) addTenants(report *Report, g *gpu.GPU) {
	w := a.workloads[tenantsKey(g)]
	if w == nil || w.Power.total() == 0 && !w.isPCIeUnread() && w.sums(a.now).PCIe == 0 {
		return
	}

	if report.tenants == nil {
		report.tenants = map[gpu.UUID]draw{}
	}

	of := newDraw(w.Power.quantile(0.95), float64(w.sums(a.now).PCIe), w.isPCIeUnread())
	of.powered = w.Power.total() > 0
	report.tenants[g.UUID] = of
}

// podKey names a pod of the node.
type podKey struct {
	namespace, name string
}

// gpuCounts is the number of whole GPUs that each pod and each batch job holds, and that each process
// without a pod uses.
type gpuCounts struct {
	pods      map[podKey]int
	jobs      map[string]int
	processes map[uint32]int
}

// countGPUs counts the whole GPUs of a Snapshot by what holds them.
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

		pids := map[uint32]bool{} // a process can be in the list twice: for compute and for graphics
		for _, p := range g.Readings.Processes.Or(nil) {
			pids[p.PID] = true
		}

		for pid := range pids {
			c.processes[pid]++
		}
	}

	return c
}

// hasSeveral reports whether a holder of a whole GPU holds another one, too.
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

// computeWhole returns the recommendation for a whole GPU, and the trials that it comes from.
func (a *Advisor) computeWhole(
	s *gpu.Snapshot,
	g *gpu.GPU,
	held gpuCounts,
) (Recommendation, []trial) {
	r := Recommendation{GPU: g.UUID, Index: g.Index, Model: g.Name}

	d := a.devices[gpu.IDOfGPU(g.UUID)]
	if d == nil || d.workload == nil {
		r.setUnheld(s, g.Allocated, g.Readings.Processes.Present(), g.JobsUnknown)
		return r, nil
	}

	r.Workload = &d.workload.Key
	r.Pod = podOf(g.Holders)
	r.job = a.findJob(s, g, d, held)
	tried := a.recommendWhole(&r, g, d.workload, hintsHere(s, g.Holders))

	return r, tried
}

// computeInstance returns the recommendation for a GPU instance.
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
		r.setUnheld(s, i.Allocated, i.Processes.Present(), i.JobsUnknown)
		return r
	}

	holders := holdersOf(i)
	r.job = findJobOfInstance(holders)
	r.Workload = &d.workload.Key
	r.Pod = podOf(holders)
	a.recommendInstance(&r, g, i, d, hintsHere(s, holders))

	return r
}

// setUnheld fills in the recommendation for a device without a known holder. It is free if the kubelet
// says so or, without a kubelet, if we know that no process uses it, and if no batch job can have it.
func (r *Recommendation) setUnheld(
	s *gpu.Snapshot,
	allocated gpu.Opt[bool],
	processesKnown, jobsUnknown bool,
) {
	isAllocated, allocationKnown := allocated.Get()

	switch {
	case isAllocated:
		r.unheld = "it is not known what holds the device"
	case !allocationKnown && s.HoldersIncomplete != "":
		r.unheld = "it is not known whether a pod holds the device"
	case jobsUnknown:
		r.unheld = "it is not known whether a batch job has the device"
	case !allocationKnown && !processesKnown:
		r.unheld = "it is not known whether a process runs on the device"
	}

	r.Action = ActionFree
	if r.unheld != "" {
		r.keep(ReasonHoldersUnknown)
	}
}

// podOf returns the only holder of a device; nil if there is none, or several.
func podOf(holders []gpu.Holder) *Pod {
	if len(holders) != 1 {
		return nil
	}

	h := &holders[0]

	return &Pod{Namespace: h.Namespace, Name: h.Pod, Container: h.Name, Resource: h.Resource}
}

// hintsOf returns the hints of a device's pod: of the first one if there are several.
func hintsOf(holders []gpu.Holder) gpu.RightsizingHints {
	if len(holders) == 0 {
		return gpu.RightsizingHints{}
	}

	return holders[0].Rightsizing
}

// unify makes the recommendations of a node one that the device plugin's single strategy can carry out:
// one profile for every pod, or none. The profile must be large enough for each pod, and no smaller
// than what is recommended for it. If the recommendation of one pod is provisional, all are.
func unify(devices []Recommendation, trials [][]trial, gpus []gpu.GPU, o Options) {
	one := commonProfile(devices, trials, gpus)
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
			r.withdraw(ReasonSingleStrategy)
			r.NotChecked = false
			continue
		}

		r.Recommended = one
		r.Provisional = provisional
		r.predict(&tried[at], o)
	}
}

// commonProfile returns the smallest profile that every whole GPU with a holder can be replaced by; "" if
// there is none.
func commonProfile(devices []Recommendation, trials [][]trial, gpus []gpu.GPU) string {
	held := 0
	fits := map[string]int{} // the number of whole GPUs that each profile can replace

	for i, tried := range trials {
		r := &devices[i]
		if r.Action == ActionFree || r.Instance.Present() {
			continue
		}

		held++

		if r.Action != ActionSlice {
			continue
		}

		profiles := profilesOf(gpus, r.GPU)
		least := sizeRank(r.Recommended, profiles)

		for k := range tried {
			t := &tried[k]
			if t.reason == ReasonNone && !t.notChecked && sizeRank(t.profile.Name, profiles) >= least {
				fits[t.profile.Name]++
			}
		}
	}

	// The trials of each device begin with the smallest profile.
	for _, tried := range trials {
		for k := range tried {
			if name := tried[k].profile.Name; fits[name] == held {
				return name
			}
		}
	}

	return ""
}

// withdraw changes a recommended slice to keeping the whole GPU, for a reason.
func (r *Recommendation) withdraw(reason Reason) {
	r.keep(reason)
	r.Recommended = ""
	r.Predicted = nil
	r.Reclaimable = 0
}

// profilesOf returns the profiles of a GPU that is in the list.
func profilesOf(gpus []gpu.GPU, id gpu.UUID) []gpu.Profile {
	return gpus[slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == id })].Profiles
}

// notes say what the report could not take into account.
func (r *Report) notes(s *gpu.Snapshot) []string {
	var list []string
	if r.GPUsUnknown != "" {
		list = append(list, gpu.DescribeUnknownGPUs(r.GPUsUnknown))
	}

	for i := range r.NotJudged {
		list = append(list, r.NotJudged[i].String())
	}

	list = append(
		list,
		"not seen: the share of the L2 cache, clocks, wave quantization, CUDA IPC between processes",
	)

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
			"the API server is not asked: pods of one owner do not add up, and annotations are not seen, nor "+
				"which pods are one job: those that exchange data over sockets could be packed on one GPU",
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

	for _, source := range s.Sources {
		if source.Name == gpu.SourceJobs && source.Err != nil {
			list = append(list, "devices without a pod may have a batch job: "+source.Err.Error())
		}
	}

	return list
}
