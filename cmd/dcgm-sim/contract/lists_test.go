package contract

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// What DCGM says of the fields of the default list (dcgm_fields.h, dcgm_fields.cpp): number, name,
// type, size, tag, level and NVML's number. The level decides what dcgm-exporter asks GPUs for.
func TestMetadataOfTheDefaultList(t *testing.T) {
	if !inChild(t, environment(t, scenarios+"a30.yaml")...) {
		return
	}

	defer embedded(t)()

	if ret := dcgm.FieldsInit(); ret != 0 {
		t.Fatal(ret)
	}

	facts := strings.Split(strings.TrimSpace(`
100 DCGM_FI_DEV_SM_CLOCK i 8 sm_clock 1 0
101 DCGM_FI_DEV_MEM_CLOCK i 8 memory_clock 1 0
140 DCGM_FI_DEV_MEMORY_TEMP i 8 memory_temp 1 82
150 DCGM_FI_DEV_GPU_TEMP i 8 gpu_temp 1 0
155 DCGM_FI_DEV_POWER_USAGE d 8 power_usage 1 0
156 DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION i 8 total_energy_consumption 1 83
202 DCGM_FI_DEV_PCIE_REPLAY_COUNTER i 8 pcie_replay_counter 1 0
203 DCGM_FI_DEV_GPU_UTIL i 8 gpu_utilization 1 0
204 DCGM_FI_DEV_MEM_COPY_UTIL i 8 mem_copy_utilization 1 0
206 DCGM_FI_DEV_ENC_UTIL i 8 enc_utilization 1 0
207 DCGM_FI_DEV_DEC_UTIL i 8 dec_utilization 1 0
230 DCGM_FI_DEV_XID_ERRORS i 8 xid_errors 5 0
251 DCGM_FI_DEV_FB_FREE i 8 fb_free 5 0
252 DCGM_FI_DEV_FB_USED i 8 fb_used 5 0
253 DCGM_FI_DEV_FB_RESERVED i 8 fb_resv 5 0
449 DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL i 8 nvlink_bandwidth_total 1 0
526 DCGM_FI_DEV_VGPU_LICENSE_STATUS i 8 vgpu_instance_license_status 2 0
393 DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS i 8 uncorrectable_remapped_rows 1 143
394 DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS i 8 correctable_remapped_rows 1 142
395 DCGM_FI_DEV_ROW_REMAP_FAILURE i 8 row_remap_failure 1 145
1 DCGM_FI_DRIVER_VERSION s 0 driver_version 0 0
1001 DCGM_FI_PROF_GR_ENGINE_ACTIVE d 0 gr_engine_active 5 0
1004 DCGM_FI_PROF_PIPE_TENSOR_ACTIVE d 0 tensor_active 5 0
1005 DCGM_FI_PROF_DRAM_ACTIVE d 0 dram_active 4 0
1009 DCGM_FI_PROF_PCIE_TX_BYTES i 0 pcie_tx_bytes 1 0
1010 DCGM_FI_PROF_PCIE_RX_BYTES i 0 pcie_rx_bytes 1 0
`), "\n")
	if len(facts) != len(defaultList(t)) {
		t.Fatalf("%d facts of %d counters", len(facts), len(defaultList(t)))
	}

	for i, name := range defaultList(t) {
		id, ok := dcgm.GetFieldID(name)
		if !ok {
			t.Fatalf("%s: no such field", name)
		}

		m := dcgm.FieldGetByID(id)

		got := fmt.Sprintf("%d %s %c %d %s %d %d", m.FieldID, name, m.FieldType, m.Size, m.Tag, m.EntityLevel, m.NvmlFieldID)
		if got != facts[i] {
			t.Errorf("%s, want %s", got, facts[i])
		}

		if global := m.EntityLevel == dcgm.FE_NONE; (m.Scope == 0) != global {
			t.Errorf("%s: scope %d", name, m.Scope)
		}
	}
}

func TestMetadataOfTheOptionalList(t *testing.T) {
	if !inChild(t, environment(t, scenarios+"a30.yaml")...) {
		return
	}

	defer embedded(t)()

	if ret := dcgm.FieldsInit(); ret != 0 {
		t.Fatal(ret)
	}

	for _, name := range optionalList() {
		id, ok := dcgm.GetFieldID(name)
		if !ok {
			t.Errorf("%s has no id", name)
			continue
		}

		m := dcgm.FieldGetByID(id)
		cmptest.Equal(t, "id of "+name, m.FieldID, id)

		if m.Tag == "" || m.FieldType == 0 {
			t.Errorf("%s: no tag or no type: %+v", name, m)
		}
	}
}

// Every field has its format for tables, and no two have a tag in common, by which they are found,
// too (dcgm_fields.h).
func TestFieldsByTag(t *testing.T) {
	program := compile(t, `
#include <dlfcn.h>
#include <stdio.h>
#include "dcgm_fields.h"
int main(int n, char **args)
{
	void *lib = dlopen(args[1], RTLD_NOW);
	dcgm_field_meta_p (*by_id)(unsigned short) = dlsym(lib, "DcgmFieldGetById");
	dcgm_field_meta_p (*by_tag)(const char *) = dlsym(lib, "DcgmFieldGetByTag");
	int count = 0;
	for (int id = 0; id < DCGM_FI_MAX_FIELDS; id++) {
		dcgm_field_meta_p m = by_id(id);
		if (!m)
			continue;
		count++;
		if (m->fieldId != id || by_tag(m->tag) != m || !m->valueFormat || !m->valueFormat->shortName[0] || m->valueFormat->width < 5)
			printf("field %d is wrong\n", id);
	}
	dcgm_field_meta_p power = by_id(DCGM_FI_DEV_POWER_USAGE);
	printf("%d %s[%s]%d %d\n", count > 100, power->valueFormat->shortName, power->valueFormat->unit, power->valueFormat->width, by_tag("no_such") == NULL);
	return 0;
}`, "-I"+headers(t), "-ldl")

	out, err := exec.Command(program, library()).CombinedOutput()
	if want := "1 POWER[ W]10 1\n"; err != nil || string(out) != want {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// What dcgm-exporter serves with its default list: of a GPU without MIG (g), of one with (m), of a
// GPU instance (i) and of one without a compute instance (o). Where MIG leaves gaps is the driver's
// doing, and the same with the real engine (DCGM 4.5.3).
func TestExporterServesTheDefaultList(t *testing.T) {
	for model, names := range listedModels() {
		text := listedNode(model, names)

		for kind, start := range map[string]func(t *testing.T) func(){"embedded": embedded, "remote": remote} {
			for mode, whole := range map[string]bool{"both": true, "flexibly": false} {
				t.Run(model+"-"+kind+"-"+mode, func(t *testing.T) {
					if !inChild(t, environment(t, scenario(t, text))...) {
						return
					}

					expectDefaultList(t, served(t, start, defaultList(t), whole), names, whole)
				})
			}
		}
	}
}

// With what is switched off in the files switched on too: the profiling that the default list lacks
// is where its own is.
func TestExporterServesTheProfilingList(t *testing.T) {
	for model, names := range listedModels() {
		for mode, want := range map[string]string{"both": "gmi", "flexibly": "gi"} {
			t.Run(model+"-"+mode, func(t *testing.T) {
				if !inChild(t, environment(t, scenario(t, listedNode(model, names)))...) {
					return
				}

				families := served(t, remote, append(defaultList(t), optionalList()...), mode == "both")
				expectDefaultList(t, subset(families, defaultList(t)), names, mode == "both")
				profiling := 0

				for _, name := range optionalList() {
					if strings.HasPrefix(name, "DCGM_FI_PROF_") {
						profiling++

						if got := places(t, families[name], names); got != want || len(families[name]) != len(want) {
							t.Errorf("%s: series of %q, want %q: %v", name, got, want, families[name])
						}
					}
				}

				if profiling != 5 {
					t.Errorf("%d fields of profiling, want 5", profiling)
				}

				for labels, v := range families["DCGM_FI_PROF_SM_ACTIVE"] { // the workload has 21 SMs: of the GPU, and of the 3g
					share, err := strconv.ParseFloat(v, 64)
					if err != nil {
						t.Errorf("SM_ACTIVE of %s: %v", labels, err)
					} else if share <= 0 || share >= 1 {
						t.Errorf("SM_ACTIVE of %s: got %s, want a share between 0 and 1", labels, v)
					}
				}
			})
		}
	}
}

func subset(families map[string]map[string]string, names []string) map[string]map[string]string {
	some := map[string]map[string]string{}

	for _, name := range names {
		if family, ok := families[name]; ok {
			some[name] = family
		}
	}

	return some
}

// listedModels are the models that the lists are served on, with the profiles of the GPU instances
// with and without a compute instance.
func listedModels() map[string][2]string {
	return map[string][2]string{"A100-40GB": {"3g.20gb", "1g.5gb"}, "H100-80GB": {"3g.40gb", "1g.10gb"}}
}

// listedNode is a node of two GPUs of a model, the second with both GPU instances.
func listedNode(model string, profiles [2]string) string {
	return strings.NewReplacer("MODEL", model, "3g@", profiles[0]+"@", "1g@", profiles[1]+"@").Replace(`gpus:
- {model: MODEL}
- {model: MODEL, mig: true, layout: ["3g@4", {gi: "1g@0", ci: []}]}
workloads: [{name: w, memory: 2GiB, sm: 21, dram: 0.5, tensor: 0.2, pcie: 1GiB, nvlink: 4GiB}]
processes: [{device: 0, workload: w}, {device: 1/3g@4, workload: w}]
`)
}

// served returns what an exporter of some counters serves after two seconds.
func served(t *testing.T, start func(t *testing.T) func(), counters []string, whole bool) map[string]map[string]string {
	t.Helper()
	n := node(t)
	defer start(t)()

	x, err := newExporter(counters, whole)
	if err != nil {
		t.Fatal(err)
	}

	if err := n.Advance(2 * time.Second); err != nil {
		t.Fatal(err)
	}

	families, err := x.scrape()
	if err != nil {
		t.Fatal(err)
	}

	return families
}

func remote(t *testing.T) func() {
	t.Helper()

	stop, err := dcgm.Init(dcgm.Standalone, "localhost:5555", "0")
	if err != nil {
		t.Fatal(err)
	}

	return stop
}

func expectDefaultList(t *testing.T, families map[string]map[string]string, profiles [2]string, whole bool) {
	t.Helper()
	total := 0

	for _, row := range defaultRows(t) {
		name := row[0]

		want := row[2]
		if row[1] == "label" {
			continue
		}

		if name == "DCGM_FI_DEV_XID_ERRORS" { // there was none
			want = ""
		} else {
			total++
		}

		if !whole {
			want = strings.ReplaceAll(want, "m", "")
		}

		if got := places(t, families[name], profiles); got != want || len(families[name]) != len(want) {
			t.Errorf("%s: series of %q, want %q: %v", name, got, want, families[name])
		}
	}

	if total == 0 || len(families) != total {
		t.Errorf("%d families, want %d", len(families), total)
	}

	for labels, v := range families["DCGM_FI_DEV_FB_RESERVED"] {
		// of a GPU instance it is 0: DCGM 4.5.3
		if isInstance := strings.Contains(labels, "GPU_I_ID"); isInstance != (v == "0") {
			t.Errorf("FB_RESERVED %s of %s", v, labels)
		}
	}

	for labels, v := range families["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] {
		if busy := strings.HasPrefix(labels, "gpu=0"); busy && v == "0" {
			t.Errorf("NVLINK_BANDWIDTH_TOTAL %s of %s", v, labels)
		}
	}
}

// places returns what the series of a family are of, in the order of "gmio".
func places(t *testing.T, family map[string]string, profiles [2]string) (list string) {
	t.Helper()

	have := map[byte]bool{}
	for labels := range family {
		have[whose(t, labels, profiles)] = true
	}

	for _, kind := range []byte("gmio") {
		if have[kind] {
			list += string(kind)
		}
	}

	return list
}

// whose returns what labels are of, and checks that they are complete.
func whose(t *testing.T, labels string, profiles [2]string) byte {
	t.Helper()

	for _, part := range []string{"UUID=GPU-", "pci_bus_id=0000", "modelName=NVIDIA ", driverVersion + "=580."} {
		if !strings.Contains(labels, part) {
			t.Errorf("%s in %s is missing", part, labels)
		}
	}

	switch {
	case strings.HasPrefix(labels, "gpu=0 "):
		return 'g'
	case strings.Contains(labels, " GPU_I_PROFILE="+profiles[0]+" GPU_I_ID=2 "):
		return 'i'
	case strings.Contains(labels, " GPU_I_PROFILE="+profiles[1]+" GPU_I_ID="):
		return 'o'
	case !strings.Contains(labels, "GPU_I_"):
		return 'm'
	}

	t.Errorf("labels %s", labels)

	return '?'
}
