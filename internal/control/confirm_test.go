package control

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// miss adds a container that the kubelet does not list any more.
func (w *world) miss(pod string, d gpu.DeviceRef) {
	w.pods.List = append(w.pods.List, gpu.Assignment{Device: d,
		Holder: gpu.Holder{Container: gpu.Container{Namespace: "ml", Pod: pod, Name: "main"}, Unconfirmed: notListed}})
}

// TestConfirmFree has an operator confirm devices of the second GPU, whose 7g is split in MIG-first
// and MIG-other.
func TestConfirmFree(t *testing.T) {
	instance := gpu.Some(gpu.InstanceID(3))
	at7g := gpu.DeviceRef{GPU: gpu1, PlacementStart: gpu.Some(0), ProfileID: gpu.Some(uint32(0))}
	first := gpu.DeviceRef{MIG: "MIG-first"}
	other := gpu.DeviceRef{MIG: "MIG-other"}
	ofInstance := gpu.DeviceRef{Minor: gpu.Some(1), Instance: instance}

	gone := gpu.DeviceRef{GPU: gpu1, Instance: gpu.Some(gpu.InstanceID(9))}
	for name, tt := range map[string]struct {
		device  string
		missing []gpu.DeviceRef // by pods "0", "1", ...
		known   []gpu.DeviceRef // that are free already
		pods    string
		free    []gpu.DeviceRef
		refused string
	}{
		"GPU":                          {device: string(gpu1), missing: []gpu.DeviceRef{first, ofInstance, gone, {GPU: gpu1}, {GPU: gpu0}}, pods: "0123", free: []gpu.DeviceRef{{GPU: gpu1}}},
		"nothing known":                {device: string(gpu1), free: []gpu.DeviceRef{{GPU: gpu1}}},
		"compute instance":             {device: "MIG-first", missing: []gpu.DeviceRef{first, other}, pods: "0", free: []gpu.DeviceRef{first}},
		"last compute instance":        {device: "MIG-other", missing: []gpu.DeviceRef{other, {GPU: gpu1, Instance: instance, Compute: gpu.Some(gpu.ComputeID(1))}}, known: []gpu.DeviceRef{first}, pods: "01", free: []gpu.DeviceRef{other, at7g}},
		"GPU instance":                 {device: gpuInstanceName(gpu1, 3), missing: []gpu.DeviceRef{first, ofInstance}, pods: "01", free: []gpu.DeviceRef{first, other, at7g}},
		"held with its GPU instance":   {device: "MIG-first", missing: []gpu.DeviceRef{ofInstance}, refused: "confirm " + gpuInstanceName(gpu1, 3)},
		"held with its GPU":            {device: "MIG-first", missing: []gpu.DeviceRef{{GPU: gpu1}}, refused: "confirm " + string(gpu1)},
		"GPU instance, held with GPU":  {device: gpuInstanceName(gpu1, 3), missing: []gpu.DeviceRef{gone}, refused: "confirm " + string(gpu1)},
		"by a name that may be legacy": {device: "MIG-" + string(gpu1) + "/3/0", missing: []gpu.DeviceRef{first}, pods: "0", free: []gpu.DeviceRef{first}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.split()

			w.pods = gpu.Assignments{Incomplete: kubeletRestarted, Free: tt.known}
			for n, ref := range tt.missing {
				w.miss(string(rune('0'+n)), ref)
			}

			// In plan mode, too.
			got, err := w.engine(t, func(o *Options) { o.Apply = false }).ConfirmFree(t.Context(), everything, tt.device)
			if tt.refused != "" {
				p := isProblem(t, err, api.Busy)
				wantText(t, "p.Detail", p.Detail, "ml/0 (main)")
				cmptest.Equal(t, "strings.HasSuffix(p.Detail, tt.refused)", strings.HasSuffix(p.Detail, tt.refused), true)
				cmptest.Equal(t, "len(p.Blocking)", len(p.Blocking), 1)
				cmptest.Equal(t, "len(w.pods.Free)", len(w.pods.Free), 0)

				return
			}

			if err != nil {
				t.Fatal(err)
			}

			pods := ""
			for _, h := range got.Confirmed {
				pods += h.Pod
			}

			cmptest.Equal(t, "pods", pods, tt.pods)

			if got.Note == "" {
				t.Error("got.Note is empty")
			}

			cmptest.Equal(t, "len(w.pods.List)", len(w.pods.List), len(tt.missing)-len(tt.pods))

			if free := w.pods.Free[len(tt.known):]; !slices.Equal(free, tt.free) {
				t.Errorf("free %+v, want %+v", free, tt.free)
			}
		})
	}
}

// TestConfirmFreeIsOverruled: what is seen to use a device overrules an operator; a check that
// failed does not.
func TestConfirmFreeIsOverruled(t *testing.T) {
	for name, use := range uses() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine(t, nil)
			w.pods.Incomplete = kubeletRestarted
			use.make(w)

			for _, device := range []string{sevenG, gpuInstanceName(gpu1, 3), string(gpu1)} {
				_, err := e.ConfirmFree(t.Context(), everything, device)

				switch use.kind {
				case api.HoldPod, api.HoldProcess, api.HoldHandle:
					if p := isProblem(t, err, api.Busy); !strings.Contains(p.Detail, string(use.kind)) || len(w.pods.Free) > 0 {
						t.Errorf("%s: %+v, free %+v", device, p, w.pods.Free)
					}
				default:
					if err != nil {
						t.Errorf("%s: %v", device, err)
					}
				}
			}
		})
	}
}

// TestConfirmFreeBesideWatchers: a monitoring program does not use a GPU.
func TestConfirmFreeBesideWatchers(t *testing.T) {
	w := newWorld(t)
	w.pods.Incomplete = kubeletRestarted

	w.asking = func(gpu.UUID) ([]Handle, error) { return []Handle{{PID: 3, Command: "nvidia-persiste"}}, nil }
	if _, err := w.engine(t, nil).ConfirmFree(t.Context(), everything, string(gpu1)); err != nil {
		t.Error(err)
	}
}

// TestNothingToConfirm: if everything is known a confirmation is not kept: it would count when that
// has changed.
func TestNothingToConfirm(t *testing.T) {
	for name, change := range map[string]func(w *world, o *Options){
		"complete list":     func(*world, *Options) {},
		"no kubelet":        func(w *world, _ *Options) { w.podsErr = gpu.ErrNoKubelet },
		"no pods are known": func(_ *world, o *Options) { o.Assignments = nil },
	} {
		w := newWorld(t)

		got, err := w.engine(t, func(o *Options) { change(w, o) }).ConfirmFree(t.Context(), everything, sevenG)
		if err != nil {
			t.Fatal(name, err)
		}

		cmptest.Equal(t, name+": len(got.Confirmed)", len(got.Confirmed), 0)
		wantText(t, name+": got.Note", got.Note, "nothing to confirm")
		cmptest.Equal(t, name+": got.Device", got.Device, sevenG)
		cmptest.Equal(t, name+": len(w.pods.Free)", len(w.pods.Free), 0)
	}
}

func TestConfirmFreeIsRefused(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	w.pods.Incomplete = kubeletRestarted
	_, err := e.ConfirmFree(t.Context(), Actor{Rights: Rights{Read: true, Plan: true, Apply: true, Mode: true, TakeOver: true}}, sevenG)
	isProblem(t, err, api.Forbidden)

	for _, device := range []string{"", "MIG-gone", "GPU-gone", "1", "all", gpuInstanceName(gpu1, 8), gpuInstanceName(gpu1, 3) + "/0"} {
		_, err := e.ConfirmFree(t.Context(), everything, device)
		isProblem(t, err, api.NotFound)
	}

	w.miss("0", gpu.DeviceRef{Minor: gpu.Some(1)})
	w.gpu(gpu1).Minor = gpu.None[int]()

	_, err = e.ConfirmFree(t.Context(), everything, string(gpu1))
	if p := isProblem(t, err, api.Busy); !strings.Contains(p.Detail, "minor number") {
		t.Errorf("detail %q", p.Detail)
	}

	w.reading = func() error { return gpu.ErrNoDriver }
	_, err = e.ConfirmFree(t.Context(), everything, sevenG)
	isProblem(t, err, api.Unavailable)
}

// TestConfirmedPartsAreDestroyed: words on each compute instance are one on their GPU instance,
// also when these are destroyed.
func TestConfirmedPartsAreDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.split()
		w.pods.Incomplete = kubeletRestarted

		e := w.engine(t, nil)
		for _, device := range []string{"MIG-first", "MIG-other"} {
			_, err := e.Plan(t.Context(), everything, second(two3g))
			isProblem(t, err, api.Infeasible)

			if _, err := e.ConfirmFree(t.Context(), everything, device); err != nil {
				t.Fatal(err)
			}
		}

		if op := e.applied(t, second(two3g)); op.State != api.Succeeded {
			t.Errorf("operation is %s: %v", op.State, op.Error)
		}
	})
}

// TestConfirmFreeIsLogged: the log of the node has who confirmed what, if that counts.
func TestConfirmFreeIsLogged(t *testing.T) {
	w := newWorld(t)
	var out strings.Builder
	e := w.engine(t, func(o *Options) { o.Logger = log.NewLogfmtLogger(&out) })
	out.Reset()

	if _, err := e.ConfirmFree(t.Context(), everything, sevenG); err != nil || strings.Contains(out.String(), "confirmed") {
		t.Errorf("nothing to confirm: %v, %s", err, out.String())
	}

	w.miss("0", gpu.DeviceRef{MIG: sevenG})

	if _, err := e.ConfirmFree(t.Context(), Actor{Name: "uid:0", Rights: everything.Rights}, sevenG); err != nil {
		t.Fatal(err)
	}

	want := `level=info msg="operator confirmed that a device is free" device=` + sevenG + ` operator=uid:0 pods="ml/0 (main)"`
	if !strings.Contains(out.String(), want) {
		t.Errorf("log %q, want %q", out.String(), want)
	}
}

// TestHintsForUnconfirmedHolders: a claim that may be for administrative access is not settled by
// waiting for the kubelet.
func TestHintsForUnconfirmedHolders(t *testing.T) {
	const claim, list = "right get resourceclaims.resource.k8s.io", "lists its pods again"

	unsettledClaim := "its claim may be for administrative access, which holds nothing: the API server is not asked (--kubernetes.node-name)"
	for name, tt := range map[string]struct {
		reasons    []string
		says, lack []string
	}{
		"missing": {[]string{notListed}, []string{list}, []string{claim}},
		"claim":   {[]string{unsettledClaim}, []string{claim}, []string{list}},
		"both":    {[]string{unsettledClaim, notListed}, []string{list, claim}, nil},
	} {
		w := newWorld(t)
		for n, reason := range tt.reasons {
			w.miss(string(rune('0'+n)), gpu.DeviceRef{MIG: sevenG})
			w.pods.List[len(w.pods.List)-1].Holder.Unconfirmed = reason
		}

		_, err := w.engine(t, nil).Plan(t.Context(), everything, second(two3g))

		p := isProblem(t, err, api.Infeasible)
		for _, want := range append(tt.says, "migctl confirm-free") {
			if !strings.Contains(p.Detail, want) {
				t.Errorf("%s: %q lacks %q", name, p.Detail, want)
			}
		}

		for _, not := range tt.lack {
			if strings.Contains(p.Detail, not) {
				t.Errorf("%s: %q has %q", name, p.Detail, not)
			}
		}
	}
}

// TestConfirmFreeAfterRestart: what was known before a restart of the kubelet is not confirmed
// after it.
func TestConfirmFreeAfterRestart(t *testing.T) {
	w := newWorld(t)
	w.miss("0", gpu.DeviceRef{MIG: sevenG})

	_, err := w.engine(t, func(o *Options) { o.Assignments = restarting{kubelet{w}} }).ConfirmFree(t.Context(), everything, sevenG)
	if p := isProblem(t, err, api.Unavailable); !strings.Contains(p.Detail, "the kubelet has restarted meanwhile") || len(w.pods.List) == 0 {
		t.Errorf("%+v", p)
	}
}

// restarting is a kubelet that restarts after each list.
type restarting struct{ kubelet }

func (k restarting) List(ctx context.Context) (gpu.Assignments, error) {
	list, err := k.kubelet.List(ctx)
	k.pods.Epoch++

	return list, err
}
