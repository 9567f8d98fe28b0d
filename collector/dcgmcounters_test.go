package collector

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func mustParse(t testing.TB, text string) []Counter {
	t.Helper()

	counters, faulty, err := ParseCounters("counters.csv", strings.NewReader(text))
	if err := errors.Join(append(faulty, err)...); err != nil {
		t.Fatal(err)
	}

	return counters
}

func TestParseCounters(t *testing.T) {
	got := mustParse(t, "# Format\n\n"+
		"DCGM_FI_DEV_SM_CLOCK,  gauge, Clock (in MHz).\r\n"+
		"   \n"+
		"DCGM_FI_DEV_VGPU_LICENSE_STATUS ,\t gauge,\"License, \"\"1\"\" if there\"\n"+
		"#DCGM_FI_DEV_GPU_TEMP, gauge, commented out\n"+
		"DCGM_FI_DRIVER_VERSION,label,\n"+
		"DCGM_FI_DEV_FB_USED_BYTES, gauge, Ärger \xff")

	want := []Counter{
		{"DCGM_FI_DEV_SM_CLOCK", CounterGauge, "Clock (in MHz)."},
		{"DCGM_FI_DEV_VGPU_LICENSE_STATUS", CounterGauge, `License, "1" if there`},
		{"DCGM_FI_DRIVER_VERSION", CounterLabel, ""},
		{"DCGM_FI_DEV_FB_USED_BYTES", CounterGauge, "Ärger \uFFFD"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	if got := WithoutValue(got); !slices.Equal(got, []string{"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}) {
		t.Errorf("without a value: %v", got)
	}
}

// Every fault has its place, and the other rows stay.
func TestParseCountersFaults(t *testing.T) {
	const good = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
	for _, test := range []struct{ name, row, want string }{
		{"unknown", "DCGM_FI_DEV_GPU_TEMPERATURE, gauge, x\n",
			`2:1: field "DCGM_FI_DEV_GPU_TEMPERATURE": no field of DCGM that is known here, expected one such as DCGM_FI_DEV_GPU_TEMP`},
		{"part of a name", "DCGM_FI_DEV, gauge, x\n",
			`2:1: field "DCGM_FI_DEV": no field of DCGM that is known here, expected one such as DCGM_FI_DEV_GPU_TEMP`},
		{"no name", ", gauge, x\n",
			`2:1: field "": no field of DCGM that is known here, expected one such as DCGM_FI_DEV_GPU_TEMP`},
		{"not served", "  DCGM_FI_DEV_MAX_SM_CLOCK, gauge, x\n",
			`2:3: field DCGM_FI_DEV_MAX_SM_CLOCK: DCGM has it, but it is not served here: expected one of those in docs/dcgm-names.md`},
		{"a single media engine", "DCGM_FI_PROF_NVDEC0_ACTIVE, gauge, x\n",
			`2:1: field DCGM_FI_PROF_NVDEC0_ACTIVE: DCGM has it, but it is not served here: expected one of those in docs/dcgm-names.md`},
		{"1.x", "dcgm_gpu_temp, gauge, x\n",
			`2:1: field "dcgm_gpu_temp": the names of dcgm-exporter 1.x are not served, expected one that begins with DCGM_FI_ or DCGM_EXP_`},
		{"two columns", "DCGM_FI_DEV_SM_CLOCK, gauge\n",
			"2:1: 2 columns: expected 3, field, type, help, with the help in quotes if it has commas"},
		{"a comma in the help", "DCGM_FI_DEV_SM_CLOCK, gauge, SMs, in MHz\n",
			"2:1: 4 columns: expected 3, field, type, help, with the help in quotes if it has commas"},
		{"type", "DCGM_FI_DEV_SM_CLOCK,  level, x\n",
			`2:24: type "level" of DCGM_FI_DEV_SM_CLOCK: expected gauge, counter or label`},
		{"text as a number", "DCGM_FI_DRIVER_VERSION, gauge, x\n",
			"2:25: type gauge: DCGM_FI_DRIVER_VERSION is text, expected label"},
		{"a number as text", "DCGM_FI_DEV_SM_CLOCK,label, x\n",
			"2:22: type label: DCGM_FI_DEV_SM_CLOCK is a number that changes, expected gauge or counter"},
		{"twice", good, "2:1: field DCGM_FI_DEV_GPU_TEMP: given in line 1 already, expected once"},
		{"quote in a field", "DCGM_FI_DEV_SM_CLOCK, gauge, \"x\"\n",
			`2:30: bare " in non-quoted-field: expected field, type, help, with the help in quotes if it has commas or quotes`},
		{"a letter after the quotes", "DCGM_FI_DEV_SM_CLOCK,gauge,\"x\"y\n",
			`2:30: extraneous or missing " in quoted-field: expected field, type, help, with the help in quotes if it has commas or quotes`},
	} {
		t.Run(test.name, func(t *testing.T) {
			counters, faulty, err := ParseCounters("a/counters.csv",
				strings.NewReader(good+test.row+"DCGM_FI_DEV_FB_USED, gauge, Used.\n"))
			if err != nil {
				t.Fatal(err)
			}

			if len(faulty) != 1 || faulty[0].Error() != "a/counters.csv:"+test.want {
				t.Errorf("faults %v, want a/counters.csv:%s", faulty, test.want)
			}

			var fault *CounterError
			if len(faulty) > 0 && (!errors.As(faulty[0], &fault) || fault.Line != 2) {
				t.Errorf("fault %#v, want line 2", fault)
			}

			if len(counters) != 2 || counters[1].Field != "DCGM_FI_DEV_FB_USED" {
				t.Errorf("the rest is %v", counters)
			}
		})
	}
}

func TestParseCountersUnreadable(t *testing.T) {
	_, _, err := ParseCounters("counters.csv",
		io.MultiReader(strings.NewReader("DCGM_FI_DEV_FB_USED"), iotest.ErrReader(io.ErrClosedPipe)))
	if !errors.Is(err, io.ErrClosedPipe) || !strings.HasPrefix(err.Error(), "read counters.csv: ") {
		t.Errorf("error %v", err)
	}
}

// Whatever is in a file, what comes out can be served, and every fault names a place in it.
func FuzzParseCounters(f *testing.F) {
	f.Add("# comment\nDCGM_FI_DEV_SM_CLOCK,  gauge, Clock (in MHz).\n")
	f.Add("DCGM_FI_DRIVER_VERSION,label,\nDCGM_FI_DEV_FB_USED , counter ,\"a, \"\"b\"\"\nc\"\n")
	f.Add("DCGM_FI_DEV_FB_USED,gauge,\"open\nDCGM_EXP_XID_ERRORS_COUNT, gauge, x")
	f.Fuzz(func(t *testing.T, text string) {
		counters, faulty, err := ParseCounters("f", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}

		lines := 1 + strings.Count(text, "\n")

		for _, one := range faulty {
			var fault *CounterError
			if !errors.As(one, &fault) || fault.Text == "" {
				t.Fatalf("fault %#v, want a *CounterError with a text", one)
			}

			if fault.Line < 1 || fault.Line > lines {
				t.Errorf("fault %v in a file of %d lines", fault, lines)
			}

			if fault.Column < 1 {
				t.Errorf("fault %v, want a column from 1", fault)
			}
		}

		if _, err := New(Options{Names: NamesDCGM, Counters: append([]Counter{}, counters...)}); err != nil {
			t.Errorf("parsed and refused: %v", err)
		}

		again, faulty, err := ParseCounters("f", strings.NewReader(formatCounters(counters)))
		cmptest.Equal(t, "error of the second time", err, nil)
		cmptest.Equal(t, "faulty rows of the second time", len(faulty), 0)

		if !slices.Equal(again, counters) {
			cmptest.Equal(t, "counters of the second time", again, counters)
		}
	})
}

// formatCounters writes counters as a file.
func formatCounters(counters []Counter) string {
	var b strings.Builder
	for _, c := range counters {
		fmt.Fprintf(&b, "%s,%s,\"%s\"\n", c.Field, c.Type, strings.ReplaceAll(c.Help, `"`, `""`))
	}

	return b.String()
}

// What the field table says of DCGM's fields is what DCGM says.
func TestDCGMFieldIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range dcgmFieldList() {
		if seen[f.name] {
			t.Errorf("%s is there twice", f.name)
		}

		seen[f.name] = true
		switch {
		case strings.HasPrefix(f.name, "DCGM_EXP_"):
			if f.id != 0 {
				t.Errorf("%s is dcgm-exporter's own and has DCGM's id %d", f.name, f.id)
			}
		case f.newer:
			if knownToDCGM(f.name) {
				t.Errorf("%s is older than DCGM 4.6", f.name)
			}
		case !strings.Contains(dcgmNames, fmt.Sprintf("\n%d %s\n", f.id, f.name)):
			t.Errorf("DCGM has no field %d of the name %s", f.id, f.name)
		}
	}
}

// A new name without an id of its own is the old field; one with another unit is another field.
func TestDCGMNewNames(t *testing.T) {
	fields := dcgmFields()
	units := 0

	for _, n := range dcgmRenamedFields() {
		old := fields[n.old]

		newer := fields[n.name]
		if (old.id == newer.id) != (old.unit == newer.unit) {
			t.Errorf("%s is %d in %q, %s is %d in %q", old.name, old.id, old.unit, newer.name, newer.id, newer.unit)
		}
	}

	for _, n := range dcgmFieldsRenamedIn49() {
		old := fields[n.old]

		newer := fields[n.name]
		if old.byDefault == "" {
			t.Errorf("%s is no row of the default file", old.name)
		}

		if old.unit != newer.unit {
			units++
		}
	}

	if units != 11 {
		t.Errorf("%d of %d rows have another unit in dcgm-exporter 4.9, which says 11", units, len(dcgmFieldsRenamedIn49()))
	}
}

func TestDefaultCounters(t *testing.T) {
	counters := DefaultCounters()
	if again := mustParse(t, formatCounters(counters)); !slices.Equal(again, counters) {
		t.Errorf("the default list as a file is %v, want %v", again, counters)
	}

	if len(counters) != 26 {
		t.Errorf("%d rows, dcgm-exporter's default file has 26", len(counters))
	}

	for _, c := range counters {
		if c.Help == "" || !strings.HasSuffix(c.Help, ".") {
			t.Errorf("%s: help %q", c.Field, c.Help)
		}
	}
}

func readCounters(t *testing.T, name string) ([]Counter, []error) {
	t.Helper()

	file, err := os.Open(filepath.Join("..", "testdata", "counters", name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	counters, faulty, err := ParseCounters(name, file)
	if err != nil {
		t.Fatal(err)
	}

	return counters, faulty
}

// TestCountersFiles reads files as operators have them: every row of a good one has series, and a
// bad one says all that is wrong at once.
func TestCountersFiles(t *testing.T) {
	counters, faulty := readCounters(t, "everything.good.csv")
	if len(counters) != 19 || len(faulty) > 0 {
		t.Errorf("%d counters, %v", len(counters), faulty)
	}

	s := dcgmNode()
	s.GPUs[0].Readings.ECC = append(s.GPUs[0].Readings.ECC,
		gpu.ECCCount{Severity: "uncorrected", Lifetime: "volatile", Location: "total"})
	c := mustNew(t, Options{Names: NamesDCGM, Counters: counters})
	c.Observe(s)

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	for _, one := range counters {
		if one.Type != CounterLabel && len(metricsOf(families, one.Field)) == 0 {
			t.Errorf("%s has no series", one.Field)
		}
	}

	counters, faulty = readCounters(t, "wrong.bad.csv")

	var got []string
	for _, err := range faulty {
		got = append(got, err.Error())
	}

	want := []string{
		`wrong.bad.csv:3:1: field "DCGM_FI_DEV_GPU_TEMPERATURE": no field of DCGM that is known here, expected one such as DCGM_FI_DEV_GPU_TEMP`,
		`wrong.bad.csv:4:1: field DCGM_FI_DEV_MAX_SM_CLOCK: DCGM has it, but it is not served here: expected one of those in docs/dcgm-names.md`,
		`wrong.bad.csv:5:30: type "meter" of DCGM_FI_DEV_FB_USED: expected gauge, counter or label`,
		`wrong.bad.csv:6:1: 4 columns: expected 3, field, type, help, with the help in quotes if it has commas`,
		`wrong.bad.csv:7:30: type gauge: DCGM_FI_DRIVER_VERSION is text, expected label`,
		`wrong.bad.csv:8:1: field DCGM_FI_DEV_GPU_TEMP: given in line 2 already, expected once`,
		`wrong.bad.csv:9:1: field "dcgm_power_usage": the names of dcgm-exporter 1.x are not served, expected one that begins with DCGM_FI_ or DCGM_EXP_`,
	}
	if !slices.Equal(got, want) || len(counters) != 2 {
		t.Errorf("%d counters and\n%s\nwant 2 and\n%s", len(counters), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
