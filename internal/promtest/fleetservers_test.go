package promtest

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// servedGPU is a GPU that an inference server holds, what Prometheus has of the server and its pod,
// and what follows.
type servedGPU struct {
	gib        float64            // that the GPU shows
	server     map[string]float64 // by metric, and by kv_cache_block_type after a space
	annotation string             // about the model's memory, by kube-state-metrics; one of them under its former name
	want       string
	later      float64 // GiB that another pod holds on the second day, which is no server; 0: the server stays
	silent     int     // hours of each day in which the server is not scraped
}

func servedGPUs() map[string]servedGPU {
	vllm := func(name string, use float64) map[string]float64 {
		return map[string]float64{"vllm:num_requests_running": 6, "vllm:num_requests_waiting": 0, name: use}
	}

	return map[string]servedGPU{
		"GPU-0": {72, vllm("vllm:kv_cache_usage_perc", 0.1), "14Gi", "slice  3g.40gb", 0, 0},
		"GPU-1": {72, vllm("vllm:kv_cache_usage_perc", 0.1), "", "keep preallocated ", 0, 0},
		"GPU-2": {32, vllm("vllm:gpu_cache_usage_perc", 0.05), "14Gi", "slice  3g.40gb", 0, 0},
		"GPU-3": {32, vllm("vllm:gpu_cache_usage_perc", 0.05), "", "keep preallocated ", 0, 0},
		"GPU-4": {32, nil, "", "keep preallocated ", 0, 0}, // 40 % that is flat
		"GPU-5": {72, map[string]float64{"sglang:num_running_reqs": 40, "sglang:token_usage": 1,
			"sglang:max_total_num_tokens": 4e5}, "14Gi", "keep memory ", 0, 0},
		"GPU-6": {32, map[string]float64{"tgi_queue_size": 0, "tgi_batch_current_size": 3}, "14Gi", "keep preallocated ", 0, 0},
		"GPU-7": {4, map[string]float64{"nv_inference_request_success": 7}, "", "slice  1g.10gb", 0, 0},
		"GPU-8": {32, vllm("vllm:kv_cache_usage_perc", 0.05), "14Gi", "keep preallocated ", 70, 0},
		"GPU-10": {72, map[string]float64{"nv_trt_llm_kv_cache_block_metrics used": 600,
			"nv_trt_llm_kv_cache_block_metrics max": 6000}, "14Gi", "slice  3g.40gb", 0, 0},
		"GPU-11": {72, vllm("vllm:kv_cache_usage_perc", 0.1), "14Gi", "keep memory ", 0, 0}, // see append
		"GPU-9":  {72, vllm("vllm:kv_cache_usage_perc", 0.1), "14Gi", "keep preallocated ", 0, 3},
	}
}

// append adds a scrape of a GPU and its pod.
func (g servedGPU) append(app storage.Appender, uuid string, minute int) error {
	at := scraped().Add(time.Duration(minute)*time.Minute + 30*time.Second).UnixMilli()

	pod := "p-" + uuid
	now := g

	if minute < 10 {
		pod += "-before" // the pod that is judged comes within the window: its start is seen
	}

	if g.later > 0 && minute >= 24*60 {
		pod = pod + "-later"
		now = servedGPU{gib: g.later}
	}

	put := func(name string, v float64, pairs ...string) error {
		_, err := app.Append(0, labels.FromStrings(append(pairs, "__name__", name, "namespace", "chat", "pod", pod)...), at, v)
		return err
	}

	for name, v := range map[string]float64{
		"DCGM_FI_DEV_FB_USED": now.gib * 1024, "DCGM_FI_DEV_FB_FREE": h100Bytes/(1<<20) - now.gib*1024,
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.2, "DCGM_FI_PROF_SM_ACTIVE": 0.005, "DCGM_FI_PROF_DRAM_ACTIVE": 0.005,
		"DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_DEC_UTIL": 0, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0,
	} {
		if err := put(name, v, "UUID", uuid, "Hostname", "n", "modelName", "NVIDIA H100 80GB HBM3", "instance", "n:9400",
			"job", "gpus"); err != nil {
			return err
		}
	}

	for name, v := range now.server {
		if minute%(24*60) < 60*now.silent {
			break
		}

		// An update of the server renames the use of its cache within the second day, and it was larger before.
		if uuid == "GPU-11" && name == "vllm:kv_cache_usage_perc" && minute < 32*60 {
			name = "vllm:gpu_cache_usage_perc"
			v = 0.9
		}

		name, blocks, _ := strings.Cut(name, " ")
		if err := put(name, v, "instance", "10.1.2.3:8000", "job", "chat", "kv_cache_block_type", blocks); err != nil {
			return err
		}
	}

	if now.annotation == "" {
		return nil
	}

	name := "annotation_mig_exporter_io_model_memory"
	if uuid == "GPU-2" {
		name = "annotation_mig_exporter_dev_model_memory"
	}

	return put("kube_pod_annotations", 1, name, now.annotation, "job", "ksm")
}

// TestFleetKnowsServers: by a real Prometheus that scrapes the pods, what an inference server
// reserves is no need: that follows from its weights, by an annotation, and the use of its cache,
// and without either the GPU stays.
func TestFleetKnowsServers(t *testing.T) {
	t.Parallel()
	e := NewPrometheus(t)
	const minutes = 2 * 24 * 60
	app := e.db.Appender(t.Context())

	for minute := range minutes {
		for uuid, g := range servedGPUs() {
			if err := g.append(app, uuid, minute); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}

	_, url := serveAPI(t, e)

	r := askFleet(t, url, "2d", scraped().Add(minutes*time.Minute))
	if len(r.GPUs) != len(servedGPUs()) {
		t.Errorf("%d GPUs", len(r.GPUs))
	}

	for i := range r.GPUs {
		g := &r.GPUs[i]
		if got := g.Action + " " + g.Reason + " " + g.RecommendedProfile; got != servedGPUs()[g.UUID].want {
			t.Errorf("%s: %s, want %s: %s %+v", g.UUID, got, servedGPUs()[g.UUID].want, g.Explanation, g.Server)
		}
	}

	if s := r.GPUs[0].PredictedServer; s == nil || s.Flag != "--gpu-memory-utilization" || s.Value != 0.9 {
		t.Errorf("GPU-0 is to be started with %+v", s)
	}

	if s := r.GPUs[1].Server; s == nil || s.CacheUseMaxRatio != 0.1 || s.AskedHours < 47 || s.NeedBytes != 0 {
		t.Errorf("of the server on GPU-1 it is known: %+v", s)
	}
}
