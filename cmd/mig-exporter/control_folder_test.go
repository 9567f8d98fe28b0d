package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestStateFolderOfOthers: a state folder that another user can have prepared or can change is not
// used. Metrics are served, changes are refused with the path and what was expected; once it is
// corrected, all is well without a restart.
func TestStateFolderOfOthers(t *testing.T) {
	t.Parallel()

	for name, c := range unsafeFolders() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			state := filepath.Join(dir, "state")

			if err := c.prepare(state); errors.Is(err, os.ErrPermission) {
				t.Skip("NOT TESTED: only root may give files to another user")
			} else if err != nil {
				t.Fatal(err)
			}

			n := controlNodeIn(t, dir, write(t, "s.yaml", faultyRepartition))
			n.waitFor("partition control is read-only")
			n.expectNote("not safe to use: " + state + c.reason)
			n.scrape().expect(t, "metrics go on", 0, "nvidia_mig_gpu_instance_processes", `mig_profile="3g.20gb"`)

			out := n.must(1, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")
			if !strings.Contains(strings.Join(strings.Fields(out), " "), "not safe to use") {
				t.Errorf("migctl does not say why:\n%s", out)
			}

			if err := c.correct(state); err != nil {
				t.Fatal(err)
			}

			n.waitFor("is usable again")
			n.must(0, "plan", "--gpus", "0", "--devices", "7g.40gb=1") // its line in the audit log shows that it is writable
			n.idle()
			n.must(0, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")

			if text, err := os.ReadFile(state + ".secret"); err == nil && string(text) != "keep this" {
				t.Errorf("what the link led to was overwritten: %.40q", text)
			}
		})
	}
}

// unsafeFolder makes a state folder unsafe to use, and safe again; reason is what is said of it.
type unsafeFolder struct {
	prepare, correct func(state string) error
	reason           string
}

func unsafeFolders() map[string]unsafeFolder {
	return map[string]unsafeFolder{
		"a link": {
			func(state string) error {
				return errors.Join(os.Mkdir(state+".real", 0o700), os.Symlink(state+".real", state))
			},
			os.Remove,
			" is a symbolic link; expected the folder itself",
		},
		"writable by all": {
			func(state string) error { return errors.Join(os.Mkdir(state, 0o700), os.Chmod(state, 0o777)) },
			func(state string) error { return os.Chmod(state, 0o700) },
			" has the mode 0777, so that other users can write it",
		},
		"another user's": {
			func(state string) error { return errors.Join(os.Mkdir(state, 0o700), os.Chown(state, 4242, 4242)) },
			func(state string) error { return os.Chown(state, os.Geteuid(), os.Getegid()) },
			" belongs to user 4242; expected root",
		},
		"a slot is a link": {
			func(state string) error {
				return errors.Join(os.Mkdir(state, 0o700), os.WriteFile(state+".secret", []byte("keep this"), 0o600),
					os.Symlink(state+".secret", filepath.Join(state, "operation.1")))
			},
			func(state string) error { return os.Remove(filepath.Join(state, "operation.1")) },
			"/operation.1 is a symbolic link; expected a file that mig-exporter has created",
		},
	}
}

// TestAuditLogIsALink: the audit log is not written through a link, and no change is made without
// it.
func TestAuditLogIsALink(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", faultyRepartition))
	path := filepath.Join(c.dir, "state", "audit.jsonl")
	target := write(t, "secret", "keep this")
	c.idle()

	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}

	c.must(1, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")
	c.expectNote("partition control is read-only: the audit log cannot be written: not safe to use: " + path +
		" is a symbolic link")

	if text, err := os.ReadFile(target); err != nil || string(text) != "keep this" {
		t.Errorf("what the link leads to: %q, %v", text, err)
	}
}

// TestLostState: documents that are missing beside others that show that they were there are not
// taken for a new folder. One that vanished whole is.
func TestLostState(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		lose     func(state string) error
		readOnly bool
	}{
		"slots are zeroed": {func(state string) error {
			return errors.Join(zeroFile(state+"/operation.0"), zeroFile(state+"/operation.1"))
		}, true},
		"slots are missing": {func(state string) error {
			return errors.Join(os.Remove(state+"/operation.0"), os.Remove(state+"/operation.1"))
		}, true},
		"history is missing": {func(state string) error { return os.Remove(state + "/history") }, true},
		"all is missing":     {os.RemoveAll, false},
	} {
		t.Run(name, func(t *testing.T) {
			scenario := write(t, "s.yaml", faultyRepartition)
			n := controlNode(t, scenario)
			n.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=4")

			if code := n.stop(); code != exitOK {
				t.Fatalf("exit code %d", code)
			}

			if err := c.lose(filepath.Join(n.dir, "state")); err != nil {
				t.Fatal(err)
			}

			n = controlNodeIn(t, n.dir, scenario)
			if !c.readOnly {
				n.idle()
				return
			}

			n.until("it is read-only", func(s series) bool {
				return slices.Equal(s.of("mig_control_state", `state="read-only"`), []float64{1})
			})
			ids, states := n.operations()

			if states[0] != "recovery degraded" {
				t.Fatalf("%q", states)
			}

			if out := n.must(0, "operations", ids[0]); strings.Count(out, "Blocked: GPU-") != 2 {
				t.Errorf("not both GPUs are named:\n%s", out)
			}

			n.must(0, "accept", "--yes", ids[0])
			n.must(0, "apply", "--yes", "--gpus", "0", "--devices", "7g.40gb=1")
		})
	}
}

// zeroFile replaces all bytes of a file by zeros.
func zeroFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}

	return os.WriteFile(path, make([]byte, info.Size()), 0o600)
}
