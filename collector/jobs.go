package collector

func newJobs(c *catalog) collectFunc {
	const several = "A device that several jobs share has one series for each."
	board := c.family("nvidia_gpu_hpc_job_info", "A batch job that the scheduler gave the whole GPU, with the value 1.",
		"Jobs of its instances are told there. "+several, "hpc_job")
	instance := c.family("nvidia_mig_gpu_instance_hpc_job_info",
		"A batch job that the scheduler gave the GPU instance, with the value 1.",
		"With all its compute instances. "+several, "hpc_job")
	pods := c.pods
	return func(k *sink, v *view) {
		for i := range v.gpus {
			pods.jobInfo(k, board, v.gpus[i].labels, v.gpus[i].Jobs)
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) { pods.jobInfo(k, instance, gi.labels, gi.Jobs) })
	}
}

func (p podLabels) jobInfo(k *sink, f *family, device labels, jobs []string) {
	if !p.jobs || p.mode == PodLabelsOff {
		return
	}
	for _, job := range jobs {
		k.add(f, device.extend("hpc_job", job), 1)
	}
}
