package gpu

// JobDevice names what a batch scheduler assigns to jobs: a GPU by its index, or a GPU instance of
// it. A scheduler knows neither UUIDs nor generations: Jobs are those of what has the name now.
type JobDevice struct {
	Index    int
	Instance Opt[InstanceID]
}

// Jobs are the batch jobs on each device. They must not be modified once returned.
type Jobs map[JobDevice][]string
