package procinfo

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// writeStatus writes the files of a process. What we must not read says so.
func writeStatus(t *testing.T, procDir string, pid int, status string) {
	t.Helper()

	dir := filepath.Join(procDir, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	for name, text := range map[string]string{
		"status": status, "cmdline": "python3\x00--token=secret\x00", "environ": "TOKEN=secret\x00",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const betweenNameAndUser = "Umask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nNgid:\t0\nPid:\t7\nPPid:\t1\nTracerPid:\t0\n"

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	ids := "Uid:\t4242\t0\t0\t0\nGid:\t7\t7\t7\t7\n"
	writeStatus(t, dir, 7, "Name:\tpython3\n"+betweenNameAndUser+ids)
	writeStatus(t, dir, 8, "Name:\tx\\nUid:\\t0\n"+betweenNameAndUser+ids) // the kernel escapes line breaks
	writeStatus(t, dir, 9, "Name:\t\x1b[31m\u202eok\xff\n"+betweenNameAndUser+ids)
	writeStatus(t, dir, 10, "Name:\ta: b:\tc\n"+betweenNameAndUser+"Uid:\tnone\n")
	writeStatus(t, dir, 11, "")
	writeStatus(t, dir, 12, "Name:\t"+strings.Repeat("k", 200)+"\n")

	type description struct{ name, user string }

	for _, withUsers := range []bool{false, true} {
		r := New(dir, withUsers)
		if withUsers {
			r.users.lookup = func(string) (*user.User, error) { return nil, errors.New("there is no passwd") }
		}

		uid := ""
		if withUsers {
			uid = "4242"
		}

		for pid, want := range map[uint32]description{
			7:  {"python3", uid},
			8:  {`x\nUid:\t0`, uid},
			9:  {"\uFFFD[31m\uFFFDok\uFFFD", uid},
			10: {"a: b:\tc", ""},
			11: {},
			12: {strings.Repeat("k", maxName), ""},
			13: {}, // it has ended
		} {
			name, user := r.Describe(pid)
			want.name = strings.ReplaceAll(want.name, "\t", "\uFFFD")
			cmptest.Equal(t, fmt.Sprintf("process %d, users %v", pid, withUsers), description{name, user}, want)
		}
	}
}

// TestOwnProcess reads the process table of the kernel.
func TestOwnProcess(t *testing.T) {
	name, uid := New("/proc", true).Describe(uint32(os.Getpid()))
	if !strings.HasPrefix(name, "procinfo.test") || uid == "" {
		t.Errorf("this process is %q of %q", name, uid)
	}
}

// TestUsers: the id stands for a name that is not known yet or doesn't exist; a lookup that hangs
// delays no caller; names are asked for again after a while.
func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsers()
		names := map[string]string{"1000": "ada"}
		asked := map[string]int{}
		hang := make(chan struct{})
		u.lookup = func(uid string) (*user.User, error) {
			asked[uid]++

			if uid == "7" {
				<-hang
			}

			if names[uid] == "" {
				return nil, user.UnknownUserIdError(7)
			}

			return &user.User{Username: names[uid]}, nil
		}

		find := func(uid uint32, want string) {
			t.Helper()

			got := u.find(uid)
			synctest.Wait()
			cmptest.Equal(t, "user", got, want)
		}

		find(1000, "1000") // the lookup has only begun
		find(1000, "ada")
		find(2000, "2000")
		find(2000, "2000")
		cmptest.Equal(t, "lookups", asked, map[string]int{"1000": 1, "2000": 1})

		names["1000"] = "lovelace"

		time.Sleep(nameValid)
		find(1000, "ada")
		find(1000, "lovelace")

		find(7, "7") // hangs
		find(3000, "3000")
		find(3000, "3000")
		find(1000, "lovelace")
		close(hang)
		synctest.Wait()
		cmptest.Equal(t, "left to look up", len(u.wanted), 0)
		cmptest.Equal(t, "a goroutine is left", u.running, false)
	})
}

func TestUsersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsers()
		u.lookup = func(uid string) (*user.User, error) { return &user.User{Username: "u" + uid}, nil }

		for uid := range uint32(3 * maxUsers) {
			u.find(uid)
		}

		synctest.Wait()

		if len(u.known) > maxUsers || len(u.wanted) != 0 {
			t.Errorf("%d users are remembered, %d wanted; want at most %d and 0", len(u.known), len(u.wanted),
				maxUsers)
		}
	})
}
