package migctl

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The kinds of owner that are no Kubernetes object.
const (
	ownerBatch     = "batch"
	ownerProcesses = "processes"
	ownerPod       = "Pod"
)

// wholeResource is the device plugin's name for whole GPUs.
const wholeResource = "nvidia.com/gpu"

// resourceOf returns the resource that NVIDIA's device plugin, under strategy mixed, offers for a
// profile: nvidia.com/mig-1g.5gb.me for 1g.5gb+me. The empty profile stands for whole GPUs.
func resourceOf(profile string) string {
	if profile == "" {
		return wholeResource
	}

	return "nvidia.com/mig-" + strings.ReplaceAll(profile, "+", ".")
}

// ownerChange says how to change the owner of a pod so that its pods ask for another device.
type ownerChange struct {
	// look is the command that shows the init containers of the owner's pods with what they ask for.
	// It is empty if command is.
	look    string
	command string // the command that changes the owner; empty if no command can
	words   string // what to know about the command, or what to do instead of it
	// replaces is true if the change itself makes the old pods leave, once there is a slice for the
	// new ones.
	replaces bool
}

// changeOf returns how to change the owner of what holds a device so that it asks for the recommended
// device.
func changeOf(r *advise.Recommendation) ownerChange {
	current := resourceOf(r.Profile)
	if r.Pod != nil && r.Pod.Resource != "" {
		current = r.Pod.Resource
	}

	if claim, ok := strings.CutPrefix(current, gpu.ClaimPrefix); ok {
		if r.Recommended == "" {
			return ownerChange{
				words: fmt.Sprintf(
					"The pod has its device by the claim %s. In its ResourceClaimTemplate (or "+
						"ResourceClaim) take the device class gpu.nvidia.com, and let the owner make the pod again.",
					claim,
				),
			}
		}

		return ownerChange{
			words: fmt.Sprintf(
				"The pod has its device by the claim %s. In its ResourceClaimTemplate (or "+
					"ResourceClaim) take the device class mig.nvidia.com with the selector "+
					"device.attributes['gpu.nvidia.com'].profile == '%s', and let the owner make the pod again.",
				claim,
				r.Recommended,
			),
		}
	}

	kind, name, _ := strings.Cut(r.Workload.Owner, "/")

	c := ownerChange{
		look:    lookCommand(r, ownerObject(r), kind == "CronJob"),
		command: patchCommand(r, ownerObject(r), current, kind == "CronJob"),
	}
	switch kind {
	case "Deployment":
		c.replaces = true
	case "StatefulSet":
		c.words = "With the update strategy OnDelete the pod must be deleted."
		c.replaces = true
	case "DaemonSet":
		c.words = "A node without such slices runs none of its pods then. With the update strategy OnDelete " +
			"the pod must be deleted."
		c.replaces = true
	case "ReplicaSet", "ReplicationController":
		c.words = "It replaces no pod by itself."
	case "CronJob":
		c.words = "It counts from the next Job on; the one that runs keeps its GPU to its end."
	default:
		c = ownerChange{words: manualChange(r, kind, name, current)}
	}

	return c
}

// manualChange says how to change an owner that no command can change.
func manualChange(r *advise.Recommendation, kind, name, current string) string {
	limit := fmt.Sprintf(
		"limit %s: 1 instead of %s: 1 for the container %s and every init container that asks for %s",
		resourceOf(r.Recommended),
		current,
		orUnknown(r.Workload.Container),
		current,
	)

	switch kind {
	case "Job":
		return "The pod template of a Job cannot be changed. Let it end, " +
			"and set in the manifest of the next one: " + limit + "."
	case ownerPod:
		return "The request of a pod cannot be changed. See its ownerReferences (kubectl get pod -o yaml). " +
			"An owner of kind Node: a static pod, whose manifest is a file on the node; change it there, and " +
			"the kubelet starts the pod anew. No owner: create it again, once it has ended. Another owner: " +
			"change that. In each case: " + limit + "."
	case ownerBatch:
		if r.Recommended == "" {
			return fmt.Sprintf(
				"Batch job %s: let it end, and submit the next one for a whole GPU.",
				name,
			)
		}

		return fmt.Sprintf(
			"Batch job %s: let it end, and submit the next one for a MIG device of profile %s, with Slurm "+
				"--gres=gpu:%s:1.",
			name,
			r.Recommended,
			r.Recommended,
		)
	case ownerProcesses:
		return "The processes belong to no container and no job: start them again with " +
			"CUDA_VISIBLE_DEVICES=MIG-<uuid>, as migctl get -o wide has it."
	}

	return fmt.Sprintf(
		"Owner %s: change in the part of its spec that has the pod's containers: %s.",
		r.Workload.Owner,
		limit,
	)
}

// ownerObject names the owner of what holds a device as kubectl does: deployment/a.
func ownerObject(r *advise.Recommendation) string {
	kind, name, _ := strings.Cut(r.Workload.Owner, "/")
	return strings.ToLower(kind) + "/" + name
}

// ownerName names the owner of what holds a device by namespace and name: shop/api.
func ownerName(r *advise.Recommendation) string {
	_, name, _ := strings.Cut(r.Workload.Owner, "/")
	return r.Workload.Namespace + "/" + name
}

// patchCommand returns the command that patches the pod template of an object. The patch is a
// strategic merge: containers are merged by name, and null removes a key. It leaves requests alone:
// if the container has none, older API servers would keep the null of the patch in them.
func patchCommand(r *advise.Recommendation, object, current string, inJob bool) string {
	limits := map[string]any{current: nil, resourceOf(r.Recommended): "1"}
	container := map[string]any{
		"name":      r.Workload.Container,
		"resources": map[string]any{"limits": limits},
	}

	spec := map[string]any{
		"template": map[string]any{"spec": map[string]any{"containers": []any{container}}},
	}
	if inJob {
		spec = map[string]any{"jobTemplate": map[string]any{"spec": spec}}
	}

	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		panic(err) // impossible: the patch has only strings and null
	}

	return kubectl(
		r.Workload.Namespace,
		"patch",
		object,
		"--type=strategic",
		"--patch="+string(patch),
	)
}

// lookCommand returns the command that shows which init containers the pod template of an object has,
// and what each asks for. We cannot name them in the patch: the kubelet lists no init containers, and
// we read only the metadata of pods from the API server.
func lookCommand(r *advise.Recommendation, object string, inJob bool) string {
	template := ".spec.template"
	if inJob {
		template = ".spec.jobTemplate.spec.template"
	}

	return kubectl(
		r.Workload.Namespace,
		"get",
		object,
		"--output=jsonpath={range "+template+`.spec.initContainers[*]}{.name}{" "}{.resources}{"\n"}{end}`,
	)
}

// kubectl returns a kubectl command on objects of a namespace. Callers write a name behind its type
// or flag (pod/NAME), so that kubectl can't take a name that begins with "-" for a flag.
func kubectl(namespace string, args ...string) string {
	words := []string{"kubectl", QuoteForShell("--namespace=" + namespace)}
	for _, a := range args {
		words = append(words, QuoteForShell(a))
	}

	return strings.Join(words, " ")
}
