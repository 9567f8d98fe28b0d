package collector

func newJobs(c *catalog) collectFunc {
	const several = "A device that several jobs share has one series for each."
	gpuFamily := c.newFamily("nvidia_gpu_hpc_job_info",
		"A batch job that the scheduler gave the whole GPU, with the value 1.",
		"Jobs of its instances are in the series of the instances. "+several, "hpc_job")
	instance := c.newFamily("nvidia_mig_gpu_instance_hpc_job_info",
		"A batch job that the scheduler gave the GPU instance, with the value 1.",
		"With all its compute instances. "+several, "hpc_job")
	pods := c.pods

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			pods.writeJobInfo(w, gpuFamily, v.gpus[i].labels, v.gpus[i].Jobs)
		}

		for gi, dev := range v.instances() {
			pods.writeJobInfo(w, instance, dev.labels, gi.Jobs)
		}
	}
}

func (p podLabels) writeJobInfo(w *metricWriter, f *family, device labels, jobs []string) {
	if !p.jobs || p.mode == PodLabelsOff {
		return
	}

	for _, job := range jobs {
		w.add(f, device.extend("hpc_job", job), 1)
	}
}
