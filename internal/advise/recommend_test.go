package advise

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestKubernetesOfANode: a kubelet that is away for a while is one. A container that sees none, on a host
// that may have none, has no Kubernetes, unless it knows of pods.
func TestKubernetesOfANode(t *testing.T) {
	unseen := fmt.Errorf("%w: this container sees no kubelet", gpu.ErrNotConfigured)
	source := func(name string, err error) gpu.SourceState {
		return gpu.SourceState{Name: name, Up: err == nil, Err: err}
	}

	for about, c := range map[string]struct {
		sources []gpu.SourceState
		holders []gpu.Holder
		want    bool
	}{
		"a kubelet":                               {[]gpu.SourceState{source(gpu.SourceKubelet, nil)}, nil, true},
		"a kubelet that is away":                  {[]gpu.SourceState{source(gpu.SourceKubelet, gpu.ErrUnavailable)}, nil, true},
		"a kubelet without a socket":              {[]gpu.SourceState{source(gpu.SourceKubelet, gpu.ErrNotFound)}, nil, true},
		"none that is configured":                 {[]gpu.SourceState{source(gpu.SourceKubelet, unseen)}, nil, false},
		"none, but its checkpoint":                {[]gpu.SourceState{source(gpu.SourceKubelet, unseen), source(gpu.SourceCheckpoint, nil)}, nil, true},
		"none, but the API server":                {[]gpu.SourceState{source(gpu.SourceKubelet, unseen), source(gpu.SourceKubernetes, gpu.ErrUnavailable)}, nil, true},
		"none, but a pod":                         {[]gpu.SourceState{source(gpu.SourceKubelet, unseen)}, []gpu.Holder{pod("ml", "Deployment/a")}, true},
		"no source, as with --kubernetes.socket=": {nil, nil, false},
	} {
		s := &gpu.Snapshot{Time: start(), Sources: c.sources, GPUs: []gpu.GPU{wholeGPU(t, "H100-80GB", 0, load{}, c.holders...)}}
		cmptest.Equal(t, about, New(DefaultOptions()).Recommend(s).WithoutKubernetes, !c.want)
	}
}

// TestNotesWithoutTheAPIServer: what only the API server knows is missing, and the notes say so.
func TestNotesWithoutTheAPIServer(t *testing.T) {
	s := &gpu.Snapshot{Time: start(), Sources: []gpu.SourceState{{Name: gpu.SourceKubelet, Up: true}}}
	cmptest.HasTexts(t, strings.Join(New(DefaultOptions()).Recommend(s).Notes, "\n"),
		"pods of one owner do not add up", "annotations are not seen", "which pods are one job")

	s.Sources = append(s.Sources, gpu.SourceState{Name: gpu.SourceKubernetes, Up: true})
	cmptest.LacksTexts(t, strings.Join(New(DefaultOptions()).Recommend(s).Notes, "\n"), "API server", "one job")
}
