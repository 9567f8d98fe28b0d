package truth

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// shape is a synthetic trace in the shape of a published one.
type shape struct {
	name, about, model string
	started            bool
	service            time.Duration
	csv                string
}

// shapes returns a trace in the shape of each of three published ones, with what kernels use of the
// GPU, which the published ones do not have, or without.
func shapes(seed uint64, width bool) []shape {
	return []shape{
		{"GenTD26", "143 image generation pods over 23 h", "A100-80GB", true, 0, imageTrace(seed, width)},
		{"Azure LLM inference", "10 language models over 48 h", "H100-80GB", true, 3 * time.Second, languageTrace(seed, width)},
		{"Alibaba PAI", "60 recurring jobs over 5 days", "A100-40GB", false, 0, clusterTrace(seed, width)},
	}
}

// traceWriter writes a trace.
type traceWriter struct {
	strings.Builder
	width bool
}

func newTrace(width bool) *traceWriter {
	w := &traceWriter{width: width}
	w.WriteString("time,workload,memory_mib,busy")

	if width {
		w.WriteString(",width,bandwidth")
	}

	w.WriteString("\n")

	return w
}

func (w *traceWriter) row(seconds int, name string, memoryGiB, busy, width float64) {
	fmt.Fprintf(w, "%d,%s,%.0f,%.4f", 1772409600+seconds, name, memoryGiB*1024, busy)

	if w.width {
		fmt.Fprintf(w, ",%.3f,%.3f", width, width*0.6)
	}

	w.WriteString("\n")
}

// imageTrace is one row a minute of pods that are idle most of the time: p99 of busy time 16, 37
// and 94 %, largest memory 21, 37 and 45 GiB at the 10th, 50th and 90th percentile of pods, median
// of busy time 0.
func imageTrace(seed uint64, width bool) string {
	r := rand.New(rand.NewPCG(seed, 1))
	w := newTrace(width)

	const pods, minutes = 143, 23 * 60
	for pod := range pods {
		u := (float64(pod) + 0.5) / pods
		top := min(1, 0.37*math.Exp(0.68*math.Sqrt2*math.Erfinv(2*u-1)))
		memory := interpolate(math.Mod(u*37, 1), []float64{0, 0.1, 0.5, 0.9, 1}, []float64{15, 21, 37, 45, 48})
		share := between(r, 0.15, 0.45)
		of := between(r, 0.2, 1)

		for minute := range minutes {
			busy := 0.
			if r.Float64() < share {
				busy = min(1, top*1.05*math.Pow(r.Float64(), 0.5*share/0.15))
			}

			loaded := memory * min(1, 0.7+0.3*float64(minute)/30)
			w.row(minute*60, fmt.Sprintf("pod-%d", pod), loaded, busy, of*between(r, 0.8, 1))
		}
	}

	return w.String()
}

// interpolate returns the value at x of a line through points.
func interpolate(x float64, xs, ys []float64) float64 {
	i := 1
	for i < len(xs)-1 && x > xs[i] {
		i++
	}

	return ys[i-1] + (ys[i]-ys[i-1])*(x-xs[i-1])/(xs[i]-xs[i-1])
}

// languageTrace is one row in ten seconds of services whose requests come by the hour of the day
// and in bursts, each with as many tokens as a log-normal distribution gives: the busy time is that
// of their prompts and answers.
func languageTrace(seed uint64, width bool) string {
	r := rand.New(rand.NewPCG(seed, 2))
	w := newTrace(width)

	for service := range 10 {
		perSecond := logNormal(r, 0.015, 0.8)
		of := between(r, 0.2, 1)
		memory := between(r, 6, 60)
		burst := 1.
		left := 0.

		for step := range 48 * 360 {
			hour := float64(step%8640) / 360

			if left--; left < 0 { // bursts and lulls of minutes, gamma-like rates
				burst, left = r.ExpFloat64()*r.ExpFloat64()+0.2, 30*r.ExpFloat64()
			}

			rate := perSecond * burst * (0.4 + 0.6*(1-math.Cos(2*math.Pi*(hour-3)/24))/2)
			work := 0.

			for left := rate*10 - r.ExpFloat64(); left > 0; left -= r.ExpFloat64() {
				prompt := logNormal(r, 1000, 1)
				answer := logNormal(r, 100, 1)
				work += prompt/8000 + answer/60
			}

			w.row(step*10, fmt.Sprintf("llm-%d", service), memory, min(1, work/10), of)
		}
	}

	return w.String()
}

// clusterTrace is one row in five minutes of jobs whose instances come again and again, each with a
// mean use of the GPU: 10 % on average, under a tenth for three quarters of them.
func clusterTrace(seed uint64, width bool) string {
	r := rand.New(rand.NewPCG(seed, 3))
	w := newTrace(width)
	const end = 5 * 24 * 12

	for job := range 60 {
		use := min(0.95, logNormal(r, 0.045, 1.3))
		of := between(r, 0.05, 1)

		memory := min(36, logNormal(r, 6, 0.8))
		for at := r.IntN(100); at < end; at += 10 + r.IntN(150) {
			for until := min(end, at+12+r.IntN(200)); at < until; at++ {
				w.row(at*300, fmt.Sprintf("job-%d", job), memory*between(r, 0.8, 1), min(1, use*between(r, 0.5, 1.5)), of)
			}
		}
	}

	return w.String()
}

func mustReplay(t *testing.T, s *shape) (*replay, []*traced) {
	t.Helper()

	list, err := readTrace(strings.NewReader(s.csv))
	if err != nil {
		t.Fatal(err)
	}

	all := models()
	at := slices.IndexFunc(all, func(m model) bool { return m.Name == s.model })

	return newReplay(&all[at], list, s.started, s.service), list
}

// TestReplayedShapes: on traces in the shape of three published ones, what is advised is killed by
// nothing and keeps its throughput, and the naive rule harms some. Without what kernels use of the
// GPU nothing is advised.
func TestReplayedShapes(t *testing.T) {
	t.Parallel()
	naiveHarms := 0
	advised := 0

	for _, s := range shapes(1, true) {
		r, _ := mustReplay(t, &s)
		for i := range r.answers {
			a := &r.answers[i]
			if a.advised.harmed() {
				t.Errorf("%s, %s: %+v", s.name, a.name, a.advised)
			}

			if a.naive.harmed() {
				naiveHarms++
			}

			if a.advised != nil {
				advised++
			}
		}
	}

	if naiveHarms == 0 || advised == 0 {
		t.Errorf("the naive rule harms %d, %d are advised: nothing was tested", naiveHarms, advised)
	}

	for _, s := range shapes(1, false) {
		r, _ := mustReplay(t, &s)
		for i := range r.answers {
			if a := &r.answers[i]; a.answer.Action == advise.ActionSlice {
				t.Errorf("%s, %s: a slice, without what kernels use of the GPU", s.name, a.name)
			}
		}
	}
}

// TestReplayOfKernelsKnownAtNight: a trace that has the width of kernels only while hardly any run
// gives no advice.
func TestReplayOfKernelsKnownAtNight(t *testing.T) {
	var b strings.Builder
	b.WriteString("time,workload,memory_mib,busy,width,bandwidth\n")

	for row := range 12 * 24 * 8 {
		memory := 5000
		if row == 0 {
			memory = 500
		}

		kernels := "0.1,0.09,0.03"
		if hour := row / 12 % 24; hour >= 8 && hour < 20 {
			kernels = "0.7,,"
		}

		fmt.Fprintf(&b, "%d,a,%d,%s\n", 1767225600+300*row, memory, kernels)
	}

	r, _ := mustReplay(t, &shape{csv: b.String(), model: "H100-80GB", started: true})
	if a := r.answers[0]; !a.sampled || a.advised != nil {
		t.Errorf("%s %s is advised by a sample: %s", a.answer.Action, a.answer.Recommended, a.answer.Explanation)
	}
}

// TestShapesArePublished: the synthetic traces have the figures that were published.
func TestShapesArePublished(t *testing.T) {
	t.Parallel()
	all := shapes(1, false)
	_, pods := mustReplay(t, &all[0])
	var p99, memory []float64

	for _, w := range pods {
		var busy []float64

		most := 0.
		for _, row := range w.rows {
			busy, most = append(busy, row.busy), max(most, row.memory/gib)
		}

		if quantile(busy, 0.5) > 0 {
			t.Errorf("%s: median of busy time %v, want 0", w.name, quantile(busy, 0.5))
		}

		p99, memory = append(p99, quantile(busy, 0.99)), append(memory, most)
	}

	for q, want := range map[float64][2]float64{0.1: {0.16, 21}, 0.5: {0.37, 37}, 0.9: {0.94, 45}} {
		if got := quantile(p99, q); math.Abs(got/want[0]-1) > 0.15 {
			t.Errorf("p99 of busy time at %v of pods: %.2f, want %v", q, got, want[0])
		}

		if got := quantile(memory, q); math.Abs(got/want[1]-1) > 0.1 {
			t.Errorf("largest memory at %v of pods: %.1f, want %v", q, got, want[1])
		}
	}

	_, models := mustReplay(t, &all[1])
	if day, night, busiest := busyByHour(models); day < 2*night || day > 4*night || busiest < 1.5*day {
		t.Errorf("language models are busy for %.3f by day, %.3f at night, %.3f in their busiest hours; want two to four "+
			"times as much by day, and bursts", day, night, busiest)
	}

	_, jobs := mustReplay(t, &all[2])
	mean := 0.
	low := 0

	for _, w := range jobs {
		sum := 0.
		for _, row := range w.rows {
			sum += row.busy / float64(len(w.rows))
		}

		mean += sum / float64(len(jobs))
		if sum < 0.1 {
			low++
		}
	}

	if share := float64(low) / float64(len(jobs)); mean < 0.07 || mean > 0.14 || share < 0.65 || share > 0.85 {
		t.Errorf("mean use %.2f, %.2f of the jobs under a tenth; want about 0.10 and 0.75", mean, share)
	}
}

// busyByHour returns the mean of busy time over all workloads from noon to 18 o'clock and from midnight
// to 6, and the mean of their busiest hours. Each begins at midnight of a day of UTC.
func busyByHour(all []*traced) (day, night, busiest float64) {
	for _, w := range all {
		var hours [48]float64

		perHour := len(w.rows) / len(hours)
		for i, row := range w.rows {
			hours[i/perHour] += row.busy / float64(perHour)
		}

		for i, busy := range hours {
			switch i % 24 / 6 {
			case 0:
				night += busy / 12 / float64(len(all))
			case 2:
				day += busy / 12 / float64(len(all))
			}
		}

		busiest += slices.Max(hours[:]) / float64(len(all))
	}

	return day, night, busiest
}
