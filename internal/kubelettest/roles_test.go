package kubelettest

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Environment variables by which the roles find each other, and make e2e-kubelet what it has built.
const (
	roleVariable      = "KUBELETTEST_ROLE"      // empty for the supervisor
	workspaceVariable = "KUBELETTEST_WORKSPACE" // the temporary folder of a run
	parkVariable      = "KUBELETTEST_PARK"      // if set, the tests wait to be killed once the node is up
	binariesVariable  = "KUBELETTEST_BINARIES"  // folder of kubelet and kube-apiserver
	programsVariable  = "KUBELETTEST_PROGRAMS"  // folder of the programs and libnvidia-ml.so.1
	logsVariable      = "KUBELETTEST_LOGS"      // folder in which the logs are kept
)

const (
	roleInit    = "init"
	roleTests   = "tests"
	roleJanitor = "janitor"
)

// parked is what the tests print when the node is up and they wait to be killed.
const parked = "the node is up, waiting to be killed"

func TestMain(m *testing.M) {
	var err error
	status := 0

	switch role := os.Getenv(roleVariable); role {
	case "":
		err = supervise()
	case roleInit:
		status, err = initNamespaces()
	case roleTests:
		status, err = runTests(m)
	case roleJanitor:
		err = cleanUp()
	default:
		err = fmt.Errorf("no role %q", role)
	}

	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmp.Or(os.Getenv(roleVariable), "supervisor"), err)
		status = max(status, 1)
	}

	os.Exit(status)
}

// supervise checks what the run needs, proves that a killed run leaves nothing behind, and runs the
// tests.
func supervise() error {
	// The kernel kills the init process when the thread that started it ends.
	runtime.LockOSThread()

	if err := checkRequirements(); err != nil {
		return err
	}

	before, err := readHost()
	if err != nil {
		return err
	}

	if os.Getenv(parkVariable) == "" && !hasSelection() {
		if err := killedRun(); err != nil {
			return fmt.Errorf("a run that is killed: %w", err)
		}

		if err := before.compare("a run was killed"); err != nil {
			return err
		}

		fmt.Println("a run that was killed has left the host as it was")
	}

	failed := superviseRun()

	return errors.Join(failed, before.compare("the tests"))
}

// hasSelection reports whether single tests were selected on the command line.
func hasSelection() bool {
	for _, arg := range os.Args[1:] {
		if run, ok := strings.CutPrefix(arg, "-test.run="); ok && run != "" {
			return true
		}
	}

	return false
}

// superviseRun runs the tests in new namespaces and waits until the janitor has removed everything
// else.
func superviseRun() error {
	workspace, err := os.MkdirTemp("", "kubelettest-")
	if err != nil {
		return err
	}

	janitor, err := startJanitor(workspace)
	if err != nil {
		return errors.Join(err, os.RemoveAll(workspace))
	}

	err = createCgroups(cgroupName(workspace))
	if err == nil {
		c := command(roleInit, workspace)
		c.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS |
				syscall.CLONE_NEWIPC,
			Pdeathsig: syscall.SIGKILL,
		}
		err = c.Run()
	}

	return errors.Join(err, janitor.finish())
}

// command returns this program in another role, with the same arguments.
func command(role, workspace string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), roleVariable+"="+role, workspaceVariable+"="+workspace)
	c.Stdout = os.Stdout
	c.Stderr = os.Stderr

	return c
}

// killedRun starts a whole run, kills its supervisor when the node is up, and waits for its
// janitor: the last process that has the run's standard output.
func killedRun() error {
	c := command("", "")
	c.Env = append(c.Env, parkVariable+"=1")

	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()

	c.Stdout = w
	if err := c.Start(); err != nil {
		return err
	}

	if err := w.Close(); err != nil {
		return err
	}

	lines := bufio.NewScanner(r)

	up := false
	for lines.Scan() {
		if up = lines.Text() == parked; up {
			break
		}

		fmt.Println(lines.Text())
	}

	if !up {
		return errors.Join(errors.New("the node did not start"), c.Wait())
	}

	if err := c.Process.Kill(); err != nil {
		return err
	}

	var ended *exec.ExitError
	if err := c.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("its supervisor ended with %w", err)
	}

	_, err = io.Copy(io.Discard, r)

	return err
}

// janitor is the process that cleans up after the supervisor, which holds its standard input open.
type janitor struct {
	process *exec.Cmd
	alive   io.Closer
}

func startJanitor(workspace string) (*janitor, error) {
	c := command(roleJanitor, workspace)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of reach of a signal to the process group

	alive, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}

	return &janitor{c, alive}, c.Start()
}

func (j *janitor) finish() error {
	if err := errors.Join(j.alive.Close(), j.process.Wait()); err != nil {
		return fmt.Errorf("janitor: %w", err)
	}

	return nil
}

// cleanUp waits until the supervisor has ended, however it did, and removes what has outlived the
// namespaces.
func cleanUp() error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)

	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}

	workspace := os.Getenv(workspaceVariable)

	return errors.Join(removeCgroups(cgroupName(workspace)), os.RemoveAll(workspace))
}

// initNamespaces is process 1: it prepares the namespaces, starts the tests and waits for every
// orphan. The kernel kills all other processes of the namespace when it ends.
func initNamespaces() (status int, err error) {
	if err := preparePrivateHost(os.Getenv(workspaceVariable)); err != nil {
		return 1, err
	}

	tests := command(roleTests, os.Getenv(workspaceVariable))

	process, err := os.StartProcess(tests.Path, tests.Args, &os.ProcAttr{
		Env: tests.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, err
	}

	for {
		var ended syscall.WaitStatus

		pid, err := syscall.Wait4(-1, &ended, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, err
		case pid == process.Pid && ended.Signaled():
			return 1, fmt.Errorf("the tests were ended by signal %s", ended.Signal())
		case pid == process.Pid:
			return ended.ExitStatus(), nil
		}
	}
}

// runTests starts the node and runs the tests on it.
func runTests(m *testing.M) (status int, err error) {
	if os.Getenv(parkVariable) != "" {
		if err := startSharedNode(); err != nil {
			return 1, err
		}

		fmt.Println(parked)

		select {}
	}

	if err := startSharedNode(); err != nil {
		return 1, err
	}

	status = m.Run()

	if !hasSelection() {
		err = errors.Join(recordUse(), shared.checkAudit())
	}

	return status, errors.Join(err, writeMeasurements(), shared.keepExporterLog())
}

// checkRequirements returns an error that says what is missing, and how to get it.
func checkRequirements() error {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root's rights")
	}

	for program, debian := range map[string]string{"containerd": "containerd", "runc": "runc", "etcd": "etcd-server",
		"busybox": "busybox-static", "mount": "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program+" (Debian: "+debian+")")
		}
	}

	for variable, files := range map[string][]string{
		binariesVariable: {"kubelet", "kube-apiserver"},
		programsVariable: {"mig-exporter", "migctl", "kubectl-mig", "libnvidia-ml.so.1"},
	} {
		for _, file := range files {
			if _, err := os.Stat(filepath.Join(os.Getenv(variable), file)); err != nil || os.Getenv(variable) == "" {
				missing = append(missing, file+" in $"+variable+" (make e2e-kubelet builds it)")
			}
		}
	}

	if len(missing) > 0 {
		return errors.New("missing: " + strings.Join(missing, ", "))
	}

	return nil
}

// kernelAtLeast reports whether the kernel has this version or a later one.
func kernelAtLeast(major, minor int) bool {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return false
	}

	parts := strings.SplitN(string(release), ".", 3)
	if len(parts) < 3 {
		return false
	}

	have, err1 := strconv.Atoi(parts[0])
	haveMinor, err2 := strconv.Atoi(parts[1])

	return err1 == nil && err2 == nil && (have > major || have == major && haveMinor >= minor)
}
