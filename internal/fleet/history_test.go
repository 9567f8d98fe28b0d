package fleet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// answerSeries answers range queries with the series of the first key that the query contains: JSON
// of values.
func answerSeries(series map[string][]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		kind := "vector"
		rows := []string(nil)

		if r.URL.Path == "/api/v1/query_range" {
			kind = "matrix"

			for key, values := range series {
				if !strings.Contains(r.FormValue("query"), key) {
					continue
				}

				for i, v := range values {
					rows = append(rows, fmt.Sprintf(`{"metric":{"uuid":"GPU-1","instance":"%d"},"values":%s}`, i, v))
				}
			}
		}

		body := fmt.Sprintf(`{"status":"success","data":{"resultType":%q,"result":[%s]}}`, kind, strings.Join(rows, ","))
		says(200, "application/json", body)(w, r)
	}
}

// TestMeans: a mean weighs all samples of a GPU alike, and utilization takes the place of busy time
// step by step.
func TestMeans(t *testing.T) {
	o := weekly()
	o.Window = time.Hour
	d := native()
	at := func(step int) int64 { return o.End.Add(time.Duration(step-12) * 5 * time.Minute).Unix() }
	client, _ := clientOf(t, serve(t, answerSeries(map[string][]string{
		// the exporter was replaced in the second step: one sample was of the first, four of the
		// other
		"avg_over_time(nvidia_gpu_graphics_engine": {
			fmt.Sprintf(`[[%d,"0.5"],[%d,"1"]]`, at(1), at(2)), fmt.Sprintf(`[[%d,"0.1"],[%d,"0.1"]]`, at(2), at(3)),
		},
		"sum by (uuid) (sum_over_time(nvidia_gpu_graphics_engine": {
			fmt.Sprintf(`[[%d,"0.5"],[%d,"0.28"],[%d,"0.1"]]`, at(1), at(2), at(3)),
		},
		"avg_over_time(nvidia_gpu_utilization": {fmt.Sprintf(`[[%d,"0.9"],[%d,"1.2"],[%d,"-1"]]`, at(3), at(4), at(5))},
		"avg_over_time(nvidia_gpu_sm_activity": {fmt.Sprintf(`[[%d,"NaN"],[%d,"0.25"],[%d,"7"]]`, at(1), at(2), at(13))},
	})))
	s := &analysis{client: client, options: o, end: o.End}
	g := &fleetGPU{uuid: "GPU-1", dialect: &d, history: newHistory(o.End.Add(-o.Window), o.Window)}
	q := &querier{analysis: s, ctx: t.Context(), dialect: &d, gpus: map[string]*history{g.uuid: g.history}}
	q.queryMeans([]*fleetGPU{g})

	if q.err != nil {
		t.Fatal(q.err)
	}

	cmptest.Equal(t, "busy time", g.history.busy[:5], []float32{0.5, 0.28, 0.1, 1, 0})
	cmptest.Equal(t, "SM activity", g.history.sms[1], float32(0.25))

	for i, v := range g.history.busy[5:] {
		if !isNaN(v) {
			t.Errorf("busy time of step %d is %v", 5+i, v)
		}
	}

	if !isNaN(g.history.sms[0]) || !isNaN(g.history.sms[11]) {
		t.Errorf("SM activity: %v", g.history.sms)
	}
}

// TestMediaEngines: engines count as read if nearly all scrapes have them.
func TestMediaEngines(t *testing.T) {
	for _, c := range []struct {
		about      string
		most, seen float64
		want       string
		notChecked bool
	}{
		{about: "always read", seen: 1, want: "1g.10gb"},
		{about: "read for half of the time", seen: 0.5, want: "1g.10gb", notChecked: true},
		{about: "never read", want: "1g.10gb", notChecked: true},
		{about: "all used", most: 0.1, seen: 1, want: "1g.10gb+me"},
	} {
		o := weekly()

		d := narrow(o)
		for _, engine := range []string{"decoder", "jpeg", "ofa"} { // an H100 has no encoder
			d.history.useEngines(engine, c.most, c.most, 1)
			read := &d.history.media[engine].read
			read.complete = false

			for at := range int(c.seen * float64(len(d.history.held))) {
				read.add(at)
			}
		}

		g := judgeOne(analysisOf(o), d)
		if g.Profile != c.want || g.NotChecked != c.notChecked {
			t.Errorf("%s: %s, not checked: %v", c.about, g.Profile, g.NotChecked)
		}
	}
}
