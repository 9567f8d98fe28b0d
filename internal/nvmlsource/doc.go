// Package nvmlsource is the only caller of NVML. It converts the driver's answers into the types of
// package gpu. It calls NVML through interfaces (Library, Device, ...) that both go-nvml and the
// simulated node implement.
package nvmlsource
