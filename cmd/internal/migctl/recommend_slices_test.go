package migctl

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// Loads of a slice: it is far too big, too small by its SMs, idle, or right.
var (
	wasteful = load{busy: 0.2, sm: 0.02, gib: 3}
	crowded  = load{busy: 1, sm: 1, gib: 8}
	asleep   = load{gib: 1}
	fitting  = load{busy: 0.7, sm: 0.5, gib: 9}
)

func serviceOf(name string) gpu.Holder {
	return podOf("ml", name+"-0", "Deployment/"+name)
}

// sliceCommands returns the commands after the heading of the procedure for slices, in short.
func sliceCommands(t *testing.T, out string) []string {
	t.Helper()
	_, procedure, _ := strings.Cut(out, "Procedure for slices.")
	var list []string

	for _, argv := range executed(t, procedure) {
		switch {
		case argv[0] == "migctl":
			list = append(list, strings.Join(argv[1:], " "))
		case argv[1] == "cordon", argv[1] == "uncordon":
			list = append(list, argv[1])
		case argv[1] == "delete": // the label is the last but one
			list = append(list, "restart "+argv[len(argv)-2])
		case argv[2] == "patch":
			var to string

			for _, p := range append(strings.Split(argv[5], `"`), "?") {
				if strings.HasPrefix(p, "nvidia.com/") { // keys are sorted: what is taken away has null
					to += " " + strings.TrimPrefix(p, "nvidia.com/")
				}
			}

			list = append(list, "patch "+argv[3]+to)
		default:
			list = append(list, strings.Join(argv[2:4], " "))
		}
	}

	return list
}

// sliceCase is a node of one or two GPUs in MIG mode and the commands that change its slices.
type sliceCase struct {
	about  string
	gpus   func(t *testing.T) []gpu.GPU
	change func(*advise.Report)
	want   []string
	says   []string
}

func sliceCases() []sliceCase {
	created := []string{"restart --selector=app=nvidia-device-plugin-daemonset",
		"restart --selector=app.kubernetes.io/name=nvidia-device-plugin", "uncordon"}

	return []sliceCase{
		{about: "a free slice stands", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{
				slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a"))),
				slicedH100(t, 1, slice("1g.10gb", at(0, 1), load{})),
			}
		}, want: []string{"get deployment/a", "patch deployment/a mig-1g.10gb mig-3g.40gb", "rollout status"},
			says: []string{"Move to what is free", "3g.40gb@0, pod ml/a-0: to 1g.10gb."}},
		{about: "there is room", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a")))}
		}, want: slices.Concat([]string{"cordon", "apply --gpus 0 --devices 1g.10gb=1,3g.40gb=1"}, created,
			[]string{"get deployment/a", "patch deployment/a mig-1g.10gb mig-3g.40gb", "rollout status"}),
			says: []string{"create the slices beside those that are held", "The slices that they leave are free then."}},
		{about: "no room beside it", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), fitting, serviceOf("right")),
				slice("3g.40gb", at(4, 4), wasteful, podOf("ml", "b-0", "StatefulSet/b")))}
		}, want: slices.Concat([]string{"cordon", "get statefulset/b", "patch statefulset/b mig-1g.10gb mig-3g.40gb", "delete pod/b-0",
			"apply --gpus 0 --devices 1g.10gb=1,3g.40gb=1"}, created, []string{"rollout status"}),
			says: []string{"there is no room beside them", "refuses, and changes nothing, while a pod or a process is on"}},
		{about: "a larger one in the place of the old one", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("2g.20gb", at(0, 2), crowded, serviceOf("c")),
				slice("3g.40gb", at(4, 4), fitting, serviceOf("right")), slice("1g.10gb", at(2, 1), load{}))}
		}, want: slices.Concat([]string{"cordon", "get deployment/c", "patch deployment/c mig-2g.20gb mig-3g.40gb", "delete pod/c-0",
			"apply --gpus 0 --devices 3g.40gb=2"}, created, []string{"rollout status"})},
		{about: "no room at all", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("2g.20gb", at(0, 2), crowded, serviceOf("c")),
				slice("3g.40gb", at(4, 4), fitting, serviceOf("right")),
				slice("2g.20gb", at(2, 2), fitting, serviceOf("too")))}
		}, says: []string{"Not changed: GPU 0, 2g.20gb@0, pod ml/c-0: to 3g.40gb: GPU 0 has no room for it"}},
		{about: "a whole GPU is needed, and none is free", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("7g.80gb", at(0, 8), crowded, serviceOf("c")))}
		}, says: []string{"to a whole GPU: no whole GPU is free"}},
		{about: "a whole GPU is needed", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("7g.80gb", at(0, 8), crowded, serviceOf("c"))), wholeH100(t, 1, load{})}
		}, want: []string{"get deployment/c", "patch deployment/c gpu mig-7g.80gb", "rollout status"}},
		{about: "one of two replicas is too small", gpus: func(t *testing.T) []gpu.GPU {
			other := serviceOf("c")
			other.Pod = "c-1"
			other.PodUID = "uid-c-1"

			return []gpu.GPU{slicedH100(t, 0, slice("1g.20gb", at(0, 2), crowded, serviceOf("c"))),
				slicedH100(t, 1, slice("1g.20gb", at(0, 2), load{busy: 0.5, sm: 0.3, gib: 3}, other))}
		}, want: slices.Concat([]string{"cordon", "apply --gpus 0 --devices 1g.20gb=1,2g.20gb=1",
			"apply --gpus 1 --devices 1g.20gb=1,2g.20gb=1"}, created,
			[]string{"get deployment/c", "patch deployment/c mig-1g.20gb mig-2g.20gb", "rollout status"}),
			says: []string{"GPU 1, 1g.20gb@0, pod ml/c-1: to 2g.20gb."}},
	}
}

// refusedSlices are those that no command changes, and idle ones.
func refusedSlices() []sliceCase {
	return []sliceCase{
		{about: "provisional", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a")))}
		}, change: func(r *advise.Report) { r.Devices[0].Provisional = true }},
		{about: "single strategy", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a")))}
		}, change: func(r *advise.Report) { r.SingleStrategy = true },
			says: []string{"under --mig-strategy=single all slices of the node have one profile"}},
		{about: "a pod with two slices", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a")),
				slice("3g.40gb", at(4, 4), wasteful, serviceOf("a")))}
		}, says: []string{"its pod holds several slices. Change it by hand."}},
		{about: "instances that are split", gpus: func(t *testing.T) []gpu.GPU {
			split := slice("2g.20gb", at(4, 2), fitting, serviceOf("split"))
			split.ComputeInstances[0].Profile = "1c.2g.20gb"

			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a")), split)}
		}, says: []string{"GPU 0 has instances that are split"}},
		{about: "a GPU that the packing uses", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a"))),
				wholeH100(t, 1, small, podOf("ml", "p-0", "Deployment/p"))}
		}, says: []string{"GPU 0 gets slices by the procedure above. Run migctl recommend again after it."}},
		{about: "idle", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), asleep, serviceOf("a")))}
		}, want: []string{"get deployment/a", "scale deployment/a"}, says: []string{"it has held its memory for a day and run nothing"}},
		{about: "idle, with media engines that are not read", gpus: func(t *testing.T) []gpu.GPU {
			unread := slice("3g.40gb", at(0, 4), asleep, serviceOf("a"))
			unread.Media = gpu.Media{}

			return []gpu.GPU{slicedH100(t, 0, unread)}
		}, says: []string{
			"it has held its memory for a day and no kernel ran. Its media engines cannot be read here",
			"No command is printed that ends it.",
		}},
		{about: "an idle one of two replicas", gpus: func(t *testing.T) []gpu.GPU {
			other := serviceOf("a")
			other.Pod = "a-1"
			other.PodUID = "uid-a-1"

			return []gpu.GPU{slicedH100(t, 0, slice("1g.10gb", at(0, 1), asleep, serviceOf("a")),
				slice("1g.10gb", at(1, 1), fitting, other))}
		}, says: []string{"scale Deployment/a down by one"}},
		{about: "an idle job", gpus: func(t *testing.T) []gpu.GPU {
			return []gpu.GPU{slicedH100(t, 0, slice("3g.40gb", at(0, 4), asleep, podOf("ml", "j-0", "Job/j")))}
		}, says: []string{"Owner Job/j: only it knows whether the work is done."}},
	}
}

// TestSliceProcedures: in which order slices are created, owners changed and pods removed, and what
// is refused.
func TestSliceProcedures(t *testing.T) {
	for _, c := range append(sliceCases(), refusedSlices()...) {
		t.Run(c.about, func(t *testing.T) {
			report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, c.gpus(t)...))
			if c.change != nil {
				c.change(report)
			}

			_, address := serve(t, recommended(report, s))
			got := runner{}.run(t, address, "recommend")
			cmptest.Equal(t, "exit code and errors", outcome{code: got.code, err: got.err}, outcome{})
			cmptest.Equal(t, "commands", sliceCommands(t, got.out), c.want)
			cmptest.HasTexts(t, flat(got.out), c.says...)
			fits(t, withoutCommands(got.out))

			if slices.ContainsFunc(c.want, func(s string) bool { return strings.HasPrefix(s, "patch") }) {
				spec := runner{}.run(t, address, "recommend", "-o", "spec")
				cmptest.HasTexts(t, flat(spec.out+spec.err), "should become smaller or larger are not part of a spec")
			}
		})
	}
}

// TestIdleSliceIsLookedAtFirst: the command that ends all replicas of an owner comes after what it
// ends, what was not asked, and the command that shows how many there are.
func TestIdleSliceIsLookedAtFirst(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, slicedH100(t, 0, slice("3g.40gb", at(0, 4), asleep, serviceOf("a")))))
	_, address := serve(t, recommended(report, s))
	out := flat(runner{}.run(t, address, "recommend").out)

	const get, scale = "kubectl --namespace=ml get deployment/a", "kubectl --namespace=ml scale deployment/a --replicas=0"

	before, after, ok := strings.Cut(out, scale)
	caution, _, hasGet := strings.Cut(before, get)

	if !ok || !hasGet {
		t.Fatalf("want %q, then %q, in:\n%s", get, scale, out)
	}

	cmptest.HasTexts(t, caution, "ends all replicas of Deployment/a in ml, on every node.", "The other nodes were not asked")
	cmptest.LacksTexts(t, after, "ends all", "other nodes")
}

// TestSliceLayoutsArePlanned: the planner accepts each layout that is printed, with what stays in
// use where it is, and refuses one for which a pod must leave as long as it has not.
func TestSliceLayoutsArePlanned(t *testing.T) {
	planned := 0

	for _, c := range sliceCases() {
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, c.gpus(t)...))
		doc := nodedoc.New(s)

		plan := report.PlanSlices(gpusToPlan(doc.GPUs))
		for index, layout := range plan.Layouts {
			planned++

			for _, left := range []bool{true, false} {
				g := layoutOf(&s.GPUs[index])
				for i := range g.Instances {
					leaves := slices.Contains(plan.Leaving(index), g.Instances[i].ID) && left && !plan.Room
					g.Instances[i].Busy = !leaves && s.GPUs[index].Instances[i].Allocated.Or(true)
				}

				rule := mig.Rule{GPUs: []string{"all"}, Enabled: true}
				for profile, n := range layout {
					rule.Want = append(rule.Want, mig.Want{Profile: profile, Count: n})
				}

				_, err := mig.PlanNode(t.Context(), []mig.GPULayout{g}, mig.Spec{Rules: []mig.Rule{rule}})
				if want := left || plan.Room; (err == nil) != want {
					t.Errorf("%s, pods have left: %v: GPU %d, %v: %v", c.about, left, index, layout, err)
				}
			}
		}
	}

	if planned < 4 {
		t.Errorf("%d layouts were planned", planned)
	}
}

func layoutOf(g *gpu.GPU) mig.GPULayout {
	l := mig.GPULayout{Facts: g.Facts, MIG: gpu.Some(true), Pending: gpu.Some(true)}
	for i := range g.Instances {
		is := &g.Instances[i]
		at := slices.IndexFunc(g.Profiles, func(p gpu.Profile) bool { return p.Name == is.Profile })
		l.Instances = append(l.Instances, mig.Instance{
			ID:     is.ID,
			Placed: mig.Placed{ProfileID: g.Profiles[at].ID, Profile: is.Profile, Placement: is.Placement.Or(gpu.Placement{})},
			ComputeInstances: []mig.ComputeInstance{{ID: 0, Slices: g.Profiles[at].ComputeSlices,
				Placement: gpu.Some(gpu.Placement{Start: 0, Size: g.Profiles[at].ComputeSlices})}},
		})
	}

	return l
}

// TestHostileNamesOfSlices: names of any characters reach kubectl as they are.
func TestHostileNamesOfSlices(t *testing.T) {
	const evil = "a'; touch /tmp/x; $(id) `id` \\ \"\n\x1b[2J\u202eé <&>"
	for i, l := range []load{wasteful, asleep, crowded} {
		holder := podOf(evil, evil, "ReplicaSet/"+evil)
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
			slicedH100(t, 0, slice([]string{"3g.40gb", "1g.10gb", "2g.20gb"}[i], at(0, []int{4, 1, 2}[i]), l, holder))))
		report.Node = evil
		_, address := serve(t, recommended(report, s))
		out := runner{}.run(t, address, "recommend").out
		cmptest.LacksTexts(t, out, "\x1b", "\u202e")
		commands := 0

		for _, argv := range executed(t, out) {
			if argv[0] == "kubectl" && strings.HasPrefix(argv[1], "--namespace=") && argv[3] != "pod" {
				commands++
				cmptest.Equal(t, fmt.Sprint(argv[2]), argv[1:2], []string{"--namespace=" + evil})

				if _, name, _ := strings.Cut(argv[3], "/"); name != evil {
					t.Errorf("object %q", argv[3])
				}
			}
		}

		if commands == 0 {
			t.Errorf("no command:\n%s", out)
		}
	}
}

// TestSliceProcedureNeedsTheNode: what stands on the GPUs must be known.
func TestSliceProcedureNeedsTheNode(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
		slicedH100(t, 0, slice("3g.40gb", at(0, 4), wasteful, serviceOf("a")))))
	routes := recommended(report, s)
	routes["GET /node"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	_, address := serve(t, routes)

	got := runner{}.run(t, address, "recommend")
	if got.code == exitOK {
		t.Errorf("got %s", got.out)
	}

	cmptest.LacksTexts(t, got.out, "migctl apply")
}

// TestSlicesThatStay: a slice that is judged and stays has its answer in the table, in one line for
// each GPU and reason.
func TestSlicesThatStay(t *testing.T) {
	var devices []advise.Recommendation

	for i, r := range []advise.Recommendation{
		{Action: advise.ActionKeep, Reason: advise.ReasonPreallocated}, {Action: advise.ActionFree},
		{Action: advise.ActionKeep, Reason: advise.ReasonPreallocated}, {Action: advise.ActionKeep},
	} {
		r.Index, r.Instance, r.Profile = i/3, gpu.Some(gpu.InstanceID(i)), "1g.10gb"
		r.Placement = gpu.Some(gpu.Placement{Start: i, Size: 1})
		devices = append(devices, r)
	}

	var out strings.Builder
	p := newPage(&out, false, true)
	writeSlices(p, devices)
	p.flush()
	cmptest.Equal(t, "text", strings.TrimSpace(out.String()),
		"0 2 kept slices (preallocated): 1g.10gb@0, 1g.10gb@2\n  0 1 free slice: 1g.10gb@1\n  1 1 kept slice: 1g.10gb@3")
}
