package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

const planBody = `{"spec":{"demand":[{"sms":1,"count":1}]}}`

// Callers take turns, however many calls each has waiting.
func TestPlansTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newPlanQueue(2, 4)
		started := make(chan *planTicket)

		wait := func(name string) {
			ticket := q.enqueue(name)
			if ticket == nil {
				t.Fatalf("%s has no place", name)
			}

			go func() {
				if ticket.waitTurn(t.Context()) == nil {
					started <- ticket
				}
			}()
			synctest.Wait()
		}
		for range 4 {
			wait("a")
		}

		if q.enqueue("a") != nil {
			t.Error("a caller has five places, want four")
		}

		for _, name := range []string{"b", "b", "c", "c"} {
			wait(name)
		}

		var order []string

		running := []*planTicket{<-started, <-started}
		for len(running) > 0 {
			ticket := running[0]
			order = append(order, ticket.name)

			if q.running > 2 {
				t.Errorf("%d plans are computed, want 2 at most", q.running)
			}

			if len(running) == 2 && ticket.name == running[1].name {
				t.Errorf("two plans of %s are computed, want one of a caller", ticket.name)
			}

			running = running[1:]
			ticket.release()
			synctest.Wait()

			select {
			case next := <-started:
				running = append(running, next)
			default:
			}
		}

		if left := [3]int{q.running, len(q.callers), len(q.turns)}; left != [3]int{} {
			t.Errorf("running plans, callers and turns that are left: %d", left)
		}

		for _, name := range []string{"a", "b", "c"} {
			if !slices.Contains(order[:3], name) {
				t.Errorf("order %v: %s is not among the first three", order, name)
			}
		}

		if len(order) != 8 {
			t.Errorf("order %v, want all eight", order)
		}
	})
}

// blockPlans lets the backend's plans wait for a value; it returns that channel and one that gets
// the name of each caller whose plan is being computed.
func (r *rig) blockPlans() (finish chan struct{}, computing chan string) {
	finish, computing = make(chan struct{}), make(chan string, 64)
	r.backend.planning = func(ctx context.Context, by control.Actor) error {
		computing <- by.Name

		select {
		case <-finish:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	return finish, computing
}

// post asks for a plan as a caller, until ctx ends.
func (r *rig) post(ctx context.Context, name string) <-chan *httptest.ResponseRecorder {
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		d := fixedAuthenticator{identity{name: name, method: "token", rights: control.Rights{Plan: true}}}
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/api/v1/plans", strings.NewReader(planBody))
		request.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.newHandler(d).ServeHTTP(w, request)
		answer <- w
	}()

	return answer
}

// 36 calls of one token leave a slot to every other caller, and are refused rather than kept.
func TestOneCallerDoesNotHoldThePlanner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		finish, computing := r.blockPlans()

		var flood []<-chan *httptest.ResponseRecorder
		for range 36 {
			flood = append(flood, r.post(t.Context(), "scheduler"))
		}

		synctest.Wait()

		if len(computing) != 1 || <-computing != "scheduler" {
			t.Errorf("%d plans of one caller are computed at once, want one", len(computing)+1)
		}

		operator := r.post(t.Context(), "operator")
		synctest.Wait()

		if len(computing) != 1 || <-computing != "operator" {
			t.Error("the plan of another caller waits for those of the first")
		}

		third := r.post(t.Context(), "third")
		synctest.Wait()

		if len(computing) != 0 {
			t.Error("three plans are computed at once")
		}

		close(finish)

		for name, answer := range map[string]<-chan *httptest.ResponseRecorder{"operator": operator, "third": third} {
			if w := <-answer; w.Code != 201 {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}

		codes := map[int]int{}

		for _, answer := range flood {
			w := <-answer
			if codes[w.Code]++; w.Code == 429 && w.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}

		if codes[201] != 4 || codes[429] != 32 {
			t.Errorf("answers by status: %v, want 4 plans and 32 refusals", codes)
		}
	})
}

// A call whose client has gone, or that has waited for too long, is not computed.
func TestAbandonedPlansAreNotComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		finish, computing := r.blockPlans()
		first := r.post(t.Context(), "a")
		second := r.post(t.Context(), "b")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		gone := r.post(ctx, "c")
		late := r.post(t.Context(), "d")
		synctest.Wait()
		cancel()

		if w := <-gone; w.Code != 503 {
			t.Errorf("the client has gone: %d %s", w.Code, w.Body)
		}

		w := <-late
		if wantProblem(t, w, 503, api.Unavailable); w.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}

		close(finish)
		<-first
		<-second
		synctest.Wait()

		if n := len(computing); n != 2 {
			t.Errorf("%d plans were computed, want those of the two that waited", n)
		}
	})
}

// A client that goes away ends the computation.
func TestComputedPlanEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		_, computing := r.blockPlans()
		ctx, cancel := context.WithCancel(t.Context())
		answer := r.post(ctx, "a")
		synctest.Wait()
		cancel()

		if w := <-answer; w.Code != 503 || len(computing) != 1 {
			t.Errorf("%d, %d plans", w.Code, len(computing))
		}

		if len(r.plans.callers) != 0 || r.plans.running != 0 {
			t.Error("the slot is still taken")
		}
	})
}
