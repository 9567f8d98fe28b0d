package control

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// refusedRight is the error of a request that the cluster has refused for lack of a right.
type refusedRight string

func (r refusedRight) Error() string { return "403" }
func (r refusedRight) Unwrap() error { return gpu.ErrNoPermission }
func (r refusedRight) Refusal() string {
	return "the service account needs the right to " + string(r)
}

func TestARefusalIsNotToldAsNoAnswer(t *testing.T) {
	refused := errors.Join(fmt.Errorf("node n: %w", refusedRight("get nodes")))

	down := fmt.Errorf("get nodes: %w", gpu.ErrUnavailable)
	for _, tc := range []struct{ got, want string }{
		{clusterProblem(refused), "the cluster refuses the request: the service account needs the right to get nodes"},
		{clusterText(refused), "the cluster refuses the request: the service account needs the right to get nodes"},
		{reasonText(refused), "the service account needs the right to get nodes"},
		{clusterProblem(down), "the cluster does not answer (unavailable)"},
		{clusterText(down), "the cluster does not answer"},
		{reasonText(gpu.ErrNoPermission), "no permission"},
	} {
		if tc.got != tc.want {
			t.Errorf("got  %s\nwant %s", tc.got, tc.want)
		}
	}
}
