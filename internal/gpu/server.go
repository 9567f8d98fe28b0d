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

// ServerFigures are what an inference server says of itself. They are the word of the tenant that
// runs the pod, and may be wrong on purpose: they only ever inform advice.
type ServerFigures struct {
	Kind             ServerKind
	Running, Waiting Opt[float64] // requests
	// CacheUse is the share of the key-value cache that requests use, 0-1, and CacheTokens for how
	// many tokens it has room.
	CacheUse, CacheTokens Opt[float64]
	// Since the server has started: tokens, the requests that have ended, and the seconds that
	// these took, without those in which they waited.
	PromptTokens, GeneratedTokens    Opt[float64]
	FinishedRequests, ServiceSeconds Opt[float64]
	// Fraction is the share of the device's memory that it is configured to reserve, 0-1.
	Fraction Opt[float64]
}

// ServerEndpoint is a port of a pod and a path of HTTP, "/metrics".
type ServerEndpoint struct {
	Port uint16
	Path string
}

// PodServer is the inference server of a pod, and when it was asked.
type PodServer struct {
	PodUID string
	Time   time.Time
	ServerFigures
}

// ParseModelMemory reads a number of bytes in the binary units of Kubernetes, "14Gi" or "800Mi", as
// the annotation mig-exporter.io/model-memory has it.
func ParseModelMemory(value string) (bytes uint64, ok bool) {
	number := value
	unit := 1.

	for suffix, bytes := range map[string]float64{"Mi": 1 << 20, "Gi": 1 << 30} {
		if cut, ok := strings.CutSuffix(value, suffix); ok {
			number = cut
			unit = bytes
		}
	}

	size, err := strconv.ParseFloat(number, 64)
	if v := size * unit; err == nil && v >= 1 && v < 1<<50 { // NaN is invalid
		return uint64(v), true
	}

	return 0, false
}
