package migctl

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// executed returns the words of the commands of a procedure, as a shell passes them on.
func executed(t *testing.T, out string) [][]string {
	t.Helper()
	script := `show() { printf '%s\0' "$@"; printf '\n\0'; }
kubectl() { show kubectl "$@"; }
migctl() { show migctl "$@"; }
`

	for line := range strings.Lines(out) {
		if isCommand(line) {
			command, _, _ := strings.Cut(line, " > ") // the file of layouts is not written
			script += strings.TrimRight(command, "\n") + "\n"
		}
	}

	data, err := exec.CommandContext(t.Context(), "bash", "-c", script).Output()
	if err != nil {
		t.Fatalf("%v:\n%s", err, script)
	}

	var all [][]string
	var words []string

	for _, w := range strings.Split(string(data), "\x00") {
		if w == "\n" {
			all = append(all, words)
			words = nil
			continue
		}

		words = append(words, w)
	}

	return all
}

// cluster is a model of a node: which pods hold whole GPUs, which slices are free, which owners ask
// for a slice. Pods are replaced as late as can be: when a command waits for it.
type cluster struct {
	report   *advise.Report
	holds    map[int]*advise.Recommendation // by GPU, those that move
	pending  []*advise.Recommendation       // those that have left, and that their owner creates again
	slices   map[string]int                 // free ones, by profile
	patched  map[string]bool                // owners
	mode     map[int]bool                   // seen to be on, by migctl get
	switched map[int]bool
	cordoned bool
}

func newCluster(report *advise.Report) *cluster {
	c := &cluster{
		report: report, holds: map[int]*advise.Recommendation{}, slices: map[string]int{}, patched: map[string]bool{},
		mode: map[int]bool{}, switched: map[int]bool{},
	}
	for _, g := range report.Packing.GPUs {
		for _, s := range g.Slices {
			at := slices.IndexFunc(report.Devices, func(r advise.Recommendation) bool {
				return r.Index == s.From && !r.Instance.Present()
			})

			c.holds[s.From] = &report.Devices[at]
			if s.Exists {
				c.slices[s.Profile]++
			}
		}
	}

	for i := range report.Devices {
		if report.Devices[i].Instance.Present() {
			c.mode[report.Devices[i].Index] = true
		}
	}

	return c
}

// execute does what a command does. Pods of patched owners that replace their pods leave by
// themselves when there is a slice for them. It fails if a command comes too early, or would not
// return.
func (c *cluster) execute(argv []string) error {
	last := argv[len(argv)-1]
	switch {
	case argv[1] == "cordon":
		if object := c.canMove(); object != "" {
			return fmt.Errorf("%s has not moved to its slice", object)
		}

		c.cordoned = true
	case argv[1] == "uncordon":
		c.cordoned = false
	case argv[1] == "mode":
		for _, word := range argv[3:] {
			index, _ := strconv.Atoi(word)
			if c.holds[index] != nil {
				return fmt.Errorf("GPU %d is held", index)
			}

			c.switched[index] = true
		}

	case argv[1] == "apply" && argv[2] == "--gpus": // slices that change are in no packing
	case argv[1] == "apply":
		return c.partition(last)
	case argv[1] == "get":
		c.get(argv[2:])
	case argv[2] == "patch":
		if c.cordoned && !strings.HasPrefix(argv[3], "cronjob/") && c.canRoll(argv[3]) {
			return fmt.Errorf("%s has a slice, and the node is cordoned", argv[3])
		}

		c.patched[argv[3]] = true
	case argv[2] == "rollout":
		c.roll()

		for _, r := range append(slices.Collect(maps.Values(c.holds)), c.pending...) {
			if objectOf(r) == argv[4] {
				return fmt.Errorf("pod %s has no slice: the rollout does not end", r.Pod.Name)
			}
		}
	case argv[2] == "delete" && strings.HasPrefix(argv[3], "pod/"):
		return c.deletePod(strings.TrimPrefix(argv[3], "pod/"))
	}

	return nil
}

// get waits for whatever migctl get can show: the mode of GPUs, the end of pods that end, pods that
// get slices.
func (c *cluster) get(words []string) {
	for _, word := range words {
		index, _ := strconv.Atoi(word)
		if c.switched[index] {
			c.mode[index] = true
		}

		if r := c.holds[index]; r != nil && !isReplaceable(r) {
			delete(c.holds, index)
		}
	}

	c.roll()
}

func (c *cluster) deletePod(name string) error {
	for index, r := range c.holds {
		if r.Pod.Name != name {
			continue
		}

		if isOwnedBy(r, "Job", "CronJob", "Pod", "RayJob") {
			return fmt.Errorf("%s loses its work", name)
		}

		delete(c.holds, index)
		c.pending = append(c.pending, r)
	}

	return nil
}

// partition creates the slices of a layout.
func (c *cluster) partition(layout string) error {
	index, _ := strconv.Atoi(strings.TrimPrefix(layout, "gpu-"))
	if c.holds[index] != nil || !c.mode[index] {
		return fmt.Errorf("GPU %d is held, or MIG mode is not seen to be on", index)
	}

	for _, g := range c.report.Packing.GPUs {
		for _, s := range g.Slices {
			if g.Index == index && !s.Exists {
				c.slices[s.Profile]++
			}
		}
	}

	return nil
}

func objectOf(r *advise.Recommendation) string {
	kind, name, _ := strings.Cut(r.Workload.Owner, "/")
	return strings.ToLower(kind) + "/" + name
}

// canRoll reports whether a pod of an owner would leave its GPU for a free slice at once.
func (c *cluster) canRoll(object string) bool {
	for _, r := range c.holds {
		if objectOf(r) == object && c.slices[r.Recommended] > 0 {
			return true
		}
	}

	return false
}

// canMove names an owner with a pod that gets a slice as soon as its owner or the scheduler comes
// to it; empty if there is none.
func (c *cluster) canMove() string {
	if c.cordoned {
		return ""
	}

	for _, r := range c.pending {
		if c.slices[r.Recommended] > 0 {
			return objectOf(r)
		}
	}

	for object := range c.patched {
		if isRolled(object) && c.canRoll(object) {
			return object
		}
	}

	return ""
}

func isRolled(object string) bool {
	kind, _, _ := strings.Cut(object, "/")
	return slices.Contains([]string{"deployment", "statefulset", "daemonset"}, kind)
}

// roll schedules pods that wait, and replaces others in the order that suits the procedure least.
func (c *cluster) roll() {
	if c.cordoned {
		return
	}

	c.pending = slices.DeleteFunc(c.pending, func(r *advise.Recommendation) bool {
		fits := c.slices[r.Recommended] > 0
		if fits {
			c.slices[r.Recommended]--
		}

		return fits
	})
	for _, index := range slices.Backward(sortedKeys(c.holds)) {
		r := c.holds[index]
		if isRolled(objectOf(r)) && c.patched[objectOf(r)] && c.slices[r.Recommended] > 0 {
			c.slices[r.Recommended]--
			delete(c.holds, index)
		}
	}
}

// TestHostileNames: names of any characters reach kubectl as they are, and neither end a command
// nor move the cursor.
func TestHostileNames(t *testing.T) {
	const evil = "a'; touch /tmp/x; $(id) `id` \\ \"\n\x1b[2J\u202eé <&>"
	for _, kind := range []string{
		"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "CronJob", "Job", "Pod",
		"Evil';Kind", "batch",
	} {
		holder := podOf(evil, evil, kind+"/"+evil)
		holder.Name = evil
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
			wholeH100(t, 0, tiny, holder), slicedH100(t, 1)))
		report.Node = evil

		_, address := serve(t, recommended(report, s))
		for _, env := range []map[string]string{{"LANG": "C"}, {"LANG": "C.UTF-8"}} {
			out := runner{env: env}.run(t, address, "recommend").out
			cmptest.LacksTexts(t, out, "\x1b", "\u202e")
			fits(t, withoutCommands(out))
			patches := 0
			looks := 0

			for _, argv := range executed(t, out) {
				switch {
				case argv[0] == "migctl":
				case argv[1] == "cordon" || argv[1] == "uncordon":
					cmptest.Equal(t, "node", argv[2:], []string{evil})
				case argv[2] == "patch":
					patches++
					want := []string{"--namespace=" + evil, "patch", strings.ToLower(kind) + "/" + evil, "--type=strategic"}
					cmptest.Equal(t, "object", argv[1:5], want)
					checkPatch(t, strings.TrimPrefix(argv[5], "--patch="), kind == "CronJob", evil)
				case argv[2] == "get":
					looks++
					cmptest.Equal(t, "looked at", argv[3], strings.ToLower(kind)+"/"+evil)
					cmptest.HasTexts(t, argv[4], ".template.spec.initContainers[*]}")
				case argv[1] == "delete":
					cmptest.Equal(t, "node of the plugin", argv[len(argv)-1], "--field-selector=spec.nodeName="+evil)
				case argv[2] == "delete":
					cmptest.Equal(t, "pod", argv[1:4], []string{"--namespace=" + evil, "delete", "pod/" + evil})
				case argv[2] == "rollout":
					want := []string{"--namespace=" + evil, "rollout", "status", strings.ToLower(kind) + "/" + evil}
					cmptest.Equal(t, "object", argv[1:5], want)
				case argv[2] == "wait":
					cmptest.Equal(t, "pod", argv[4], "pod/"+evil)
				default:
					t.Errorf("%s: %q", kind, argv)
				}
			}

			want := 1
			if slices.Contains([]string{"Job", "Pod", "Evil';Kind", "batch"}, kind) {
				want = 0
			}

			cmptest.Equal(t, kind+": patches", patches, want)
			cmptest.Equal(t, kind+": looks at init containers", looks, want)
		}

		explained := runner{}.run(t, address, "recommend", "--explain=0").out
		cmptest.LacksTexts(t, explained, "\x1b", "\u202e")
		fits(t, explained)
	}
}

func checkPatch(t *testing.T, patch string, inJob bool, container string) {
	t.Helper()

	var got any
	if err := json.Unmarshal([]byte(patch), &got); err != nil {
		t.Fatalf("%v: %s", err, patch)
	}

	limits := map[string]any{"nvidia.com/gpu": nil, "nvidia.com/mig-1g.10gb": "1"}
	containers := []any{map[string]any{"name": container, "resources": map[string]any{"limits": limits}}}

	spec := map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers}}}
	if inJob {
		spec = map[string]any{"jobTemplate": map[string]any{"spec": spec}}
	}

	cmptest.Equal(t, "patch", got, any(map[string]any{"spec": spec}))
}

// TestOnlyReplaceablePodsAreDeleted: a pod whose work cannot go on in another one is waited for.
func TestOnlyReplaceablePodsAreDeleted(t *testing.T) {
	const deliberately = "Wait until it ends, or delete and recreate it deliberately"

	for _, c := range []struct {
		owner   string
		deletes bool
		says    string
	}{
		{"Deployment/x", true, ""}, {"StatefulSet/x", true, ""}, {"DaemonSet/x", true, ""}, {"ReplicaSet/x", true, ""},
		{"ReplicationController/x", true, ""}, {"Job/x", false, deliberately},
		{"CronJob/x", false, deliberately}, {"Workflow/x", false, deliberately},
		{"Notebook/x", false, deliberately},
		{"label/x", false, deliberately}, {"Pod/x", false, "A static pod (its owner is the Node) ends when its manifest is moved"},
		{"batch/4711", false, "to end it earlier loses the work"},
		{"processes/GPU-1", false, "to end it earlier loses the work"},
	} {
		// The only GPU must be emptied before it gets a slice.
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
			wholeH100(t, 0, tiny, podOf("ml", "x-0", c.owner))))
		_, address := serve(t, recommended(report, s))
		out := runner{}.run(t, address, "recommend").out

		cmptest.Equal(t, c.owner+": deleted", strings.Contains(out, "delete pod/x-0"), c.deletes)
		cmptest.Equal(t, c.owner+": waited for", strings.Contains(out, "Repeat it until GPU 0 is free."), !c.deletes)
		cmptest.HasTexts(t, flat(out), c.says, "If it is not 2026-03-03T00:59:00Z, compare the layouts")
		fits(t, withoutCommands(out))
	}
}

// TestOwnersThatNoCommandChanges: the words name the resource, the claim or the job.
func TestOwnersThatNoCommandChanges(t *testing.T) {
	for _, c := range []struct{ about, owner, resource, says string }{
		{"media extension", "Workflow/r", wholeResource, "limit nvidia.com/mig-1g.10gb.me: 1 instead of nvidia.com/gpu: 1"},
		{"another name of whole GPUs", "Job/j", "example.com/h100", "mig-1g.10gb.me: 1 instead of example.com/h100: 1"},
		{"claim", "Deployment/d", "claim/ml/gpu", "claim ml/gpu"},
		{"claim's selector", "Deployment/d", "claim/ml/gpu", "profile == '1g.10gb+me'"},
		{"static pod", "Pod/x-node-a", wholeResource, "a static pod, whose manifest is a file on the node; change it there"},
		{"batch job", "batch/4711", "", "--gres=gpu:1g.10gb+me:1"},
		{"processes", "processes/GPU-1", "", "CUDA_VISIBLE_DEVICES"},
	} {
		r := &advise.Recommendation{
			Recommended: "1g.10gb+me", Workload: &advise.Key{Owner: c.owner, Container: "main"},
			Pod: &advise.Pod{Resource: c.resource},
		}
		got := changeOf(r)
		cmptest.Equal(t, c.about+": command", got.command, "")
		cmptest.Equal(t, c.about+": replaces", got.replaces, false)
		cmptest.HasTexts(t, got.words, c.says)
	}
}

// TestPatchMentionsInitContainers: an init container that still asks for a whole GPU makes the pod ask for
// a GPU and a slice. The exporter doesn't know init containers, so the steps say how to find them.
func TestPatchMentionsInitContainers(t *testing.T) {
	for _, c := range []struct{ owner, look, says string }{
		{"StatefulSet/x", "get statefulset/x '--output=jsonpath={range .spec.template.spec.initContainers[*]}",
			`add it to the patch below: "initContainers", beside "containers"`},
		{"CronJob/x", "get cronjob/x '--output=jsonpath={range .spec.jobTemplate.spec.template.spec.initContainers[*]}",
			"stay pending"},
		{"Job/x", "", "and every init container that asks for nvidia.com/gpu"},
		{"Workflow/x", "", "and every init container that asks for nvidia.com/gpu"},
	} {
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
			wholeH100(t, 0, tiny, podOf("ml", "x-0", c.owner))))
		_, address := serve(t, recommended(report, s))
		out := runner{}.run(t, address, "recommend").out

		look := strings.Index(out, c.look)
		if look < 0 || c.look != "" && look > strings.Index(out, " patch ") {
			t.Errorf("%s: %q does not come before the patch:\n%s", c.owner, c.look, out)
		}

		cmptest.HasTexts(t, flat(out), c.says)
	}
}
