package server

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestRecommendations(t *testing.T) {
	reader := someone(control.Rights{Read: true})
	const path = "/api/v1/recommendations"

	r := newRig(t)
	for query, want := range map[string]string{
		"": `{"gpu":""}`, "?gpu=0": `{"gpu":"` + string(gpu0) + `"}`, "?gpu=0000:07:00.0": `{"gpu":"` + string(gpu0) + `"}`,
	} {
		cmptest.Equal(t, path+query, r.do(reader, "GET", path+query, "").Body.String(), want+"\n")
	}

	wantProblem(t, r.do(reader, "GET", path+"?gpu=7", ""), 404, api.NotFound)

	early := newRig(t, func(o *Options, _ *limits) { o.Recommendations = func(gpu.UUID) any { return nil } })
	wantProblem(t, early.do(reader, "GET", path, ""), 503, api.Unavailable)

	for _, query := range []string{"?gpus=1", "?gpu=0&gpu=1", "?gpu=%zz"} {
		p := wantProblem(t, r.do(reader, "GET", path+query, ""), 400, api.Malformed)
		cmptest.HasTexts(t, p.Detail, "expected nothing, or gpu once")
	}

	off := newRig(t, func(o *Options, _ *limits) { o.Recommendations = nil })
	wantProblem(t, off.do(reader, "GET", path, ""), 501, api.NotBuilt)
}
