package header

import (
	"reflect"
	"strings"
	"testing"
)

func TestFunctions(t *testing.T) {
	got, err := Functions(`
typedef struct { struct nvmlDevice_st* handle; } nvmlDevice_t;
typedef struct nvmlUnit_st *nvmlUnit_t;
// nvmlReturn_t DECLDIR nvmlGone(void);
/* nvmlReturn_t DECLDIR nvmlAlsoGone(void); */
nvmlReturn_t DECLDIR nvmlInit(void);
DEPRECATED(13.0) nvmlReturn_t  DECLDIR nvmlAsk (nvmlDevice_t device, nvmlKind_t kind,
    const char * name, unsigned long long when, nvmlUnit_t unit, unsigned int *count);
const DECLDIR char* nvmlErrorString(nvmlReturn_t result);
`)
	want := []Function{{Name: "nvmlInit"}, {Name: "nvmlAsk", Params: []Param{
		{"nvmlDevice_t", Pointer}, {"nvmlKind_t", Word}, {"const char *", Pointer}, {"unsigned long long", Long},
		{"nvmlUnit_t", Pointer}, {"unsigned int *", Pointer},
	}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, error %v", got, err)
	}
	files := Generate(got)
	if !strings.Contains(files["exports.c"], "\nCALL6(1, nvmlAsk, P, U, P, L, P, P)\n") || !strings.Contains(files["functions.go"], "\"nvmlAsk\",\n") {
		t.Errorf("generated %q", files)
	}
	for _, bad := range []string{"", "nvmlReturn_t DECLDIR nvmlAsk(int);", "nvmlReturn_t DECLDIR nvmlAsk(int list[4]);"} {
		if got, err := Functions(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
