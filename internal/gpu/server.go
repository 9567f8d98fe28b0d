package gpu

import (
	"strconv"
	"strings"
	"time"
)

// ServerKind is the program that serves a model.
type ServerKind string

// The inference servers whose metrics are read.
const (
	ServerVLLM   ServerKind = "vllm"
	ServerSGLang ServerKind = "sglang"
	ServerTGI    ServerKind = "tgi" // text-generation-inference
	ServerTriton ServerKind = "triton"
)

// ServerFigures are what an inference server says about itself. The tenant that runs the pod can
// make it say anything, so we use the figures for advice alone.
type ServerFigures struct {
	Kind             ServerKind
	Running, Waiting Opt[float64] // requests
	// CacheUse is the share of the key-value cache that requests use, 0-1. CacheTokens is how many
	// tokens the cache has room for.
	CacheUse, CacheTokens Opt[float64]
	// The totals since the server started. ServiceSeconds is how long the finished requests took,
	// without the time in which they waited.
	PromptTokens, GeneratedTokens    Opt[float64]
	FinishedRequests, ServiceSeconds Opt[float64]
	// Fraction is the share of the device's memory that the server is configured to reserve, 0-1.
	Fraction Opt[float64]
}

// ServerEndpoint is where a pod serves metrics: a port, and a path such as "/metrics".
type ServerEndpoint struct {
	Port uint16
	Path string
}

// PodServer is the last answer of the inference server of a pod.
type PodServer struct {
	PodUID string
	Time   time.Time // when we asked the server
	ServerFigures
}

// ParseModelMemory parses the value of the annotation mig-exporter.io/model-memory: a number of
// bytes, or of the binary units "Mi" and "Gi" of Kubernetes ("14Gi"), below a pebibyte.
func ParseModelMemory(value string) (bytes uint64, ok bool) {
	number := value
	unit := 1.

	for suffix, unitBytes := range map[string]float64{"Mi": 1 << 20, "Gi": 1 << 30} {
		if before, ok := strings.CutSuffix(value, suffix); ok {
			number = before
			unit = unitBytes
		}
	}

	units, err := strconv.ParseFloat(number, 64)
	if size := units * unit; err == nil && size >= 1 && size < 1<<50 { // false for NaN, too
		return uint64(size), true
	}

	return 0, false
}
