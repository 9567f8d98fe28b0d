package fleet

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestServersOfAHistory: what a pod's server says is the need of what held the GPU only if every
// pod that did has a server of that kind, of which the weights are known.
func TestServersOfAHistory(t *testing.T) {
	o := weekly()
	const gib = 1 << 30
	vllm := func(weights float64) *advise.ServerHistory {
		return &advise.ServerHistory{Kind: gpu.ServerVLLM, CacheUse: 0.05, CacheHours: 168, Weights: weights * gib}
	}
	sglang := vllm(14)
	sglang.Kind = gpu.ServerSGLang
	unclear := vllm(14)
	unclear.Kind = ""

	const unknown = "keep preallocated "
	for about, c := range map[string]struct {
		servers map[string]*advise.ServerHistory // by pod; nil of one that is no server
		job     bool                             // a batch job held the GPU, too
		want    string
		says    string
	}{
		"no server":               {map[string]*advise.ServerHistory{"a": nil}, false, "keep memory ", ""},
		"one":                     {map[string]*advise.ServerHistory{"a": vllm(14)}, false, "slice  3g.40gb", "vLLM says of itself"},
		"two":                     {map[string]*advise.ServerHistory{"a": vllm(14), "b": vllm(10)}, false, "slice  3g.40gb", "vLLM says of itself"},
		"a pod that is none":      {map[string]*advise.ServerHistory{"a": vllm(14), "b": nil}, false, unknown, "what the others need"},
		"a batch job":             {map[string]*advise.ServerHistory{"a": vllm(14)}, true, unknown, "what the others need"},
		"two kinds":               {map[string]*advise.ServerHistory{"a": vllm(14), "b": sglang}, false, unknown, "what the others need"},
		"two in a pod":            {map[string]*advise.ServerHistory{"a": unclear}, false, unknown, ""},
		"weights of one of three": {map[string]*advise.ServerHistory{"a": vllm(14), "b": vllm(0), "c": vllm(14)}, false, unknown, "model-memory"},
	} {
		d := narrow(o)
		s := analysisOf(o)

		for i := range d.history.memory {
			d.history.memory[i] = 60 * gib
		}

		d.history.memory[0] = gib // the framework of what is no server takes memory as it needs it
		s.servers = map[podKey]*advise.ServerHistory{}

		all := heldByHolder{}
		for pod, server := range c.servers {
			all.add(d.history, model.Metric{"namespace": "ml", "pod": model.LabelValue(pod)})(0, 1)

			if server != nil {
				s.servers[podKey{"a", "ml", pod}] = server
			}
		}

		if c.job {
			all.add(d.history, model.Metric{"hpc_job": "4711"})(0, 1)
		}

		answer := judgeOne(s, d)
		cmptest.Equal(t, about, fmt.Sprintf("%s %s %s", answer.Action, answer.Reason, answer.Profile), c.want)
		cmptest.HasTexts(t, answer.Explanation, c.says)
	}
}

// TestTwoServersInAPod: of two servers in a pod we do not know which one holds the cache.
func TestTwoServersInAPod(t *testing.T) {
	s := analysisOf(weekly())
	s.options.ClusterLabel = "cluster"
	s.servers = map[podKey]*advise.ServerHistory{}
	row := &model.Sample{Metric: model.Metric{"cluster": "a", "namespace": "ml", "pod": "p"}}
	s.addServer(gpu.ServerVLLM, row)
	s.addServer(gpu.ServerVLLM, row)
	cmptest.Equal(t, "kind", s.servers[podKey{"a", "ml", "p"}].Kind, gpu.ServerVLLM)
	s.addServer(gpu.ServerTGI, row)
	s.addServer(gpu.ServerVLLM, row)
	cmptest.Equal(t, "kind of two", s.servers[podKey{"a", "ml", "p"}].Kind, "")
}

// TestSilentServersOfAHistory: what a server says counts only if it has said it in nearly all steps in which
// its pod held the GPU.
func TestSilentServersOfAHistory(t *testing.T) {
	o := weekly()
	const gib = 1 << 30
	const day = int(24 * time.Hour / step)

	for about, c := range map[string]struct {
		pods  map[string][2]float64 // days that each holds the GPU, and for which its server is known
		named int                   // days at the begin in which the pods have names; 0: all
		want  string
		says  string
	}{
		"always":                {pods: map[string][2]float64{"a": {7, 7}}, want: "slice  3g.40gb"},
		"silent 6 h of 7 days":  {pods: map[string][2]float64{"a": {7, 6.75}}, want: "slice  3g.40gb"},
		"silent 9 h of 7 days":  {pods: map[string][2]float64{"a": {7, 6.6}}, want: "keep preallocated ", says: "for 5.71 % of the time"},
		"a quarter of each day": {pods: map[string][2]float64{"a": {7, 1.75}}, want: "keep preallocated ", says: "known for 42.0 h"},
		"two follow each other": {pods: map[string][2]float64{"a": {3, 3}, "b": {4, 4}}, want: "slice  3g.40gb"},
		"one for half a day":    {pods: map[string][2]float64{"a": {6, 6}, "b": {1, 0.5}}, want: "keep preallocated ", says: "50 % of the time"},
		"none has a name later": {pods: map[string][2]float64{"a": {7, 5}}, named: 5, want: "keep preallocated "},
		"known, and no name":    {pods: map[string][2]float64{"a": {7, 7}}, named: 5, want: "slice  3g.40gb"},
	} {
		d := narrow(o)
		s := analysisOf(o)

		for i := range d.history.memory {
			d.history.memory[i] = 60 * gib
		}

		s.servers = map[podKey]*advise.ServerHistory{}
		all := heldByHolder{}
		at := 0

		for _, name := range []string{"a", "b"} {
			days := c.pods[name]
			s.servers[podKey{"a", "ml", name}] = &advise.ServerHistory{Kind: gpu.ServerVLLM, CacheUse: 0.05,
				CacheHours: 24 * days[1], Weights: 14 * gib}

			for end := at + int(days[0])*day; at < end; at++ {
				if c.named == 0 || at < c.named*day {
					all.add(d.history, model.Metric{"namespace": "ml", "pod": model.LabelValue(name)})(at, 1)
				}
			}
		}

		answer := judgeOne(s, d)
		cmptest.Equal(t, about+": "+answer.Explanation, fmt.Sprintf("%s %s %s", answer.Action, answer.Reason, answer.Profile), c.want)
		cmptest.HasTexts(t, answer.Explanation, c.says)
	}
}

// The queries about servers.
const (
	queryPods    = "pods"
	queryWeights = "weights"
	queryFigures = "figures"
)

// askedServers is a query about servers: of which sort it is, the hours before the end of the window at
// which its part of it ends, and the length of that in hours.
type askedServers struct {
	sort        string
	kind        gpu.ServerKind // of figures
	from, hours float64
}

// serversAt answers queries about servers, vLLM in pod "p" and SGLang in "s", as a Prometheus that refuses
// those which refuses returns true for. It returns the queries, too.
func serversAt(t *testing.T, o Options, refuses func(q askedServers) bool) (*analysis, []askedServers) {
	t.Helper()

	var asked []askedServers

	handler := func(w http.ResponseWriter, r *http.Request) {
		q := readServerQuery(o, r)
		asked = append(asked, q)

		row := func(pod, label, value string, v float64) string {
			return fmt.Sprintf(`{"metric":{"cluster":"a","namespace":"ml","pod":"%s","%s":"%s"},"value":[1,"%g"]}`, pod, label,
				value, v)
		}
		pod := map[gpu.ServerKind]string{gpu.ServerVLLM: "p", gpu.ServerSGLang: "s"}[q.kind]
		rows := []string{row(pod, "figure", figureCache, 0.04), row(pod, "figure", figureSteps, q.hours*12)}

		switch q.sort {
		case queryPods:
			rows = []string{row("p", "kind", "vllm", 1), row("s", "kind", "sglang", 1)}
		case queryWeights:
			rows = []string{row("p", weightsLabel, "14Gi", 1), row("s", formerWeightsLabel, "14Gi", 1)}
		}

		if refuses(q) {
			problem(422, "execution", "query processing would load too many samples into memory")(w, r)
			return
		}

		says(200, "application/json", `{"status":"success","data":{"resultType":"vector","result":[`+
			strings.Join(rows, ",")+`]}}`)(w, r)
	}

	a := analysisOf(o)
	a.client, _ = clientOf(t, serve(t, handler))

	if err := a.queryServers(t.Context()); err != nil {
		t.Fatal(err)
	}

	return a, asked
}

func readServerQuery(o Options, r *http.Request) askedServers {
	query := r.FormValue("query")
	at, _ := strconv.ParseFloat(r.FormValue("time"), 64)
	length := query[strings.Index(query, "[")+1 : strings.Index(query, "]")]
	window, _ := model.ParseDuration(length)
	q := askedServers{from: o.End.Sub(time.Unix(int64(at), 0)).Hours(), hours: time.Duration(window).Hours()}

	switch {
	case strings.Contains(query, "present_over_time"):
		q.sort = queryPods
	case strings.Contains(query, "kube_pod_annotations"):
		q.sort = queryWeights
	default:
		q.sort = queryFigures
		q.kind = gpu.ServerKind(query[strings.Index(query, "over_time(")+len("over_time(") : strings.Index(query, ":")])
	}

	return q
}

// TestLargestWeightsCount: if the annotation of a pod has changed, its values come without their times, in
// one answer or in those of several parts of the window.
func TestLargestWeightsCount(t *testing.T) {
	o := weekly()
	const row = `{"metric":{"cluster":"a","namespace":"ml","pod":"p","%s":"%s"},"value":[1,"1"]}`

	for _, label := range []string{weightsLabel, formerWeightsLabel} {
		for _, parts := range [][]string{ // by time, the latest first
			{"14Gi 28Gi"}, {"28Gi 14Gi"}, {"14Gi", "28Gi"}, {"28Gi", "14Gi"}, {"none 28Gi"},
		} {
			longest := o.Window.Hours() / float64(len(parts))

			a := analysisOf(o)
			a.serverPart = o.Window
			a.servers = map[podKey]*advise.ServerHistory{{"a", "ml", "p"}: {}}
			a.client, _ = clientOf(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				q := readServerQuery(o, r)
				if q.hours > longest {
					problem(422, "execution", "query processing would load too many samples into memory")(w, r)
					return
				}

				var rows []string
				for _, value := range strings.Fields(parts[int(q.from/longest)]) {
					rows = append(rows, fmt.Sprintf(row, label, value))
				}

				says(200, "application/json", `{"status":"success","data":{"resultType":"vector","result":[`+
					strings.Join(rows, ",")+`]}}`)(w, r)
			}))

			if err := a.queryWeights(t.Context()); err != nil {
				t.Fatal(err)
			}

			got := a.servers[podKey{"a", "ml", "p"}].Weights
			cmptest.Equal(t, fmt.Sprint(label, parts), got, 28*float64(1<<30))
		}
	}
}

// TestRefusedServers: a day of servers that is too much for Prometheus is asked in parts, and what it still
// refuses is unknown.
func TestRefusedServers(t *testing.T) {
	o := weekly()

	for about, c := range map[string]struct {
		refuses func(from, hours float64) bool
		hours   float64
		refused bool
	}{
		"none":              {func(_, _ float64) bool { return false }, 168, false},
		"days":              {func(_, hours float64) bool { return hours > 12 }, 168, false},
		"one day":           {func(from, hours float64) bool { return from == 72 && hours > 3 }, 168, false},
		"one day, however":  {func(from, _ float64) bool { return from == 72 }, 72, true},
		"all but the last":  {func(from, _ float64) bool { return from > 0 }, 24, true},
		"the latest, large": {func(from, hours float64) bool { return from == 0 && hours > 2 }, 168, false},
	} {
		a, _ := serversAt(t, o, func(q askedServers) bool {
			return q.kind == gpu.ServerVLLM && c.refuses(q.from, q.hours)
		})
		cmptest.Equal(t, about, a.servers[podKey{"a", "ml", "p"}].CacheHours, c.hours)
		cmptest.Equal(t, about+": refused", a.refused.kinds[gpu.ServerVLLM], c.refused)
		cmptest.Equal(t, about+": another kind", a.servers[podKey{"a", "ml", "s"}].CacheHours, 168)
		cmptest.Equal(t, about+": refused of another kind", a.refused.kinds[gpu.ServerSGLang], false)
	}
}

// TestRefusalsConcernServers: what Prometheus refuses to say about servers makes the need of these unknown.
// Other pods are judged as always, unless it has refused to say which pods have servers.
func TestRefusalsConcernServers(t *testing.T) {
	o := weekly()
	const gib = 1 << 30

	type answers struct{ vllm, sglang, other string }

	const (
		reserved = "keep preallocated"
		slice    = "slice "
	)

	for about, c := range map[string]struct {
		refuses func(q askedServers) bool
		want    answers
		says    string // of the GPU of vLLM
		note    string
	}{
		"nothing": {func(askedServers) bool { return false }, answers{slice, slice, slice}, "vLLM says of itself", ""},
		"what vLLM reports": {
			func(q askedServers) bool { return q.kind == gpu.ServerVLLM },
			answers{reserved, slice, slice}, "refused to answer what its inference server reported", "of the kind vllm report",
		},
		"weights": {
			func(q askedServers) bool { return q.sort == queryWeights },
			answers{reserved, reserved, slice}, "refused to answer which annotations", "which annotations of pods",
		},
		"earlier weights": {
			func(q askedServers) bool { return q.sort == queryWeights && q.from+q.hours > 48 },
			answers{slice, slice, slice}, "vLLM says of itself", "which annotations of pods",
		},
		"earlier servers": {
			func(q askedServers) bool { return q.sort == queryPods && q.from+q.hours > 48 },
			answers{slice, slice, slice + " provisional"}, "vLLM says of itself", "which pods have inference servers",
		},
		"all": {
			func(askedServers) bool { return true },
			answers{reserved, reserved, slice + " provisional"}, "", "which pods have inference servers",
		},
	} {
		a, asked := serversAt(t, o, c.refuses)
		if len(asked) > 50 {
			t.Errorf("%s: %d queries", about, len(asked))
		}

		judge := func(pod string, used float64) (string, GPU) {
			d := narrow(o)
			for i := range d.history.memory {
				d.history.memory[i] = used * gib
			}

			heldByHolder{}.add(d.history, model.Metric{"namespace": "ml", "pod": model.LabelValue(pod)})(0, 1)
			answer := judgeOne(a, d)
			a.gpus = []*fleetGPU{d}

			text := fmt.Sprintf("%s %s", answer.Action, answer.Reason)
			if answer.Provisional {
				text += " provisional"
			}

			return text, answer
		}

		vllm, answer := judge("p", 60)
		sglang, _ := judge("s", 60)
		other, _ := judge("q", 8)
		cmptest.Equal(t, about, answers{vllm, sglang, other}, c.want)
		cmptest.HasTexts(t, answer.Explanation, c.says)

		if notes := a.noteRefusals(); c.note == "" {
			cmptest.Equal(t, about+": notes", len(notes), 0)
		} else {
			cmptest.HasTexts(t, strings.Join(notes, "\n"), c.note)
		}
	}
}

// TestRefusalIsTheCause: a refusal of Prometheus is named as the cause only if we would know what the server
// needs without it.
func TestRefusalIsTheCause(t *testing.T) {
	const (
		before      = "the memory of the model's weights is not known: set the pod's annotation"
		reports     = "refused to answer what its inference server reported"
		annotations = "which annotations of pods"
	)

	all := []string{before, reports, annotations}

	for about, c := range map[string]struct {
		kinds, weights bool // what is refused
		server         *advise.ServerEvidence
		says           []string
	}{
		"nothing":                       {false, false, &advise.ServerEvidence{Kind: gpu.ServerVLLM}, []string{before}},
		"reports":                       {true, false, &advise.ServerEvidence{Kind: gpu.ServerVLLM, Weights: 1}, []string{reports}},
		"reports, without annotation":   {true, false, &advise.ServerEvidence{Kind: gpu.ServerVLLM}, []string{before, reports}},
		"reports of another kind":       {true, false, &advise.ServerEvidence{Kind: gpu.ServerTGI, Weights: 1}, []string{before}},
		"weights":                       {false, true, &advise.ServerEvidence{Kind: gpu.ServerVLLM}, []string{annotations}},
		"weights of others":             {false, true, &advise.ServerEvidence{Kind: gpu.ServerVLLM, Weights: 1}, []string{before}},
		"both":                          {true, true, &advise.ServerEvidence{Kind: gpu.ServerVLLM}, []string{reports, annotations}},
		"weights of two servers in one": {false, true, &advise.ServerEvidence{}, []string{before}},
		"no server":                     {true, true, nil, []string{before}},
		"a known need":                  {true, true, &advise.ServerEvidence{Kind: gpu.ServerVLLM, Need: 1}, []string{before}},
	} {
		a := &analysis{refused: refusals{kinds: map[gpu.ServerKind]bool{gpu.ServerVLLM: c.kinds}, weights: c.weights}}
		got := a.explainRefusal(c.server, before)

		for _, text := range all {
			cmptest.Equal(t, about+": "+text+": "+got, strings.Contains(got, text), slices.Contains(c.says, text))
		}
	}

	for _, refused := range []bool{false, true} {
		a := &analysis{refused: refusals{pods: refused}}
		cmptest.Equal(t, "which pods have servers", strings.Contains(a.explainMixed(), "They may have servers"), refused)
	}
}

// TestServersTakeFewQueries: we ask only about kinds of servers that there are, and no more for a part that
// was too long before.
func TestServersTakeFewQueries(t *testing.T) {
	o := weekly()

	_, asked := serversAt(t, o, func(askedServers) bool { return false })
	cmptest.Equal(t, "queries", len(asked), 7+1+2*7)

	_, asked = serversAt(t, o, func(q askedServers) bool { return q.hours > 12 })
	refused := 0

	for _, q := range asked {
		refused += boolToInt(q.hours > 12)
	}

	cmptest.Equal(t, "refused queries", refused, 1)

	queries := 0
	a := analysisOf(o)
	a.client, _ = clientOf(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		queries++

		says(200, "application/json", emptyVector)(w, r)
	}))

	if err := a.queryServers(t.Context()); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "queries without servers", queries, 7) // there may have been some, days ago
}
