package promtest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// level is one of the three things that can be given to a container.
type level struct {
	prefix  string   // of its families
	on      []string // the labels that name a device of this level
	holders string   // the family that says who holds it
}

var podLabels = []string{"namespace", "pod", "container"}

func levels() []level {
	return []level{
		{"nvidia_gpu_", []string{"uuid"}, "nvidia_gpu_pod_info"},
		{"nvidia_mig_gpu_instance_", []string{"uuid", "gpu_instance"}, "nvidia_mig_gpu_instance_pod_info"},
		{"nvidia_mig_compute_instance_", []string{"uuid", "gpu_instance", "compute_instance"},
			"nvidia_mig_compute_instance_pod_info"},
	}
}

// join is the documented way from any series of the level to the container that holds its device.
func (l level) join(family string) string {
	return fmt.Sprintf(`%s * on (%s) group_left (namespace, pod, container) %s{sharing="exclusive",confirmed="true"}`,
		family, strings.Join(l.on, ", "), l.holders)
}

// families are those of the level that say something about a device, not about containers.
func (l level) families(x exposition) []string {
	return slices.DeleteFunc(x.plain(l.prefix, append([]string{"gpu"}, l.on...)), func(name string) bool {
		return strings.HasSuffix(name, "_pod_info") || strings.HasPrefix(name, "nvidia_gpu_container_")
	})
}

// exclusive returns the confirmed exclusive holder of each device of the level that has one. Two of
// one device are an error.
func (l level) exclusive(x exposition) (map[string]series, error) {
	holders := map[string]series{}
	for _, s := range x.of(l.holders, "sharing=exclusive", "confirmed=true") {
		device := s.key(l.on)
		if _, two := holders[device]; two {
			return nil, fmt.Errorf("%s: two exclusive holders of %s", l.holders, device)
		}

		holders[device] = s
	}

	return holders, nil
}

// shown returns the holder that the series of each device of the level name: the confirmed
// exclusive one, or the only one.
func (l level) shown(x exposition) (map[string]series, error) {
	holders, err := l.exclusive(x)
	if err != nil {
		return nil, err
	}

	all := map[string][]series{}
	for _, s := range x.of(l.holders) {
		all[s.key(l.on)] = append(all[s.key(l.on)], s)
	}

	for device, of := range all {
		if len(of) == 1 && of[0].labels["sharing"] == "exclusive" {
			holders[device] = of[0]
		}
	}

	return holders, nil
}

// checkJoins runs the join of every family and returns how many results each level gave.
func checkJoins(e *Prometheus, x exposition) ([]int, error) {
	results := make([]int, len(levels()))
	var errs []error

	for i, l := range levels() {
		holders, err := l.exclusive(x)
		if err != nil {
			errs = append(errs, err)
		}

		for _, family := range l.families(x) {
			want := map[string]float64{}

			for _, s := range x.of(family) {
				if holder, held := holders[s.key(l.on)]; held {
					joined := s.without(podLabels)
					for _, label := range podLabels {
						if v := holder.labels[label]; v != "" {
							joined[label] = v
						}
					}

					want[fmt.Sprint(joined)] = s.value
				}
			}

			results[i] += len(want)
			errs = append(errs, expect(e, l.join(family), want))
		}
	}

	return results, errors.Join(errs...)
}

// expect compares the results of a query, by their labels, with the wanted values.
func expect(e *Prometheus, expr string, want map[string]float64) error {
	v, err := e.Eval(expr)
	if err != nil {
		return err
	}

	var errs []error
	seen := map[string]bool{}

	for _, sample := range v {
		labels := fmt.Sprint(sample.Metric.Map())
		w, ok := want[labels]
		seen[labels] = true

		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: unexpected %s = %v", expr, labels, sample.F))
		case !same(sample.F, w):
			errs = append(errs, fmt.Errorf("%s: %s = %v, want %v", expr, labels, sample.F, w))
		}
	}

	for _, labels := range slices.Sorted(maps.Keys(want)) {
		if !seen[labels] {
			errs = append(errs, fmt.Errorf("%s: %s is missing", expr, labels))
		}
	}

	return errors.Join(errs...)
}

// same allows for the rounding of sums.
func same(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b))
}

// checkOnce: no two series of a family differ in their pod labels alone, GPU-wide facts are not
// repeated per instance, and memory is not repeated per compute instance.
func checkOnce(x exposition) error {
	var errs []error

	for _, l := range levels() {
		for _, family := range l.families(x) {
			seen := map[string]bool{}
			for _, s := range x.of(family) {
				if id := fmt.Sprint(s.without(podLabels)); seen[id] {
					errs = append(errs, fmt.Errorf("%s: %s occurs twice", family, id))
				} else {
					seen[id] = true
				}

				if l.prefix == "nvidia_gpu_" && s.labels["gpu_instance"] != "" {
					errs = append(errs, fmt.Errorf("%s: a fact of the GPU on GPU instance %s", family, s.labels["gpu_instance"]))
				}
			}

			if strings.HasPrefix(family, "nvidia_mig_compute_instance_memory_") {
				errs = append(errs, fmt.Errorf("%s: memory belongs to the GPU instance", family))
			}
		}
	}

	return errors.Join(errs...)
}

// isUse reports whether a family says how a device is used: in mode series it names the holder. No
// other ever does: a pod that comes or goes would end its series.
func isUse(family string) bool {
	for _, suffix := range []string{
		"_memory_used_bytes", "_memory_free_bytes", "_activity_ratio", "_sm_occupancy_ratio", "utilization_ratio",
		"_power_watts", "_power_estimate_watts",
		"_gpu_energy_joules_total", "_energy_estimate_joules_total",
	} {
		if strings.HasSuffix(family, suffix) {
			return true
		}
	}

	return false
}

// checkPodLabels: in mode series the families of use name the holder of an exclusively held device;
// nothing else names any.
func checkPodLabels(x exposition, mode string) error {
	var errs []error

	for _, l := range levels() {
		holders, err := l.shown(x)
		errs = append(errs, err)

		for _, family := range l.families(x) {
			for _, s := range x.of(family) {
				var want series
				if mode == "series" && isUse(family) {
					want = holders[s.key(l.on)]
				}

				if got, want := s.key(podLabels), want.key(podLabels); got != want {
					errs = append(errs, fmt.Errorf("%s{%s}: pod labels %s, want %s", family, s.key(l.on), got, want))
				}
			}
		}
	}

	return errors.Join(errs...)
}

// checkHolders: one pod holds a split GPU instance exactly if it alone holds every compute instance
// of it.
func checkHolders(x exposition) error {
	instance := levels()[1]
	compute := levels()[2]

	have, err := instance.exclusive(x)
	if err != nil {
		return err
	}

	held, err := compute.exclusive(x)
	if err != nil {
		return err
	}

	pods := map[string]map[string]bool{} // by GPU instance; "" for a compute instance without an exclusive holder

	for _, ci := range x.of("nvidia_mig_compute_instance_up") {
		gi := ci.key(instance.on)
		if pods[gi] == nil {
			pods[gi] = map[string]bool{}
		}

		if holder, ok := held[ci.key(compute.on)]; ok {
			pods[gi][holder.key([]string{"namespace", "pod"})] = true
		} else {
			pods[gi][""] = true
		}
	}

	var errs []error

	for _, gi := range slices.Sorted(maps.Keys(pods)) {
		holder, ok := have[gi]
		switch one := len(pods[gi]) == 1 && !pods[gi][""]; {
		case one != ok:
			errs = append(errs, fmt.Errorf("%s: held by one pod: %v, its compute instances say %v", gi, ok, one))
		case ok && !pods[gi][holder.key([]string{"namespace", "pod"})]:
			errs = append(errs, fmt.Errorf("%s: its holder %s holds none of its compute instances", gi, holder.key(podLabels)))
		}
	}

	return errors.Join(errs...)
}

// allEstimates is documented.
const allEstimates = `sum by (uuid) ({__name__=~"nvidia_mig_gpu_instance_power_estimate_watts|nvidia_gpu_power_unallocated_watts"})`

// checkPower: the GPUs' power is counted once each, and a MIG GPU's estimates and its rest add up
// to it.
func checkPower(e *Prometheus, x exposition) error {
	total := 0.0
	parts := map[string]float64{}
	estimates := map[string]float64{}

	for _, family := range []string{"nvidia_mig_gpu_instance_power_estimate_watts", "nvidia_gpu_power_unallocated_watts"} {
		for _, s := range x.of(family) {
			estimates[fmt.Sprint(map[string]string{"uuid": s.labels["uuid"]})] += s.value
		}
	}

	on := map[string]bool{}
	for _, s := range x.of("nvidia_gpu_mig_enabled") {
		on[s.labels["uuid"]] = s.value == 1
	}

	for _, s := range x.of("nvidia_gpu_power_watts") {
		total += s.value
		if on[s.labels["uuid"]] {
			parts[fmt.Sprint(map[string]string{"uuid": s.labels["uuid"]})] = s.value
		}
	}

	return errors.Join(
		expect(e, `sum(nvidia_gpu_power_watts)`, map[string]float64{"map[]": total}),
		expect(e, allEstimates, estimates),
		expect(e, allEstimates+` and on (uuid) nvidia_gpu_mig_enabled == 1`, parts))
}

// checkSlices: used, free and stranded slices add up to the model's, and the used ones are those of
// the instances.
func checkSlices(e *Prometheus, x exposition) error {
	totals := map[string]float64{}
	used := map[string]float64{}

	model := map[string]string{}
	for _, s := range x.of("nvidia_gpu_info") {
		model[s.labels["uuid"]] = s.labels["name"]
	}

	for _, s := range x.of("nvidia_gpu_mig_slices") {
		id := map[string]string{"uuid": s.labels["uuid"], "kind": s.labels["kind"]}
		totals[fmt.Sprint(id)] = slicesOf(model[s.labels["uuid"]], s.labels["kind"])
		used[fmt.Sprint(id)] = 0
	}

	for _, s := range x.of("nvidia_mig_gpu_instance_info") {
		for _, kind := range []string{"compute", "memory"} {
			var n float64
			if _, err := fmt.Sscan(s.labels[kind+"_slices"], &n); err != nil {
				return fmt.Errorf("nvidia_mig_gpu_instance_info: %s_slices %q: %w", kind, s.labels[kind+"_slices"], err)
			}

			used[fmt.Sprint(map[string]string{"uuid": s.labels["uuid"], "kind": kind})] += n
		}
	}

	return errors.Join(
		expect(e, `sum by (uuid, kind) (nvidia_gpu_mig_slices)`, totals),
		expect(e, `sum by (uuid, kind) (nvidia_gpu_mig_slices{state="used"})`, used))
}

// slicesOf is how many slices a model has: NVIDIA's MIG user guide, "Supported MIG profiles".
func slicesOf(model, kind string) float64 {
	switch {
	case strings.Contains(model, "A30"):
		return 4
	case strings.Contains(model, "RTX PRO 6000"):
		return map[string]float64{"compute": 4, "memory": 12}[kind]
	case kind == "compute":
		return 7
	default:
		return 8
	}
}

// roomByProfile is documented.
const roomByProfile = `sum by (mig_profile) (nvidia_gpu_mig_profile_instances_available)`

// checkRoom: what could still be created of each profile is the sum over all GPUs, to which a GPU
// whose MIG mode is off adds nothing.
func checkRoom(e *Prometheus, x exposition) error {
	on := map[string]bool{}
	for _, s := range x.of("nvidia_gpu_mig_enabled") {
		on[s.labels["uuid"]] = s.value == 1
	}

	room := map[string]float64{}

	for _, s := range x.of("nvidia_gpu_mig_profile_instances_available") {
		profile := fmt.Sprint(map[string]string{"mig_profile": s.labels["mig_profile"]})
		if on[s.labels["uuid"]] {
			room[profile] += s.value
		} else {
			room[profile] += 0
		}
	}

	return expect(e, roomByProfile, room)
}

// freeGPUs is documented.
const freeGPUs = `sum by (name) ((nvidia_gpu_allocated == bool 0) * on (uuid) group_left (name) nvidia_gpu_info)`

// checkFree: free GPUs by model come out of nvidia_gpu_allocated, which is 1 if a container holds
// the GPU or a device of it. If that is unknown, as on a node without a kubelet, the family is
// absent.
func checkFree(e *Prometheus, x exposition) error {
	held := map[string]bool{}

	for _, l := range levels() {
		for _, s := range x.of(l.holders) {
			held[s.labels["uuid"]] = true
		}
	}

	free := map[string]float64{}

	for _, s := range x.of("nvidia_gpu_info") {
		model := fmt.Sprint(map[string]string{"name": s.labels["name"]})
		if len(x.of("nvidia_gpu_allocated", "uuid="+s.labels["uuid"])) == 0 {
			continue
		}

		if !held[s.labels["uuid"]] {
			free[model]++
		} else {
			free[model] += 0
		}
	}

	return expect(e, freeGPUs, free)
}
