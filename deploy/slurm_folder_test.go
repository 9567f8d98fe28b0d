package deploy

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// anotherUser is a user and group without rights, by their number on Debian.
const anotherUser = 65534

// trap is a folder of files, with a file elsewhere to which all names that the scripts write to are
// links, and with a FIFO that keeps whatever reads it waiting.
func (s *slurmd) trap() (victim string) {
	s.t.Helper()
	victim = filepath.Join(filepath.Dir(s.folder), "victim")
	writeFile(s.t, victim, "11\nprecious\n", 0o600)
	s.do(os.Mkdir(s.folder, 0o755))

	for _, name := range []string{".lock", ".new", ".boot", "0", "1"} {
		s.do(os.Symlink(victim, filepath.Join(s.folder, name)))
	}

	for _, name := range []string{"2", "0conf", "9x", "1.conf"} {
		writeFile(s.t, filepath.Join(s.folder, name), "11\n12\n", 0o644)
	}

	s.do(syscall.Mkfifo(filepath.Join(s.folder, "7"), 0o644))

	return victim
}

func (s *slurmd) do(err error) {
	s.t.Helper()

	if err != nil {
		s.t.Fatal(err)
	}
}

// tree returns all that is under a folder: files with their text, links with their target.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}

	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			all[path] = e.Type().String()
			return err
		}

		if e.Type() == fs.ModeSymlink {
			all[path], err = os.Readlink(path)
			return err
		}

		if e.Type() != 0 {
			all[path] = e.Type().String()
			return nil
		}

		text, err := os.ReadFile(path)
		all[path] = string(text)

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return all
}

// TestFolderOfOthers: neither script touches a folder that another user could have prepared, or to
// which another user could lead.
func TestFolderOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root may give files to another user")
	}

	for about, prepare := range map[string]func(s *slurmd){
		"all may write to it": func(s *slurmd) { s.do(os.Chmod(s.folder, 0o777)) },
		"all may write to it, sticky": func(s *slurmd) {
			s.do(os.Chmod(s.folder, 0o777|fs.ModeSticky))
		},
		"a group may write to it": func(s *slurmd) {
			s.do(os.Chown(s.folder, 0, anotherUser))
			s.do(os.Chmod(s.folder, 0o775))
		},
		"of another user": func(s *slurmd) { s.do(os.Chown(s.folder, anotherUser, anotherUser)) },
		"a link":          func(s *slurmd) { s.behindALink(s.folder) },
		"a link, named with a slash at the end": func(s *slurmd) {
			s.behindALink(s.folder)
			s.folder += "/"
		},
		"in a folder to which all may write":     func(s *slurmd) { s.do(os.Chmod(filepath.Dir(s.folder), 0o777)) },
		"in a folder to which a group may write": func(s *slurmd) { s.do(os.Chmod(filepath.Dir(s.folder), 0o775)) },
		"in a folder of another user":            func(s *slurmd) { s.do(os.Chown(filepath.Dir(s.folder), anotherUser, 0)) },
		"in a link":                              func(s *slurmd) { s.behindALink(filepath.Dir(s.folder)) },
		"not there, in a link": func(s *slurmd) {
			s.behindALink(filepath.Dir(s.folder))
			s.folder = filepath.Join(filepath.Dir(s.folder), "new/jobs")
		},
		"a file": func(s *slurmd) {
			s.do(os.Rename(s.folder, s.folder+".old"))
			writeFile(t, s.folder, "11\n", 0o644)
		},
		"relative": func(s *slurmd) { s.folder = "jobs" },
	} {
		t.Run(about, func(t *testing.T) {
			s := newSlurmd(t)
			above := filepath.Dir(filepath.Dir(s.folder))
			s.trap()
			prepare(s)
			before := tree(t, above)

			said := s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2,1")
			if !strings.Contains(said, "cannot be used") {
				t.Errorf("the prolog does not report it:\n%s", said)
			}

			s.run("epilog.sh", "SLURM_JOB_ID=11")
			cmptest.Equal(t, "files", tree(t, above), before)
		})
	}
}

// behindALink moves a file or folder and puts a link to it in its place.
func (s *slurmd) behindALink(path string) {
	s.t.Helper()
	s.do(os.Rename(path, path+".real"))
	s.do(os.Symlink(path+".real", path))
}

// TestLinksInTheFolder: links that another user left before the folder was closed to others lead
// the scripts nowhere, and files that are not theirs stay.
func TestLinksInTheFolder(t *testing.T) {
	s := newSlurmd(t)
	victim := s.trap()
	s.run("epilog.sh", "SLURM_JOB_ID=11")
	cmptest.Equal(t, "GPU 2 after the epilog", readFile(t, filepath.Join(s.folder, "2")), "12\n")
	s.run("prolog.sh", "SLURM_JOB_ID=13", "SLURM_JOB_GPUS=2") // GPU 1
	cmptest.Equal(t, "the file elsewhere", readFile(t, victim), "11\nprecious\n")
	const theirs = "11\n12"
	s.expect("files", map[string]string{"1": "13", "0conf": theirs, "9x": theirs, "1.conf": theirs})
}

// TestFolderInTmp: a folder above may be writable to all if it is sticky. What is missing is
// created.
func TestFolderInTmp(t *testing.T) {
	s := newSlurmd(t)
	s.do(os.Chmod(filepath.Dir(s.folder), 0o777|fs.ModeSticky))
	variables := []string{"MIG_EXPORTER_HPC_JOB_MAPPING_DIR=" + s.folder + "/a/../b c/", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2"}
	s.folder = filepath.Join(s.folder, "b c")
	s.run("prolog.sh", variables...)
	s.expect("files", map[string]string{"1": "11"})
	s.run("epilog.sh", variables...)
	s.expect("files after the epilog", map[string]string{})
}

// TestLockedFolder: a script that cannot have the lock changes nothing and says so.
func TestLockedFolder(t *testing.T) {
	s := newSlurmd(t)
	s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2")
	s.hold(filepath.Join(s.folder, ".lock"))

	for _, script := range []string{"prolog.sh", "epilog.sh"} {
		said := s.run(script, "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=1", "SECONDS_TO_WAIT=0.2")
		if !strings.Contains(said, "is locked") {
			t.Errorf("%s does not report it:\n%s", script, said)
		}
	}

	s.expect("files", map[string]string{"1": "11"})
}

// hold takes the lock on a file or folder until the end of the test.
func (s *slurmd) hold(path string) {
	s.t.Helper()
	file, err := os.Open(path)
	s.do(err)
	s.t.Cleanup(func() { s.do(file.Close()) })
	s.do(syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
}

// TestLockIsRoots: another user can neither open the lock nor, by a lock on the folder, keep the
// scripts waiting.
func TestLockIsRoots(t *testing.T) {
	s := newSlurmd(t)
	s.do(os.Mkdir(s.folder, 0o755))
	s.hold(s.folder)
	s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2", "SECONDS_TO_WAIT=10")
	s.expect("files", map[string]string{"1": "11"})
	s.expectLock()

	if os.Geteuid() == 0 {
		s.do(os.Chmod(filepath.Dir(filepath.Dir(s.folder)), 0o755))

		for name, want := range map[string]bool{"1": true, ".lock": false} {
			cmd := exec.Command("flock", "-n", name, "true")
			cmd.Dir = s.folder
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: anotherUser, Gid: anotherUser}}

			out, err := cmd.CombinedOutput()
			if (err == nil) != want {
				t.Errorf("another user locks %s: %v\n%s", name, err, out)
			}
		}
	}

	s.run("epilog.sh", "SLURM_JOB_ID=11", "SECONDS_TO_WAIT=10")
	s.expect("files after the epilog", map[string]string{})
}

// expectLock: the lock is a file of this user alone.
func (s *slurmd) expectLock() {
	s.t.Helper()
	info, err := os.Lstat(filepath.Join(s.folder, ".lock"))
	s.do(err)
	cmptest.Equal(s.t, "mode of the lock", info.Mode(), fs.FileMode(0o600))
	cmptest.Equal(s.t, "its user", info.Sys().(*syscall.Stat_t).Uid, uint32(os.Geteuid()))
}

// TestLeftovers: the scripts' own files work, whatever another user left in their place before the
// folder was closed to others, and what it is linked to stays as it is.
func TestLeftovers(t *testing.T) {
	for _, name := range []string{".lock", ".boot", ".new"} {
		for about, leave := range map[string]func(s *slurmd, path, victim string){
			"a link":            func(s *slurmd, path, victim string) { s.do(os.Symlink(victim, path)) },
			"a link to nowhere": func(s *slurmd, path, _ string) { s.do(os.Symlink("/nowhere/file", path)) },
			"a FIFO":            func(s *slurmd, path, _ string) { s.do(syscall.Mkfifo(path, 0o600)) },
			"a link to a FIFO": func(s *slurmd, path, victim string) {
				s.do(syscall.Mkfifo(victim+".fifo", 0o600))
				s.do(os.Symlink(victim+".fifo", path))
			},
			"a folder with a file": func(s *slurmd, path, _ string) { writeFile(s.t, path+"/file", "", 0o600) },
			"a hard link to what another program has locked": func(s *slurmd, path, victim string) {
				s.do(os.Link(victim, path))
				s.hold(victim)
			},
			"a file that all may open, locked": func(s *slurmd, path, _ string) {
				writeFile(s.t, path, "", 0o644)
				s.hold(path)
			},
			"a file of another user": func(s *slurmd, path, _ string) {
				if os.Geteuid() != 0 {
					s.t.Skip("NOT TESTED: only root may give files to another user")
				}

				writeFile(s.t, path, "", 0o600)
				s.do(os.Chown(path, anotherUser, anotherUser))
			},
		} {
			t.Run(name+", "+about, func(t *testing.T) {
				s := newSlurmd(t)
				s.do(os.Mkdir(s.folder, 0o755))
				victim := filepath.Join(filepath.Dir(s.folder), "victim")
				writeFile(t, victim, "precious\n", 0o600)
				leave(s, filepath.Join(s.folder, name), victim)
				s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2", "SECONDS_TO_WAIT=10")
				s.run("prolog.sh", "SLURM_JOB_ID=12", "SLURM_JOB_GPUS=2", "SECONDS_TO_WAIT=10") // not after a reboot
				s.run("prolog.sh", "SLURM_JOB_ID=13", "SLURM_JOB_GPUS=1", "SECONDS_TO_WAIT=10")
				s.run("epilog.sh", "SLURM_JOB_ID=13", "SECONDS_TO_WAIT=10")
				s.expect("files", map[string]string{"1": "11\n12"})
				s.expectLock()
				cmptest.Equal(t, "the file elsewhere", readFile(t, victim), "precious\n")
			})
		}
	}
}

// TestDeviceThatIsNoFile: a FIFO or a folder with the name of a device keeps no script from its
// end; the folder is reported.
func TestDeviceThatIsNoFile(t *testing.T) {
	s := newSlurmd(t)
	s.run("prolog.sh", "SLURM_JOB_ID=10", "SLURM_JOB_GPUS=1")
	s.do(syscall.Mkfifo(filepath.Join(s.folder, "1"), 0o644))
	s.do(os.Mkdir(filepath.Join(s.folder, "2"), 0o755))

	said := s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2,0")
	if !strings.Contains(said, "file 2 cannot be written") {
		t.Errorf("the prolog does not report the folder:\n%s", said)
	}

	s.run("epilog.sh", "SLURM_JOB_ID=10")
	s.do(os.Remove(filepath.Join(s.folder, "2")))
	s.expect("files", map[string]string{"1": "11"})
}

// TestScriptsEndWell: whatever ends a script, even the shell itself, it exits with 0.
func TestScriptsEndWell(t *testing.T) {
	s := newSlurmd(t)

	s.scripts = t.TempDir()
	for _, script := range []string{"prolog.sh", "epilog.sh"} {
		writeFile(t, filepath.Join(s.scripts, script), readFile(t, filepath.Join("slurm", script)), 0o755)
	}

	writeFile(t, filepath.Join(s.scripts, "folder.sh"), "set -u\n: \"$unset\"\n", 0o644)

	for _, script := range []string{"prolog.sh", "epilog.sh"} {
		if said := s.run(script); !strings.Contains(said, "unbound variable") {
			t.Errorf("the shell does not end %s:\n%s", script, said)
		}
	}
}

// TestScriptsAreLinked: sites link the scripts into folders of their own. A copy without folder.sh
// does nothing, and says so.
func TestScriptsAreLinked(t *testing.T) {
	s := newSlurmd(t)
	dir := t.TempDir()

	for _, script := range []string{"prolog.sh", "epilog.sh"} {
		path, err := filepath.Abs(filepath.Join("slurm", script))
		s.do(err)
		s.do(os.Symlink(path, filepath.Join(dir, script)))
		writeFile(t, filepath.Join(dir, "copied-"+script), readFile(t, path), 0o755)
	}

	s.scripts = dir
	s.run("prolog.sh", "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2")
	s.expect("files", map[string]string{"1": "11"})
	s.run("epilog.sh", "SLURM_JOB_ID=11")
	s.expect("files after the epilog", map[string]string{})

	for _, script := range []string{"copied-prolog.sh", "copied-epilog.sh"} {
		if said := s.run(script, "SLURM_JOB_ID=11", "SLURM_JOB_GPUS=2"); !strings.Contains(said, "folder.sh") {
			t.Errorf("%s does not report it:\n%s", script, said)
		}
	}

	s.expect("files", map[string]string{})
}
