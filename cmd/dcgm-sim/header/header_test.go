package header

import (
	"reflect"
	"strings"
	"testing"
)

func TestFunctions(t *testing.T) {
	got, err := Functions(`
#define DCGM_PUBLIC_API dcgmReturn_t
// dcgmReturn_t DCGM_PUBLIC_API dcgmGone(void);
/* dcgmReturn_t DCGM_PUBLIC_API dcgmAlsoGone(void); */
dcgmReturn_t DCGM_PUBLIC_API dcgmInit(void);
DCGM_PUBLIC_API dcgmReturn_t dcgmName(dcgmModuleId_t id, char const **name);
DCGM_PUBLIC_API const char *errorString(dcgmReturn_t result);
dcgmReturn_t DCGM_PUBLIC_API dcgmWatch(dcgmHandle_t handle, dcgmGpuGrp_t group,
    long long often, double keep, int samples, unsigned int list[DCGM_MAX], fpRecvUpdates call);
`)
	want := []Function{
		{Name: "dcgmInit"}, {"dcgmName", []Kind{Word, Pointer}},
		{"dcgmWatch", []Kind{Long, Long, Long, Double, Word, Pointer, Pointer}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, error %v", got, err)
	}
	files := Generate(got)
	if !strings.Contains(files["exports.c"], "\nCALL7(2, dcgmWatch, L, L, L, D, U, P, P)\n") || !strings.Contains(files["functions.go"], "\"dcgmName\",\n") {
		t.Errorf("generated %q", files)
	}
	for _, bad := range []string{"", "dcgmReturn_t DCGM_PUBLIC_API dcgmAsk(int);"} {
		if got, err := Functions(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
