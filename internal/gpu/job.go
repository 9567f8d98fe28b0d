package gpu

// JobDevice names a device as a batch scheduler does: a GPU by its index, or a GPU instance of it.
// A scheduler knows neither UUIDs nor generations, so the name stands for the device that has it
// now.
type JobDevice struct {
	Index    int
	Instance Opt[InstanceID]
}

// Jobs are the batch jobs on each device, none if the list is empty. The jobs of a device without an entry
// are not known. They must not be modified once returned.
type Jobs map[JobDevice][]string
