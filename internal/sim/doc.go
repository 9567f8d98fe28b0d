// Package sim is the simulated node: GPUs with the driver's partition rules, workloads, pods that
// ask for devices, and faults. It is deterministic: the same scenario, seed and clock, with the same
// operations at the same times, give the same answers, byte for byte.
//
// Its types are its own and those of package gpu. Other packages put it behind the interfaces that
// real clients use: simnvml behind NVML, kubelet behind the kubelet's API. Errors are the sentinel
// errors gpu.Err* and ErrClosed.
//
// The state moves in steps of at most one second; a step also ends when something happens, such as a
// new pod or a new instance. Readings stay the same within a step. Counters grow linearly within it,
// so that they do not depend on when they are read.
package sim
