package clibrary

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func TestFunctions(t *testing.T) {
	for _, c := range []struct {
		header, text string
		want         []Function
		export, name string // a line of each generated file
	}{
		{"nvml.h", `
typedef struct { struct nvmlDevice_st* handle; } nvmlDevice_t;
typedef struct nvmlUnit_st *nvmlUnit_t;
// nvmlReturn_t DECLDIR nvmlGone(void);
/* nvmlReturn_t DECLDIR nvmlAlsoGone(void); */
nvmlReturn_t DECLDIR nvmlInit(void);
DEPRECATED(13.0) nvmlReturn_t  DECLDIR nvmlAsk (nvmlDevice_t device, nvmlKind_t kind,
    const char * name, unsigned long long when, nvmlUnit_t unit, unsigned int *count);
const DECLDIR char* nvmlErrorString(nvmlReturn_t result);
`, []Function{{Name: "nvmlInit"}, {"nvmlAsk", []Param{
			{"nvmlDevice_t", Pointer}, {"nvmlKind_t", Word}, {"const char *", Pointer}, {"unsigned long long", Long},
			{"nvmlUnit_t", Pointer}, {"unsigned int *", Pointer},
		}}}, "CALL6(1, nvmlAsk, P, U, P, L, P, P)", `"nvmlAsk",`},
		{"dcgm_agent.h", `
#define DCGM_PUBLIC_API dcgmReturn_t
// dcgmReturn_t DCGM_PUBLIC_API dcgmGone(void);
/* dcgmReturn_t DCGM_PUBLIC_API dcgmAlsoGone(void); */
dcgmReturn_t DCGM_PUBLIC_API dcgmInit(void);
DCGM_PUBLIC_API dcgmReturn_t dcgmName(dcgmModuleId_t id, char const **name);
DCGM_PUBLIC_API const char *errorString(dcgmReturn_t result);
dcgmReturn_t DCGM_PUBLIC_API dcgmWatch(dcgmHandle_t handle, dcgmGpuGrp_t group,
    long long often, double keep, int samples, unsigned int list[DCGM_MAX], fpRecvUpdates call);
`, []Function{
			{Name: "dcgmInit"}, {"dcgmName", []Param{{"dcgmModuleId_t", Word}, {"char const **", Pointer}}},
			{"dcgmWatch", []Param{
				{"dcgmHandle_t", Long}, {"dcgmGpuGrp_t", Long}, {"long long", Long}, {"double", Double}, {"int", Word},
				{"unsigned int *", Pointer}, {"fpRecvUpdates", Pointer},
			}},
		}, "CALL7(2, dcgmWatch, L, L, L, D, U, P, P)", `"dcgmName",`},
	} {
		got, err := Functions(c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.header, err)
		}

		cmptest.Equal(t, c.header, got, c.want)

		files := Generate(c.header, got)
		for name, want := range map[string]string{"exports.c": "\n" + c.export + "\n", "functions.go": "\t" + c.name + "\n"} {
			if !strings.Contains(files[name], want) || !strings.Contains(files[name], " from "+c.header+". DO NOT EDIT.") {
				t.Errorf("%s: no %q, or not from %s:\n%s", name, want, c.header, files[name])
			}
		}
	}
}

func TestBrokenHeaders(t *testing.T) {
	for _, text := range []string{
		"", "nvmlReturn_t DECLDIR nvmlAsk(int);", "nvmlReturn_t DECLDIR nvmlAsk(int list[4][4]);",
		"dcgmReturn_t DCGM_PUBLIC_API dcgmAsk(int);",
	} {
		if got, err := Functions(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}
