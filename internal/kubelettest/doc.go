// Package kubelettest runs mig-exporter beside a real kubelet, API server and container runtime, as
// the Helm chart renders it and on the simulated node's C library: make e2e-kubelet. It is a module
// of its own, so that Kubernetes is none of the product's dependencies; its go.mod also says which
// kubelet and API server are built.
//
// The test binary runs in four roles. The supervisor, which go test starts, starts the others and
// compares the host before and after. The init process is process 1 of private PID, mount and
// network namespaces. The tests run below it, with all that they start. The janitor outlives a
// killed supervisor, and removes what namespaces do not.
package kubelettest
