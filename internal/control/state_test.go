package control

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestDamagedState: a document that cannot be read never proves that nothing was under way. If the
// GPUs are as the readable one says, nothing was; otherwise nothing is changed until the operator
// has accepted the current layout.
func TestDamagedState(t *testing.T) {
	for name, c := range map[string]struct {
		damage  func(w *world)
		blocked []gpu.UUID // named by the operation to accept; none: the state is good
	}{
		"newer slot, nothing done since": {func(w *world) { w.documents.OperationDamaged = true }, nil},
		"newer slot, GPU differs": {func(w *world) {
			w.documents.OperationDamaged = true
			w.takeOver()
		}, []gpu.UUID{gpu1}},
		"both slots": {func(w *world) { w.documents.OperationDamaged, w.documents.Operation = true, nil },
			[]gpu.UUID{gpu0, gpu1}},
		"no slot has a document": {loseOperation, []gpu.UUID{gpu0, gpu1}},
		"senseless operation":    {func(w *world) { w.documents.Operation = []byte(`{"operation":7}`) }, []gpu.UUID{gpu0, gpu1}},
		"history": {func(w *world) { w.documents.HistoryDamaged, w.documents.History = true, nil },
			[]gpu.UUID{gpu0, gpu1}},
		"senseless history": {func(w *world) { w.documents.History = []byte(`[]`) }, []gpu.UUID{gpu0, gpu1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _, _ := survives(t, api.Succeeded, func(*world) {})
				c.damage(w)
				was := w.drawLayout()
				calls := w.calls

				e := w.engine(t, nil)
				if len(c.blocked) == 0 {
					cmptest.Equal(t, "state of the engine", e.State(), idle)
					cmptest.Equal(t, "problem of a change", e.free(t, gpu1), nil)

					return
				}

				op := e.Operations().Operations[0]
				p := isProblem(t, e.free(t, gpu0), api.ReadOnly)
				cmptest.Equal(t, "state of the engine", e.State(), readOnly)
				wantText(t, "p.Detail", p.Detail, "migctl accept "+op.ID)

				var named []gpu.UUID
				for _, g := range op.GPUs {
					named = append(named, g.GPU)
				}

				cmptest.Equal(t, "op.Verb", op.Verb, api.VerbRecovery)
				cmptest.Equal(t, "state of the operation", op.State, api.Degraded)
				cmptest.Equal(t, "named", named, c.blocked)
				_, err := e.Rollback(t.Context(), everything, op.ID)
				isProblem(t, err, api.ReadOnly)
				e.repairStore() // it does not go away by itself, nor with a restart

				if next := w.engine(t, nil); e.State() != readOnly || next.State() != readOnly {
					t.Errorf("state %s, after a restart %s", e.State(), next.State())
				}

				if got, err := e.Accept(t.Context(), everything, op.ID); err != nil || got.State != api.Accepted {
					t.Fatalf("accepted: %+v, %v", got, err)
				}

				w.documents.OperationDamaged = false
				w.documents.HistoryDamaged = false

				w.unreadable = nil
				for _, e := range []*Engine{e, w.engine(t, nil)} {
					cmptest.Equal(t, "state of the engine", e.State(), idle)
					cmptest.Equal(t, "layout", w.drawLayout(), was)
					cmptest.Equal(t, "changes asked of the driver", w.calls, calls)
				}
			})
		})
	}
}

// TestLostFirstOperation: the history has no operation yet, the slots lose the first one after its
// first step, and the exporter does not take that for a state folder without operations.
func TestLostFirstOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crashed(t, second(two3g), 1)
		was := w.drawLayout()
		loseOperation(w)
		e := w.engine(t, nil)
		cmptest.Equal(t, "state of the engine", e.State(), readOnly)
		p := isProblem(t, e.free(t, gpu1), api.ReadOnly)
		wantText(t, "p.Detail", p.Detail, "migctl accept "+e.Operations().Operations[0].ID)
		cmptest.Equal(t, "layout", w.drawLayout(), was)
	})
}

// TestSlotsMustBeMarked: while the history cannot say that the slots are used, no step begins.
func TestSlotsMustBeMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.saving = func(_ int, document []byte) error {
			if strings.Contains(string(document), `"slotsUsed":true`) {
				return syscall.ENOSPC
			}

			return nil
		}

		if _, err := e.start(t, second(two3g)); err != nil {
			t.Fatal(err)
		}

		calls := w.calls
		e.drive(t)
		cmptest.Equal(t, "changes asked of the driver", w.calls, calls)
		cmptest.Equal(t, "state of the engine", e.State(), readOnly)

		w.saving = nil
		e.repairStore()
		e.retryDegraded(t.Context())
		e.drive(t)
		e.applied(t, second(two3g))
		cmptest.Equal(t, "slots are marked", strings.Contains(string(w.documents.History), `"slotsUsed":true`), true)
	})
}

// loseOperation empties both slots, and has a GPU that cannot be read.
func loseOperation(w *world) {
	w.documents.Operation = nil
	w.unreadable = map[gpu.UUID]error{gpu1: gpu.ErrTimeout}
}

// TestDamageInMidOperation: the newer document of an operation under way is torn. If the GPUs are
// as the older one says, the operation is rolled back; the crash was between two writes.
func TestDamageInMidOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		var older []byte
		w.saving = func(_ int, document []byte) error {
			w.dead = w.calls == 5
			older = w.documents.Operation

			return nil
		}

		if _, err := e.start(t, mixed()); err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		w.revive()
		w.saving = nil
		w.documents.Operation = older
		w.documents.OperationDamaged = true
		w.sound(t, w.engine(t, nil), mixedBefore, mixedBefore)
	})
}

// TestStateFolderComesLater: a folder that cannot be used at the start makes control read-only, and
// what the last process left is finished once it can be.
func TestStateFolderComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.after = func(_ int, s mig.Step) error { w.dead = s.Op == mig.DestroyInstance; return nil }

		if _, err := e.start(t, second(two3g)); err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		w.revive()
		w.after = nil
		w.opening = syscall.EROFS
		next := w.engine(t, nil)
		isProblem(t, next.free(t, gpu0), api.ReadOnly)
		cmptest.Equal(t, "state of the next engine", next.State(), readOnly)
		wantText(t, "next.Reason()", next.Reason(), "cannot be written")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- next.Run(ctx) }()
		time.Sleep(time.Minute)
		w.mu.Lock()
		w.opening = nil
		w.mu.Unlock()
		time.Sleep(time.Minute)
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}

		w.sound(t, next, mixedBefore, mixedBefore)
	})
}

// TestStateFolderReplaced: the folder is replaced under the running program in mid-operation. The
// operation goes on in the new one, or is left degraded if another program uses it.
func TestStateFolderReplaced(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine(t, nil)
			replaced := false
			w.saving = func(n int, _ []byte) error {
				if n >= 8 && !replaced {
					replaced = true

					w.documents = Documents{}
					if foreign {
						w.opening = ErrStateForeign
					}

					return ErrStateReplaced
				}

				if w.opening != nil {
					return os.ErrClosed
				}

				return nil
			}

			op := e.applied(t, mixed())
			if !foreign {
				cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
				cmptest.Equal(t, "layout", w.drawLayout(), mixedAfter)
				cmptest.Equal(t, "state of the engine", e.State(), idle)

				return
			}

			cmptest.Equal(t, "state of the operation", op.State, api.Degraded)
			cmptest.Equal(t, "state of the engine", e.State(), readOnly)
			wantText(t, "e.Reason()", e.Reason(), "by another program")
		})
	}
}

// TestReserveIsEnough: no document of an operation, its rollback included, is larger than what was
// reserved for it.
func TestReserveIsEnough(t *testing.T) {
	for name, begin := range representative() {
		synctest.Test(t, func(t *testing.T) {
			w, e, _, _ := prepared(t, name)
			room := &roomyFolder{folder: folder{w}}
			e.o.Store = room

			w.before = func(n int, s mig.Step) error {
				if n == 6 {
					return errors.Join(gpu.ErrDriver, errors.New(strings.Repeat("long ", 100)))
				}

				return nil
			}
			if err := begin(t, w, e); err != nil {
				t.Fatal(err)
			}

			e.drive(t)

			if room.reserved == 0 || room.largest > (room.reserved-reserveBase)/2 {
				t.Errorf("%s: a document has %d bytes, reserved were %d", name, room.largest, room.reserved)
			}
		})
	}
}

type roomyFolder struct {
	folder
	reserved, largest int
}

func (r *roomyFolder) Reserve(size int) error { r.reserved = size; return nil }

func (r *roomyFolder) SaveOperation(document []byte) error {
	r.largest = max(r.largest, len(document))
	return r.folder.SaveOperation(document)
}

// TestSettlingBlocksItsGPUsOnly: while one operation waits for the kubelet, another GPU can be
// changed, a restart goes on waiting, and an operator can end the wait.
func TestSettlingBlocksItsGPUsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true
		e := w.engine(t, func(o *Options) { o.SettleTimeout = time.Hour })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()

		first, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Minute)

		if got := e.now(t, first.ID); got.State != api.Settling || e.Operations().Blocked[gpu1] != first.ID {
			t.Fatalf("operation is %s, blocked %v", got.State, e.Operations().Blocked)
		}

		p := isProblem(t, e.free(t, gpu1), api.InProgress)
		cmptest.Equal(t, "operation of the problem", p.Operation, first.ID)

		other, err := e.start(t,
			api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"0"},
				Devices: map[string]api.DeviceRequest{"3g.20gb": {Count: 1}}}})
		if err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Minute)
		// it has created no device to wait for
		if got := e.now(t, other.ID); got.State != api.Succeeded || w.cordonedBy != "me" {
			t.Errorf("the other operation is %s, cordoned by %q", got.State, w.cordonedBy)
		}

		_, err = e.EndSettling(t.Context(), Actor{Name: "uid:7"}, first.ID)
		isProblem(t, err, api.Forbidden)

		if _, err := e.EndSettling(t.Context(), everything, first.ID); err != nil {
			t.Error(err)
		}

		// Asked again, it is the same, or the operation has ended by now.
		if _, err := e.EndSettling(t.Context(), everything, first.ID); err != nil {
			isProblem(t, err, api.BadSpec)
		}

		time.Sleep(2 * time.Second)
		got := e.now(t, first.ID)
		cmptest.Equal(t, "state of the operation", got.State, api.Succeeded)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
		cmptest.Equal(t, "state of the engine", e.State(), idle)
		cmptest.Equal(t, "len(e.Operations().Blocked)", len(e.Operations().Blocked), 0)
		wantText(t, "got.Warnings", strings.Join(got.Warnings, "\n"), "uid:0 has ended the wait")
		_, err = e.EndSettling(t.Context(), everything, first.ID)
		isProblem(t, err, api.BadSpec)
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}

		w.sound(t, w.engine(t, nil), w.drawLayout(), w.drawLayout())
	})
}

// TestStateFolderReplacedWhileIdle: the folder vanishes between two operations. All documents are
// saved in the new one, so that the next start finds nothing missing.
func TestStateFolderReplacedWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		first := e.applied(t, mixed())
		w.documents = Documents{}
		w.saving = func(int, []byte) error { w.saving = nil; return ErrStateReplaced }

		if err := e.saveHistory(); err != nil {
			t.Fatal(err)
		}

		next := w.engine(t, nil)
		cmptest.Equal(t, "state of the next engine", next.State(), idle)
		cmptest.Equal(t, "its operation", next.Operations().Operations[0].ID, first.ID)
	})
}

// TestDocumentsAreReadable: what is on disk can be read by a person and by later versions: JSON
// with names.
func TestDocumentsAreReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := survives(t, api.Succeeded, func(*world) {})
		var h history

		err := json.Unmarshal(w.documents.History, &h)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "len(h.Operations)", len(h.Operations), 1)
		cmptest.Equal(t, "len(h.Layouts)", len(h.Layouts), 2)
		cmptest.Equal(t, "h.Restored", h.Restored, "boot-1")

		again, err := json.Marshal(h)
		if err != nil || string(again) != string(w.documents.History) {
			t.Errorf("%v\n%s\nread and written:\n%s", err, w.documents.History, again)
		}
	})
}
