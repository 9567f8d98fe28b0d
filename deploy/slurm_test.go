package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// The devices of testdata/scenarios/dgx-a100-mixed.yaml, as nvidia-smi shows them. The minor
// numbers are not the indices.
const (
	wholeGPU     = "GPU-cfdc96fa-1ae1-5b1f-a20d-70b43ddc1a35" // GPU 1, /dev/nvidia2
	wholeSlice   = "MIG-67b44da6-c9e9-54b9-9751-e166c58abd80" // GPU instance 7 of GPU 3
	firstOfTwo   = "MIG-dda49e4e-ead3-5485-b0ea-452d657ee2c8" // GPU instance 1 of GPU 4 has two MIG devices
	secondOfTwo  = "MIG-41ffc4a8-e2e5-554c-bda4-86f1c1ba5a1e"
	fakeListings = `#!/bin/sh
case "$*" in
-L) cat <<'EOT'
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5f65f8d5-d4b3-5c36-b975-c901d71a2c3a)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-cfdc96fa-1ae1-5b1f-a20d-70b43ddc1a35)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-00811850-ee92-574a-b356-24aa265037eb)
GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-5ad3a027-0a49-5142-9c3f-8908cd1fd7ec)
  MIG 1g.5gb      Device  0: (UUID: MIG-67b44da6-c9e9-54b9-9751-e166c58abd80)
GPU 4: NVIDIA A100-SXM4-40GB (UUID: GPU-c5373dea-8c32-574b-97ca-a30023defb83)
  MIG 1c.3g.20gb  Device  0: (UUID: MIG-dda49e4e-ead3-5485-b0ea-452d657ee2c8)
  MIG 2c.3g.20gb  Device  1: (UUID: MIG-41ffc4a8-e2e5-554c-bda4-86f1c1ba5a1e)
EOT
;;
-q) for pair in 07:1 0F:2 47:0 4E:3 87:4; do
	echo "GPU 00000000:${pair%:*}:00.0"
	echo "    Minor Number                          : ${pair#*:}"
done ;;
*) cat <<'EOT'
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|      Shared           |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC DEC OFA JPG    |
|==================+==================================+===========+=======================|
|  3    7   0   0  |            2205MiB /  4864MiB    | 14    N/A |  1   0    0    0    0 |
|  4    1   0   0  |            2205MiB /  4864MiB    | 14    N/A |  1   0    0    0    0 |
|  4    1   1   1  |            2205MiB /  4864MiB    | 14    N/A |  1   0    0    0    0 |
EOT
;;
esac
`
)

// slurmd runs prologs and epilogs as the daemon does: as root or another user, with few variables
// and no search path.
type slurmd struct {
	t         *testing.T
	scripts   string // their folder
	folder    string
	nvidiaSMI string
	bootID    string
}

func newSlurmd(t *testing.T) *slurmd {
	t.Helper()

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}

	s := &slurmd{t: t, scripts: "slurm", folder: filepath.Join(dir, "jobs"), nvidiaSMI: filepath.Join(dir, "nvidia-smi"),
		bootID: filepath.Join(dir, "boot")}
	writeFile(t, s.nvidiaSMI, fakeListings, 0o755)
	writeFile(t, s.bootID, "first\n", 0o644)

	return s
}

// run runs a script, which must succeed: Slurm drains the node otherwise. It returns what the
// script reports.
func (s *slurmd) run(script string, variables ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.scripts, script))
	cmd.WaitDelay = time.Minute // for what still holds its output, which slurmd reads to the end, too
	cmd.Env = append([]string{"NVIDIA_SMI=" + s.nvidiaSMI, "BOOT_ID_FILE=" + s.bootID, "LOGGER=false",
		"MIG_EXPORTER_HPC_JOB_MAPPING_DIR=" + s.folder}, variables...)

	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("%s %q: %v\n%s", script, variables, err, out)
	}

	return string(out)
}

// expect compares the files of devices with the wanted ones: jobs by name of the file. There is
// nothing else in the folder but what the exporter does not look at.
func (s *slurmd) expect(what string, want map[string]string) {
	s.t.Helper()

	entries, err := os.ReadDir(s.folder)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}

	got := map[string]string{}

	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			got[e.Name()] = strings.TrimSuffix(readFile(s.t, filepath.Join(s.folder, e.Name())), "\n")
		}
	}

	cmptest.Equal(s.t, what, got, want)
}

func TestPrologAndEpilog(t *testing.T) {
	for _, tt := range []struct {
		about     string
		variables string
		want      map[string]string
	}{
		{"whole GPUs by number, which is that of the device file", "SLURM_JOB_GPUS=2,1 CUDA_VISIBLE_DEVICES=0,1",
			map[string]string{"1": "11", "0": "11"}},
		{"whole GPUs by UUID, as since Slurm 25.11", "SLURM_JOB_GPUS=2 CUDA_VISIBLE_DEVICES=" + wholeGPU,
			map[string]string{"1": "11"}},
		{"MIG devices; their numbers are no GPUs'", "SLURM_JOB_GPUS=0,1 CUDA_VISIBLE_DEVICES=" + wholeSlice + "," + firstOfTwo,
			map[string]string{"3.7": "11", "4.1": "11"}},
		{"two MIG devices of one GPU instance", "CUDA_VISIBLE_DEVICES=" + firstOfTwo + "," + secondOfTwo,
			map[string]string{"4.1": "11"}},
		{"MIG devices of drivers before 470",
			"CUDA_VISIBLE_DEVICES=MIG-GPU-c5373dea-8c32-574b-97ca-a30023defb83/5/0", map[string]string{"4.5": "11"}},
		{"shards and MPS, which have no SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES=0", map[string]string{"2": "11"}},
		{"a number of a GPU that is split into MIG devices", "SLURM_JOB_GPUS=3", map[string]string{}},
		{"devices that are not here", "CUDA_VISIBLE_DEVICES=MIG-nope,GPU-nope,17", map[string]string{}},
		{"no GPU", "", map[string]string{}},
		{"no device files", "CUDA_VISIBLE_DEVICES=NoDevFiles", map[string]string{}},
	} {
		t.Run(tt.about, func(t *testing.T) {
			s := newSlurmd(t)
			variables := append(strings.Fields(tt.variables), "SLURM_JOB_ID=11")

			s.run("prolog.sh", variables...)
			s.expect("files", tt.want)

			s.run("epilog.sh", "SLURM_JOB_ID=11") // which GPUs it had is not told
			s.expect("files after the epilog", map[string]string{})
		})
	}
}

// TestHostileVariables: nothing in the variables is executed or leaves the folder; a job id that is
// no number is not written.
func TestHostileVariables(t *testing.T) {
	s := newSlurmd(t)

	canary := filepath.Join(t.TempDir(), "canary")
	for _, value := range []string{"$(touch " + canary + ")", "`touch " + canary + "`", "0; touch " + canary, "../../../" + canary,
		"a[$(touch " + canary + ")]", "x\n7\n", "-1", "*", "MIG-GPU-$(touch " + canary + ")/a[$(touch " + canary + ")]/0", ".lock"} {
		s.run("prolog.sh", "SLURM_JOB_ID="+value, "SLURM_JOB_GPUS=0", "SLURM_JOB_NAME="+value)
		s.run("prolog.sh", "SLURM_JOB_ID=12", "SLURM_JOB_GPUS="+value, "SLURM_JOB_NAME="+value)
		s.run("prolog.sh", "SLURM_JOB_ID=12", "CUDA_VISIBLE_DEVICES=GPU-x,"+value)
		s.run("epilog.sh", "SLURM_JOB_ID="+value)
	}

	s.expect("files", map[string]string{})

	if _, err := os.Stat(canary); err == nil {
		t.Error("a variable was executed")
	}

	s.run("prolog.sh", "SLURM_JOB_GPUS=0")
	s.run("epilog.sh")
	s.run("prolog.sh")
	s.expect("files without SLURM_JOB_ID", map[string]string{})
}

// TestSharedDevices: jobs on one GPU, also when their prologs and epilogs run at the same time, and
// a job that is requeued with the same id on another GPU.
func TestSharedDevices(t *testing.T) {
	s := newSlurmd(t)
	const jobs = 12

	var all sync.WaitGroup
	for job := range jobs {
		all.Go(func() { s.run("prolog.sh", fmt.Sprintf("SLURM_JOB_ID=%d", 100+job), "CUDA_VISIBLE_DEVICES=0") })
	}

	all.Wait()
	cmptest.Equal(t, "jobs of the GPU", len(strings.Fields(readFile(t, filepath.Join(s.folder, "2")))), jobs)

	for job := range jobs - 2 {
		all.Go(func() { s.run("epilog.sh", fmt.Sprintf("SLURM_JOB_ID=%d", 100+job)) })
	}

	all.Wait()
	left := strings.Fields(readFile(t, filepath.Join(s.folder, "2")))
	cmptest.Equal(t, "jobs left", len(left), 2)
	s.run("prolog.sh", "SLURM_JOB_ID=111", "SLURM_JOB_GPUS=2")
	s.expect("files after a requeue", map[string]string{"2": "110", "1": "111"})
	s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2")
	s.run("epilog.sh", "SLURM_JOB_ID=1")
	s.expect("files after the epilog of a job whose id begins another's", map[string]string{"2": "110", "1": "111\n11"})
}

// TestAfterAReboot: jobs of another boot have no epilog.
func TestAfterAReboot(t *testing.T) {
	s := newSlurmd(t)
	s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2")
	writeFile(t, s.bootID, "second\n", 0o644)
	s.run("prolog.sh", "SLURM_JOB_ID=12", "CUDA_VISIBLE_DEVICES="+wholeSlice)
	s.expect("files", map[string]string{"3.7": "12"})
}

// TestWithoutNvidiaSMI: numbers are taken for indices, UUIDs are left out, and it is reported.
func TestWithoutNvidiaSMI(t *testing.T) {
	for about, program := range map[string]string{
		"fails":        "exit 9",
		"ignores TERM": "trap '' TERM; read -r line <$0.fifo",
		// A stand-in for a process in a driver call: the signal to the process that was started
		// does not end it.
		"cannot be ended": "setsid sh -c \"read -r line <$0.fifo\" & read -r line <$0.fifo",
	} {
		t.Run(about, func(t *testing.T) {
			s := newSlurmd(t)
			writeFile(t, s.nvidiaSMI, "#!/bin/sh\n"+program+"\n", 0o755)

			blocker := s.nvidiaSMI + ".fifo"
			if err := syscall.Mkfifo(blocker, 0o600); err != nil {
				t.Fatal(err)
			}

			t.Cleanup(func() { // ends what still reads
				writer, err := os.OpenFile(blocker, os.O_RDWR, 0)
				if err = errors.Join(err, writer.Close()); err != nil {
					t.Error(err)
				}
			})

			for variables, want := range map[string]map[string]string{
				"SLURM_JOB_ID=11 SLURM_JOB_GPUS=2":                   {"2": "11"},
				"SLURM_JOB_ID=11 CUDA_VISIBLE_DEVICES=" + wholeSlice: {},
			} {
				said := s.run("prolog.sh", append(strings.Fields(variables), "SECONDS_TO_WAIT=0.2")...)
				s.expect(variables, want)

				if !strings.Contains(said, "nvidia-smi does not answer") {
					t.Errorf("%s: not reported:\n%s", variables, said)
				}
			}
		})
	}
}

// TestFolderOfTheExporter: without a variable the folder is that of the exporter's environment
// file.
func TestFolderOfTheExporter(t *testing.T) {
	s := newSlurmd(t)
	defaults := filepath.Join(t.TempDir(), "default")
	writeFile(t, defaults, "#MIG_EXPORTER_HPC_JOB_MAPPING_DIR=/nowhere\nARGS=\"\"\nMIG_EXPORTER_HPC_JOB_MAPPING_DIR=\""+s.folder+
		"\"\n", 0o644)
	without := []string{"MIG_EXPORTER_HPC_JOB_MAPPING_DIR=", "MIG_EXPORTER_DEFAULTS=" + defaults, "SLURM_JOB_ID=11"}
	s.run("prolog.sh", append(without, "SLURM_JOB_GPUS=2")...)
	s.expect("files", map[string]string{"1": "11"})
	s.run("epilog.sh", without...)
	s.expect("files after the epilog", map[string]string{})
}

// TestJobsAreServed: the exporter on the simulated node has the job on the whole GPU and on the GPU
// instance, and no longer after the epilog.
func TestJobsAreServed(t *testing.T) {
	s := newSlurmd(t)
	s.run("prolog.sh", "SLURM_JOB_ID=4711", "CUDA_VISIBLE_DEVICES="+wholeGPU+","+wholeSlice)
	exporter := serve(t, exec.Command(programs(t).exporter, "--driver=sim", "--sim.clock=step",
		"--sim.scenario=../testdata/scenarios/dgx-a100-mixed.yaml", "--web.listen-address=127.0.0.1:0",
		"--hpc.job-mapping-dir="+s.folder))
	jobs := func() (list []string) {
		if status, body := exporter.get("POST", "/-/sim/advance?by=1s"); status != 200 {
			t.Fatalf("%d %s", status, body)
		}

		_, metrics := exporter.get("GET", "/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "nvidia_") && strings.Contains(line, "hpc_job_info{") {
				list = append(list, strings.TrimSpace(line))
			}
		}

		return list
	}
	now := strings.Join(jobs(), "\n")
	cmptest.Equal(t, "series", strings.Count(now, `hpc_job="4711"`), 2)

	for _, want := range []string{"nvidia_gpu_hpc_job_info{", wholeGPU, "nvidia_mig_gpu_instance_hpc_job_info{",
		`gpu_instance="7"`} {
		if !strings.Contains(now, want) {
			t.Errorf("no %q in\n%s", want, now)
		}
	}

	s.run("epilog.sh", "SLURM_JOB_ID=4711")
	cmptest.Equal(t, "series after the epilog", jobs(), nil)
}

// TestShellcheck holds the scripts that are installed, and those of the image and of a release, to
// shellcheck.
func TestShellcheck(t *testing.T) {
	shellcheck := needs(t, "shellcheck")

	out, err := exec.Command(shellcheck, "-x", "slurm/prolog.sh", "slurm/epilog.sh", "slurm/folder.sh",
		"node-problem-detector/gpu-health.sh", "deb/postinst", "rpm/postinst", "rpm/prerm", "rpm/postrm",
		"deb/prerm", "deb/postrm", "image/assemble.sh", "dist.sh").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
