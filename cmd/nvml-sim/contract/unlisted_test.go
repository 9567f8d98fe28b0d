package contract

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unlistedClient calls what nvml.h does not declare: every function of the export table, as
// nvidia-smi does, and the names that two functions had before R470.
const unlistedClient = `
#include <dlfcn.h>
#include <stdio.h>
#define GET(type, name) type (*name)() = (type (*)())dlsym(library, #name)
int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW);
	GET(int, nvmlInit_v2); GET(int, nvmlInternalGetExportTable); GET(int, nvmlGetBlacklistDeviceCount);
	GET(int, nvmlGetBlacklistDeviceInfoByIndex);
	const void **table = 0;
	static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
	unsigned count = 7, others = 0;
	char info[512];
	printf("%d ", nvmlInternalGetExportTable(&table, id));
	printf("%d %d\n", nvmlInternalGetExportTable(0, id), nvmlInternalGetExportTable(&table, (void *)0));
	size_t places = (size_t)table[0] / sizeof *table;
	for (size_t i = 1; i < places; i++)
		if (((int (*)(void *, unsigned *, int, void *))table[i])(library, &count, 0x22, info) != 3 || count != 7)
			others++;
	printf("%d of %d\n", others, (int)places);
	int early = nvmlGetBlacklistDeviceCount(&count), init = nvmlInit_v2(), late = nvmlGetBlacklistDeviceCount(&count);
	printf("%d %d %d %u %d\n", early, init, late, count, nvmlGetBlacklistDeviceInfoByIndex(0, info));
	return 0;
}`

func TestUnlistedFunctions(t *testing.T) {
	cmd := exec.Command(compile(t, unlistedClient, "-ldl"), built("libnvidia-ml.so.1"))
	cmd.Env = append(os.Environ(), "MIG_SIM_SCENARIO="+scenarios+"a30.yaml")
	out, err := cmd.CombinedOutput()

	const expected = "0 2 2\n0 of 1024\n1 0 0 0 3\n"
	if err != nil || string(out) != expected {
		t.Errorf("%v, %q, want %q", err, out, expected)
	}
}

// nvidiaSMIVariable names a program: NVIDIA's own nvidia-smi, which is not free to be shipped.
// docs/simulated-node.md says where it comes from.
const nvidiaSMIVariable = "NVML_SIM_NVIDIA_SMI"

// NVIDIA's nvidia-smi on the library, verb by verb, on one node. Each process of it sees what those
// before have done.
func TestNVIDIASMI(t *testing.T) {
	program := os.Getenv(nvidiaSMIVariable)
	if program == "" {
		t.Skipf("NOT TESTED: %s names no nvidia-smi; 535.261.03 and 550.163.01 were tried", nvidiaSMIVariable)
	}

	env := append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(built("libnvidia-ml.so.1")), "MIG_SIM_CLOCK=step",
		"MIG_SIM_STATE="+filepath.Join(t.TempDir(), "state"), "MIG_SIM_SCENARIO="+scenarioFile(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true}, {model: H100-80GB}]
workloads: [{name: work, memory: 2GiB, sm: 60, pcie: 10MiB}]
processes: [{gpu: 1, workload: work}]
`))

	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"-L", `GPU 0: NVIDIA A100-SXM4-40GB \(UUID: GPU-`, 0},
		{"mig -lgip -i 0", `MIG 2g\.10gb +14 +3/3 +9\.75 `, 0},
		{"mig -lgipp -i 0", `Profile ID 15 Placements: \{0,2,4,6\}:2`, 0},
		{"mig -cgi 19,14,5 -C -i 0",
			`(?s)GPU instance ID 13 .*GPU instance ID  5 .*GPU instance ID  1 on GPU  0 using profile MIG 4g`, 0},
		{"mig -lgi -i 0", `MIG 2g\.10gb +14 +5 +4:2 `, 0},
		{"mig -lcip -i 0", `MIG 1c\.4g\.20gb +0 +0/4 +14 `, 0},
		{"mig -lcipp -i 0", `GI  1 Profile ID  0 Placements: \{0,1,2,3\}:1`, 0},
		{"mig -lci -i 0", `MIG 4g\.20gb +3 +0 +0:4 `, 0},
		{"-L", `MIG 2g\.10gb +Device  1: \(UUID: MIG-`, 0},
		{"", `(?s)Enabled.*MIG devices:.*/ 20096MiB`, 0},
		{"mig -cgi 9 -i 0", `Insufficient Resources`, 23},
		{"-i 0 -mig 0", `In use by another client`, 0},
		{"mig -dci -gi 1 -ci 0 -i 0", `Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  1`, 0},
		{"mig -cci 1c.4g.20gb -gi 1 -i 0", `Successfully created compute instance`, 0},
		{"mig -dci -i 0", `Successfully destroyed compute instance`, 0},
		{"mig -dgi -i 0", `Successfully destroyed GPU instance ID 13 from GPU  0`, 0},
		{"-i 0 -mig 0", `Disabled MIG Mode for GPU 00000000:07:00\.0`, 0},
		{"-i 0 -mig 1", `Enabled MIG Mode for GPU 00000000:07:00\.0`, 0},
		{"-i 1 -q", `(?s)Reset Required +: No.*Replay Number Rollovers +: 0.*Tx Throughput +: 10485 KB/s.*Max Power Limit +: 700\.00 W`, 0},
		{"-i 1 --format=csv,noheader --query-gpu=name,mig.mode.current,memory.used,power.limit",
			`NVIDIA H100 80GB HBM3, Disabled, \d+ MiB, 700\.00 W`, 0},
	} {
		cmd := exec.Command(program, strings.Fields(c.args)...)
		cmd.Env = env

		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("nvidia-smi %s: exit code %d, want %d\n%s", c.args, got, c.code, out)
		}

		if !regexp.MustCompile(c.want).Match(out) {
			t.Errorf("nvidia-smi %s: no %q in\n%s", c.args, c.want, out)
		}

		if wrong := regexp.MustCompile(`Invalid Argument|Unknown Error`).Find(out); wrong != nil {
			t.Errorf("nvidia-smi %s: %q in\n%s", c.args, wrong, out)
		}
	}
}
