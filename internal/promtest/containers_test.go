package promtest

import (
	"errors"
	"fmt"
	"strings"
)

// containerFamily is a family by container and what says the same of devices, by level; empty if
// nothing does.
type containerFamily struct {
	name string
	of   [3]string
	adds bool // the parts of a split GPU instance add up to it at most
}

func containerFamilies() []containerFamily {
	var list []containerFamily

	for _, ratio := range []string{"sm_activity_ratio", "tensor_activity_ratio", "dram_activity_ratio"} {
		f := containerFamily{name: "nvidia_gpu_container_" + ratio}
		for i, l := range levels() {
			f.of[i] = l.prefix + ratio
		}

		list = append(list, f)
	}

	return append(list,
		containerFamily{"nvidia_gpu_container_memory_used_bytes",
			[3]string{"nvidia_gpu_memory_used_bytes", "nvidia_mig_gpu_instance_memory_used_bytes"}, true},
		containerFamily{"nvidia_gpu_container_power_estimate_watts",
			[3]string{"nvidia_gpu_power_watts", "nvidia_mig_gpu_instance_power_estimate_watts"}, true})
}

// checkContainers: a container that has a device to itself has what the device does, and none is
// left out; parts of a split GPU instance never add up to more than it; shared devices have memory
// alone.
func checkContainers(x exposition, mode string) error {
	var errs []error

	for _, f := range containerFamilies() {
		seen := map[string]bool{}
		sums := map[string]float64{}

		for _, c := range x.of(f.name) {
			if c.labels["sharing"] != "exclusive" {
				if f.name != "nvidia_gpu_container_memory_used_bytes" {
					errs = append(errs, fmt.Errorf("%s of a shared device: %v", f.name, c.labels))
				}

				continue
			}

			l := levelOf(x, c)

			device := c.key(levels()[l].on)
			if l == 2 && f.adds {
				sums[c.key(levels()[1].on)] += c.value
				continue
			}

			if id := fmt.Sprint(l, device); seen[id] {
				errs = append(errs, fmt.Errorf("%s: two containers have %s", f.name, device))
			} else {
				seen[id] = true
			}

			if want, ok := valueOf(x, f.of[l], levels()[l].on, device); !ok || !same(c.value, want) {
				errs = append(errs, fmt.Errorf("%s of %s is %v, %s is %v", f.name, device, c.value, f.of[l], want))
			}
		}

		for gi, sum := range sums {
			if of, ok := valueOf(x, f.of[1], levels()[1].on, gi); ok && sum > of*(1+1e-9) {
				errs = append(errs, fmt.Errorf("%s: the parts of %s add up to %v, it has %v", f.name, gi, sum, of))
			}
		}

		if mode == "container" || mode == "series" {
			errs = append(errs, f.complete(x, seen))
		} else if len(seen)+len(sums) > 0 {
			errs = append(errs, fmt.Errorf("%s is served", f.name))
		}
	}

	return errors.Join(errs...)
}

// complete reports exclusively held devices that have a value and no container with it.
func (f containerFamily) complete(x exposition, seen map[string]bool) error {
	var errs []error

	for i, l := range levels() {
		holders, err := l.exclusive(x)
		errs = append(errs, err)

		for device, holder := range holders {
			of := levelOf(x, holder)
			_, known := valueOf(x, f.of[i], l.on, device)

			isOnlyPart := i == 1 && hasParts(x, device) // its compute instances are what is held
			if known && !isOnlyPart && of == i && !seen[fmt.Sprint(i, device)] {
				errs = append(errs, fmt.Errorf("%s: no container has %s, which %s holds", f.name, device, holder.key(podLabels)))
			}
		}
	}

	return errors.Join(errs...)
}

// levelOf returns the level of the device that a series is of: a compute instance counts only if
// its GPU instance is split.
func levelOf(x exposition, s series) int {
	switch {
	case s.labels["gpu_instance"] == "":
		return 0
	case s.labels["compute_instance"] != "" && hasParts(x, s.key(levels()[1].on)):
		return 2
	}

	return 1
}

// hasParts reports whether a GPU instance is split.
func hasParts(x exposition, device string) bool {
	for _, ci := range x.of("nvidia_mig_compute_instance_up") {
		if ci.key(levels()[1].on) == device {
			return true
		}
	}

	return false
}

// valueOf returns the value of the series of a device.
func valueOf(x exposition, family string, on []string, device string) (float64, bool) {
	if family == "" || strings.HasPrefix(family, "nvidia_mig_compute_instance_dram") {
		return 0, false
	}

	for _, s := range x.of(family) {
		if s.key(on) == device {
			return s.value, true
		}
	}

	return 0, false
}
