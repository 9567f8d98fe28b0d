package gpu

// JobDevice names what a batch scheduler gives to jobs: a GPU by its index, or a GPU instance of it.
type JobDevice struct {
	Index    int
	Instance Opt[InstanceID]
}

// Jobs are the batch jobs on each device. They are immutable once handed out.
type Jobs map[JobDevice][]string
