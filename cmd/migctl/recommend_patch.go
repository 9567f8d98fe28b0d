package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// The kinds of owner that are no Kubernetes object.
const (
	ownerBatch     = "batch"
	ownerProcesses = "processes"
	ownerPod       = "Pod"
)

// wholeResource is the device plugin's name for whole GPUs.
const wholeResource = "nvidia.com/gpu"

// profileResource returns the name of a profile's resource that NVIDIA's device plugin gives under strategy mixed: nvidia.com/mig-1g.5gb.me
// for 1g.5gb+me.
func profileResource(profile string) string {
	return "nvidia.com/mig-" + strings.ReplaceAll(profile, "+", ".")
}

// ownerChange is how the owner of a pod is made to ask for a slice.
type ownerChange struct {
	command string // empty if there is none that does it
	words   string // what to know, or what to do instead
	// replaces reports whether the change itself makes the old pods leave, once there is a slice for the new ones.
	replaces bool
}

// changeOf returns how the owner of the pod on a whole GPU is made to ask for the recommended slice.
func changeOf(r *advise.Recommendation) ownerChange {
	to, was := profileResource(r.Recommended), wholeResource
	if r.Pod != nil && r.Pod.Resource != "" {
		was = r.Pod.Resource
	}
	kind, name, _ := strings.Cut(r.Workload.Owner, "/")
	if claim, ok := strings.CutPrefix(was, "claim/"); ok {
		return ownerChange{words: fmt.Sprintf("The pod has its GPU by the claim %s: in its ResourceClaimTemplate (or ResourceClaim) take the device class "+
			"mig.nvidia.com, with the selector device.attributes['gpu.nvidia.com'].profile == '%s', and let the owner make the pod again.", claim, r.Recommended)}
	}
	byHand := fmt.Sprintf("limit %s: 1 instead of %s: 1 for the container %s", to, was, orUnknown(r.Workload.Container))
	switch kind {
	case "Deployment":
		return ownerChange{patchCommand(r, "deployment/"+name, to, was, false), "All replicas ask for the slice then, those on other nodes too.", true}
	case "StatefulSet":
		return ownerChange{patchCommand(r, "statefulset/"+name, to, was, false), "All replicas ask for the slice then, those on other nodes too. With the update strategy " +
			"OnDelete the pod must be deleted.", true}
	case "DaemonSet":
		return ownerChange{patchCommand(r, "daemonset/"+name, to, was, false), "Its pods on all nodes ask for the slice then: a node without such slices runs none. With the " +
			"update strategy OnDelete the pod must be deleted.", true}
	case "ReplicaSet":
		return ownerChange{patchCommand(r, "replicaset/"+name, to, was, false), "It replaces no pod by itself: its pods must be deleted.", false}
	case "ReplicationController":
		return ownerChange{patchCommand(r, "replicationcontroller/"+name, to, was, false), "It replaces no pod by itself: its pods must be deleted.", false}
	case "CronJob":
		return ownerChange{patchCommand(r, "cronjob/"+name, to, was, true), "It counts from the next Job on; the one that runs keeps its GPU to its end.", false}
	case "Job":
		return ownerChange{words: "The pod template of a Job cannot be changed. Let it end, and set in the manifest that the next one is made of: " + byHand + "."}
	case ownerPod:
		return ownerChange{words: "The request of a pod cannot be changed. If it has no owner (kubectl get pod -o yaml: ownerReferences), delete it and create it again " +
			"with: " + byHand + "; else change its owner like that."}
	case ownerBatch:
		return ownerChange{words: fmt.Sprintf("Batch job %s: let it end, and submit the next one for a MIG device of profile %s, with Slurm --gres=gpu:%s:1.",
			name, r.Recommended, r.Recommended)}
	case ownerProcesses:
		return ownerChange{words: "The processes belong to no container and no job: start them again with CUDA_VISIBLE_DEVICES=MIG-<uuid>, as migctl get -o wide has it."}
	}
	return ownerChange{words: fmt.Sprintf("Owner %s: change in its spec, where it has the pod's containers: %s.", r.Workload.Owner, byHand)}
}

// patchCommand returns the command that patches the pod template of an object. The patch is a strategic merge: containers are merged by
// name, and null takes a key away. It leaves requests alone, since older API servers keep a null in a map that was not there.
func patchCommand(r *advise.Recommendation, object, to, was string, inJob bool) string {
	limits := map[string]any{was: nil}
	limits[to] = "1"
	container := map[string]any{"name": r.Workload.Container, "resources": map[string]any{"limits": limits}}
	spec := map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}}
	if inJob {
		spec = map[string]any{"jobTemplate": map[string]any{"spec": spec}}
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		panic(err) // strings and null alone
	}
	return kubectl(r.Workload.Namespace, "patch", object, "--type=strategic", "--patch="+string(patch))
}

// kubectl returns a command on objects of a namespace. Names are behind their type or their flag: none can be taken for a flag.
func kubectl(namespace string, args ...string) string {
	words := []string{"kubectl", shellQuote("--namespace=" + namespace)}
	for _, a := range args {
		words = append(words, shellQuote(a))
	}
	return strings.Join(words, " ")
}

// shellQuote quotes a word for a POSIX shell. Control characters and others beyond ASCII, which the terminal may not show, become
// escapes of $'...', which bash, zsh and ksh understand.
func shellQuote(word string) string {
	safe, printable := word != "", true
	for _, b := range []byte(word) {
		safe = safe && (b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("-_./:=,+@%", b) >= 0)
		printable = printable && b >= ' ' && b <= '~'
	}
	switch {
	case safe:
		return word
	case printable:
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	var quoted strings.Builder
	quoted.WriteString("$'")
	for _, b := range []byte(word) {
		switch {
		case b == '\'' || b == '\\':
			quoted.WriteString(`\` + string(rune(b)))
		case b < ' ' || b > '~':
			fmt.Fprintf(&quoted, `\%03o`, b)
		default:
			quoted.WriteByte(b)
		}
	}
	return quoted.String() + "'"
}
