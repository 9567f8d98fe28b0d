package podresources

import (
	"slices"
	"strings"
)

// containerIDLen is the length of a container's id: 32 bytes in hexadecimal digits, with every
// runtime of Kubernetes.
const containerIDLen = 64

// containerIDs returns the ids of the containers that a process is in, the innermost first: a node
// may itself be a container, and a container may run others. cgroup is the text of
// /proc/<pid>/cgroup. Elements of its paths that end in an id name a container, in cgroup v1 and
// v2:
//
//	cgroupfs driver   /kubepods/burstable/pod<uid>/<id>
//	systemd driver    /kubepods.slice/.../cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope
//	both              /system.slice/containerd.service/kubepods-pod<uid>.slice:cri-containerd:<id>
//
// "Both" is a runtime with another driver than the kubelet's.
func containerIDs(cgroup string) []string {
	var ids []string

	for line := range strings.Lines(cgroup) {
		// A line is hierarchy:controllers:path, and the path may contain colons.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}

		elements := strings.Split(parts[2], "/")
		for _, element := range slices.Backward(elements) {
			if id, ok := containerID(element); ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}

	return ids
}

// containerID returns the container id that an element of a cgroup path ends in.
func containerID(element string) (string, bool) {
	element = strings.TrimSuffix(element, ".scope")

	start := len(element) - containerIDLen
	if start < 0 || !isHex(element[start:]) {
		return "", false
	}

	if start > 0 && element[start-1] != '-' && element[start-1] != ':' {
		return "", false
	}

	return element[start:], true
}

// isHex reports whether s has lower-case hexadecimal digits only.
func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}
