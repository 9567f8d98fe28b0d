package health

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestAlertsHaveTheSameClasses: an alert on a class of XIDs fires for those of the class.
func TestAlertsHaveTheSameClasses(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/alerts-gpu.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for alert, class := range map[string]Class{
		"GpuXidNode": ClassNode, "GpuXidHardware": ClassHardware, "GpuXidMemory": ClassMemory,
		"GpuXidApplication": ClassApplication,
	} {
		found := regexp.MustCompile(`alert: ` + alert + `\n +expr: .*\{xid=~"([^"]+)"\}`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no pattern of XIDs", alert)
		}

		pattern := regexp.MustCompile("^(?:" + string(found[1]) + ")$")
		for xid := range uint64(1000) {
			if pattern.MatchString(strconv.FormatUint(xid, 10)) != (ClassOf(xid) == class) {
				t.Errorf("%s and ClassOf differ on XID %d", alert, xid)
			}
		}
	}
}

// TestScopesAgree: an XID that is an application's by the table of gpu is no fault of the GPU here.
func TestScopesAgree(t *testing.T) {
	for xid := range uint64(1000) {
		if gpu.XIDByNumber(xid).Scope == gpu.XIDOfApplication {
			cmptest.Equal(t, strconv.FormatUint(xid, 10), ClassOf(xid), ClassApplication)
		}
	}
}
