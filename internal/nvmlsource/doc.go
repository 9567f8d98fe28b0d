// Package nvmlsource is the only caller of NVML. It converts the driver's answers into the domain's
// types, through a seam (Library, Device, ...) that go-nvml and the simulated node both satisfy.
package nvmlsource
