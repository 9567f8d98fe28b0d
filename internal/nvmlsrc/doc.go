// Package nvmlsrc is the only caller of NVML. It turns what the driver says into the domain's types, through a seam
// (Library, Device, ...) that go-nvml and the simulated node both satisfy.
package nvmlsrc
