package promtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
)

// api serves an engine as Prometheus' HTTP API does, as far as migctl fleet asks it.
type api struct {
	engine  *Prometheus
	promql  *promql.Engine
	queries atomic.Int64
	tooMuch atomic.Int64
}

// serveAPI serves an engine until the test ends.
func serveAPI(t *testing.T, e *Prometheus) (*api, string) {
	t.Helper()
	a := &api{engine: e, promql: e.promql}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)

	return a, server.URL
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.queries.Add(1)

	q, err := a.query(r)
	if err != nil {
		writeAnswer(w, http.StatusBadRequest,
			map[string]any{"status": "error", "errorType": "bad_data", "error": err.Error()})

		return
	}
	defer q.Close()

	result := q.Exec(r.Context())
	if result.Err != nil {
		if strings.Contains(result.Err.Error(), "too many samples") {
			a.tooMuch.Add(1)
		}

		writeAnswer(w, http.StatusUnprocessableEntity,
			map[string]any{"status": "error", "errorType": "execution", "error": result.Err.Error()})

		return
	}

	writeAnswer(w, http.StatusOK, map[string]any{
		"status": "success", "data": map[string]any{"resultType": result.Value.Type(), "result": result.Value},
	})
}

func writeAnswer(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(document)
}

func (a *api) query(r *http.Request) (promql.Query, error) {
	expr := r.FormValue("query")
	if r.URL.Path == "/api/v1/query" {
		at, err := apiTime(r.FormValue("time"))
		if err != nil {
			return nil, err
		}

		return a.promql.NewInstantQuery(r.Context(), a.engine.db, nil, expr, at)
	}

	if r.URL.Path != "/api/v1/query_range" {
		return nil, fmt.Errorf("there is no %s", r.URL.Path)
	}

	from, err := apiTime(r.FormValue("start"))
	if err != nil {
		return nil, err
	}

	to, err := apiTime(r.FormValue("end"))
	if err != nil {
		return nil, err
	}

	step, err := strconv.ParseFloat(r.FormValue("step"), 64)
	if err != nil {
		return nil, err
	}

	interval := time.Duration(step * float64(time.Second))
	if !from.Truncate(interval).Equal(from) || !to.Truncate(interval).Equal(to) {
		return nil, fmt.Errorf("%s to %s are no multiples of %s: VictoriaMetrics and Thanos would ask for others", from, to, interval)
	}

	return a.promql.NewRangeQuery(r.Context(), a.engine.db, nil, expr, from, to, interval)
}

func apiTime(text string) (time.Time, error) {
	seconds, err := strconv.ParseFloat(text, 64)
	return time.UnixMilli(int64(seconds * 1000)), err
}
