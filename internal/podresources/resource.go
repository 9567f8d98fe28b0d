package podresources

import (
	"slices"
	"strings"
)

// resourceNames tells the resources that are NVIDIA devices from others, such as network cards.
type resourceNames struct {
	exact    []string
	prefixes []string
}

// newResourceNames returns a matcher for the resources that NVIDIA's and GKE's device plugins and
// HAMi offer by default, with and without the suffix .shared of replicas, and for the configured
// names: exact, or a prefix that ends in "*".
func newResourceNames(configured []string) resourceNames {
	r := resourceNames{
		exact:    []string{"nvidia.com/gpu", "nvidia.com/gpu.shared"},
		prefixes: []string{"nvidia.com/mig-"},
	}

	for _, name := range configured {
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			r.prefixes = append(r.prefixes, prefix)
		} else {
			r.exact = append(r.exact, name)
		}
	}

	return r
}

func (r resourceNames) matches(name string) bool {
	return slices.Contains(r.exact, name) ||
		slices.ContainsFunc(
			r.prefixes,
			func(prefix string) bool { return strings.HasPrefix(name, prefix) },
		)
}
