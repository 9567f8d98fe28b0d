package archtest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestProgramsLinkNoKubernetesClient: of the programs kubectl mig alone has Kubernetes' client, in a
// module of its own. The kubelet's API is all of Kubernetes that the exporter links.
func TestProgramsLinkNoKubernetesClient(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/mig-exporter", "./cmd/migctl")
	list.Dir = "../.."

	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}

	var linked []string

	for _, dependency := range strings.Fields(string(out)) {
		if strings.HasPrefix(dependency, "k8s.io/") && !strings.HasPrefix(dependency, "k8s.io/kubelet/pkg/apis/") {
			linked = append(linked, dependency)
		}
	}

	cmptest.Equal(t, "Kubernetes' packages in mig-exporter and migctl", linked, nil)
}
