package collector

import (
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Where a family has series on a GPU that is partitioned into GPU instances. (On one that is not,
// both have it for the GPU.)
const (
	onNothing   = "-"
	onGPU       = "the GPU"
	onInstances = "each GPU instance"
)

// theirRow is a row that dcgm-exporter's default list has switched on: its type in the releases
// before 4.8.3, whose labels are the defaults here, and which series it has on a GPU with instances
// by default (-d f: no entity but the instances is watched).
type theirRow struct{ kind, place string }

func theirDefaults(t *testing.T) map[string]theirRow {
	t.Helper()

	file, err := os.Open("../testdata/dcgm-exporter-default.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := csv.NewReader(file)
	r.Comment = '#'
	r.FieldsPerRecord = 3

	list, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}

	rows := map[string]theirRow{}

	for _, row := range list {
		place := onNothing

		switch {
		case row[1] == "label":
			place = "all series"
		case strings.Contains(row[2], "i"):
			place = onInstances
		}

		rows[row[0]] = theirRow{row[1], place}
	}

	return rows
}

// besideNotes are differences in values.
func besideNotes() map[string]string {
	const media = "the mean over the engines of an instance where GPM reports them (Hopper and later); DCGM has the " +
		"GPU's, which is none while MIG is on"
	const split = "each compute instance of a divided GPU instance has its own, too, with `GPU_CI_ID`"

	return map[string]string{
		"DCGM_FI_DEV_ENC_UTIL": media, "DCGM_FI_DEV_DEC_UTIL": media,
		"DCGM_FI_DEV_XID_ERRORS": "the GPU's own series has the XIDs that name no instance; " +
			"0 before the first XID, when DCGM has no value; `err_msg` is in the project's own words",
		"DCGM_FI_DEV_FB_RESERVED": "an instance's as the driver reports it, where DCGM 4.5.3 has 0",
		"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "made of the profiling counters; a rate, and a gauge in dcgm-exporter's list " +
			"since 4.8.3",
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE": split, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": split,
	}
}

// besideReasons say why a family has series elsewhere on a GPU with instances: here, and there.
func besideReasons() map[[2]string]string {
	return map[[2]string]string{
		{onGPU, onInstances}:     "once, for the GPU, not a copy for each instance ([why](#where-series-differ-on-purpose))",
		{onGPU, onNothing}:       "for the GPU; DCGM has it for no instance, and no GPU is watched there by default that has some",
		{onNothing, onInstances}: "no series at all: nothing that this program reads has it",
		{onInstances, onNothing}: "for each GPU instance",

		{onGPU + " and " + onInstances, onInstances}: "for each GPU instance as there, and for the GPU",
	}
}

// besideDCGM is a family's difference to dcgm-exporter, "same" if there is none.
func besideDCGM(theirs theirRow, name, kind, place string) string {
	var parts []string
	if place != theirs.place {
		parts = append(parts, besideReasons()[[2]string{place, theirs.place}])
	}

	if kind != theirs.kind {
		parts = append(parts, fmt.Sprintf("a %s, there a %s", kind, theirs.kind))
	}

	if note := besideNotes()[name]; note != "" {
		parts = append(parts, note)
	}

	if len(parts) == 0 {
		return "same"
	}

	return strings.Join(parts, "; ")
}

// placesUnderMIG finds, in what is served of a GPU with instances, where each family of the default
// list has series.
func placesUnderMIG(t *testing.T) map[string]string {
	t.Helper()
	s := dcgmNode()

	s.GPUs = s.GPUs[1:2]
	for i := range s.GPUs[0].Instances {
		gi := &s.GPUs[0].Instances[i]
		gi.Media = gpu.Media{Encoder: gpu.Some(0.1), Decoder: gpu.Some(0.2)}
	}

	c := mustNew(t, Options{Names: NamesDCGM, Disabled: map[string]bool{ExporterGroup: true}})
	c.Observe(s)

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	places := map[string]string{}

	for _, row := range DefaultCounters() {
		whole := false
		instances := 0

		for _, m := range metricsOf(families, row.Field) {
			names := map[string]bool{}
			for _, l := range m.GetLabel() {
				names[l.GetName()] = true
			}

			whole = whole || !names["GPU_I_ID"]
			if names["GPU_I_ID"] && !names["GPU_CI_ID"] {
				instances++
			}
		}

		switch {
		case row.Type == CounterLabel:
			places[row.Field] = "all series"
		case whole && instances == 2:
			places[row.Field] = onGPU + " and " + onInstances
		case whole && instances == 0:
			places[row.Field] = onGPU
		case instances == 2:
			places[row.Field] = onInstances
		case instances == 0:
			places[row.Field] = onNothing
		default:
			t.Errorf("%s is there for %d of 2 instances", row.Field, instances)
		}
	}

	return places
}

// besideDoc is a row of the page's comparison.
type besideDoc struct{ Name, Type, Place, Difference string }

func besideDocs(t *testing.T) []besideDoc {
	t.Helper()
	places := placesUnderMIG(t)
	theirs := theirDefaults(t)

	var list []besideDoc
	for _, c := range DefaultCounters() {
		list = append(list, besideDoc{c.Field, string(c.Type), places[c.Field],
			besideDCGM(theirs[c.Field], c.Field, string(c.Type), places[c.Field])})
	}

	return list
}

// TestBesideDCGM holds the comparison complete: every default row of either side is in it, every
// difference has a reason, and no note is of a family that is not there.
func TestBesideDCGM(t *testing.T) {
	rows := map[string]bool{}

	list := theirDefaults(t)
	for _, d := range besideDocs(t) {
		rows[d.Name] = true

		theirs, ok := list[d.Name]
		if !ok {
			t.Errorf("%s is no row of dcgm-exporter's list", d.Name)
		}

		if d.Place != theirs.place && besideReasons()[[2]string{d.Place, theirs.place}] == "" {
			t.Errorf("%s: on a GPU with instances here %s, there %s: no reason", d.Name, d.Place, theirs.place)
		}

		if d.Type != theirs.kind {
			t.Errorf("%s is a %s, there a %s", d.Name, d.Type, theirs.kind)
		}
	}

	for name := range list {
		if !rows[name] {
			t.Errorf("%s of dcgm-exporter's list is missing", name)
		}
	}

	for _, name := range slices.Sorted(maps.Keys(besideNotes())) {
		if !rows[name] {
			t.Errorf("a note is about %s, which is no default row", name)
		}
	}
}
