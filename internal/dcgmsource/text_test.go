package dcgmsource

import (
	"errors"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestParseAddress(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"node-1:5555", "node-1:5555"},
		{"node-1.example", "node-1.example:5555"},
		{"10.0.0.1", "10.0.0.1:5555"},
		{"10.0.0.1:6000", "10.0.0.1:6000"},
		{"[::1]:5555", "[::1]:5555"},
		{"[::1]", "[::1]:5555"},
		{"/run/nvidia/dcgm.sock", "unix:///run/nvidia/dcgm.sock"},
		{"unix:///run/nvidia/dcgm.sock", "unix:///run/nvidia/dcgm.sock"},
		{"", ""}, {"::1", ""}, {"host:", ""}, {":5555", ""}, {"host:0", ""}, {"host:65536", ""}, {"host:port", ""},
		{"unix://run/x", ""}, {"unix:///", ""}, {"/", ""}, {"run/x", ""}, {"http://host:5555", ""}, {"vsock://2:5555", ""},
		{"[host]:5555", ""}, {"[]", ""}, {"two hosts", ""}, {"host\x00", ""}, {"/" + strings.Repeat("a", 107), ""},
	} {
		got, err := ParseAddress(tt.in)
		if tt.want == "" {
			if err == nil || !strings.Contains(err.Error(), "expected host:port") {
				t.Errorf("%q: %v, %v", tt.in, got, err)
			}

			continue
		}

		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
			continue
		}

		cmptest.Equal(t, "address of "+tt.in, got.String(), tt.want)
		cmptest.Equal(t, "unix socket of "+tt.in, got.Unix, strings.HasPrefix(tt.want, "unix"))
	}
}

// TestTranslate has the texts of libdcgm's errorString as go-dcgm wraps them, and codes.
func TestTranslate(t *testing.T) {
	for _, tt := range []struct {
		code int
		text string
		want []error
	}{
		{0, "error starting nv-hostengine: DCGM initialization error", []error{ErrStart, gpu.ErrUnavailable}},
		{0, "error retrieving DCGM MIG hierarchy: API version mismatch", []error{ErrVersion, gpu.ErrUnavailable}},
		{-12, "", []error{ErrVersion, gpu.ErrUnavailable}},
		{-25, "DCGM library could not be found", []error{ErrLibrary, gpu.ErrUnavailable}},
		{0, "error watching fields: This request is serviced by a module of DCGM that is not currently loaded",
			[]error{ErrNoModule, gpu.ErrNotSupported}},
		{0, "error connecting to nv-hostengine: Host engine connection invalid/disconnected",
			[]error{ErrConnection, gpu.ErrUnavailable}},
		{0, "error retrieving DCGM MIG hierarchy: Object is in an undefined state",
			[]error{ErrConnection, gpu.ErrUnavailable}},
		{0, "Timeout", []error{ErrConnection, gpu.ErrTimeout}},
		{0, "error watching fields: Timeout", []error{ErrConnection, gpu.ErrTimeout}},
		{0, "error watching fields: Host engine is running as non-root", []error{ErrRequiresRoot, gpu.ErrNoPermission}},
		{0, "error creating group: Max limit reached for the object", []error{ErrLimit, gpu.ErrInsufficientResources}},
		{0, "error watching fields: The hostengine is paused", []error{ErrPaused, gpu.ErrUnavailable}},
		{0, "error destroying group: Setting not configured", []error{ErrGone, gpu.ErrNotFound}},
		{0, "Profiling is not supported for this group of GPUs or GPU", []error{gpu.ErrNotSupported}},
		{0, "Field is not being watched", []error{ErrNotWatched}},
		{0, "GPU is lost", []error{gpu.ErrLost}},
		{0, "Bad parameter passed to function", []error{gpu.ErrInvalidArgument}},
		{0, "Generic unspecified error", []error{gpu.ErrDriver}},
		{0, "", []error{gpu.ErrDriver}},
		{-21, "in another language", []error{ErrConnection, gpu.ErrUnavailable}},
		{-29, "", []error{ErrRequiresRoot, gpu.ErrNoPermission}},
		{-54, "", []error{ErrPaused}},
		{-57, "NVML driver timeout", []error{gpu.ErrTimeout}},
		{-1000, "GPU is lost", []error{gpu.ErrDriver}},
	} {
		err := Translate("try", tt.code, tt.text)
		for _, want := range tt.want {
			if !errors.Is(err, want) {
				t.Errorf("%d %q: %v, want %v", tt.code, tt.text, err, want)
			}
		}

		cmptest.Equal(t, err.Error()+": lost", isLost(err), tt.want[0] == ErrConnection || tt.want[0] == ErrVersion)

		if !strings.HasPrefix(err.Error(), "try: ") {
			t.Errorf("%d %q: got %q, want the operation first", tt.code, tt.text, err)
		}
	}
}
