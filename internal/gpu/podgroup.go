package gpu

// PodGroup is the job that a pod is part of, by its labels and annotations. The zero value: they
// name none.
type PodGroup struct {
	Name  string // "jobset/train"
	Label string // that names it, "jobset.sigs.k8s.io/jobset-name=train"
	// Size is how many pods the job has, or more: 1 if this is its only one, 0 if they say nothing
	// of it.
	Size int
}

// MayHaveOthers reports whether the job has other pods, or we do not know that it has none.
func (g *PodGroup) MayHaveOthers() bool { return g.Name != "" && g.Size != 1 }
