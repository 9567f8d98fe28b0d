package kernellog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// answer is what a Read of a fakeDevice returns.
type answer struct {
	record string
	err    error
}

// fakeDevice answers what the test sends, and waits in between.
type fakeDevice struct {
	answers chan answer
	closed  chan struct{}
}

func newFakeDevice(first ...answer) *fakeDevice {
	d := &fakeDevice{answers: make(chan answer, 10_000), closed: make(chan struct{})}
	for _, a := range first {
		d.answers <- a
	}

	return d
}

func (d *fakeDevice) Read(p []byte, wait bool) (int, error) {
	select {
	case a := <-d.answers:
		return copy(p, a.record), a.err
	default:
		if !wait {
			return 0, syscall.EAGAIN
		}
	}

	select {
	case a := <-d.answers:
		return copy(p, a.record), a.err
	case <-d.closed:
		return 0, os.ErrClosed
	}
}

func (d *fakeDevice) Close() error {
	close(d.closed)
	return nil
}

// record returns the record of an XID 79 of a GPU, with a sequence number and the seconds since the
// boot.
func record(sequence, seconds int) answer {
	return xidRecord(sequence, seconds, "79, GPU has fallen off the bus.")
}

func xidRecord(sequence, seconds int, text string) answer {
	return answer{record: fmt.Sprintf("4,%d,%d000000,-;NVRM: Xid (PCI:0000:1b:00): %s\n", sequence, seconds, text)}
}

// logTest is a Log of fake devices, an hour after the boot.
type logTest struct {
	*Log
	devices []any // *fakeDevice or error: what open returns, in turn
}

func startLog(devices ...any) *logTest {
	lt := &logTest{devices: devices}
	begun := time.Now()
	lt.Log = Start(Options{
		Open: func() (Device, error) {
			next := lt.devices[0]
			lt.devices = lt.devices[1:]

			if err, ok := next.(error); ok {
				return nil, err
			}

			return next.(Device), nil
		},
		Now: time.Now, Uptime: func() time.Duration { return time.Hour + time.Since(begun) },
	})

	return lt
}

// times returns the times of XIDs, in seconds after the start of the test.
func times(lines []gpu.LoggedXID, begun time.Time) []float64 {
	var list []float64
	for _, x := range lines {
		list = append(list, x.Time.Sub(begun).Seconds())
	}

	return list
}

func TestFollowLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		d := newFakeDevice(record(7, 100), answer{record: "6,8,101000000,-;eth0: up\n"}, record(9, 3000), record(10, 3700))
		l := startLog(d)
		defer l.Close()

		lines, lost := l.Take()
		cmptest.Equal(t, "those before the start: the last time, never in the future", times(lines, begun), []float64{0})
		cmptest.Equal(t, "they are from before the start", lines[0].BeforeStart, true)
		cmptest.Equal(t, "lost", lost, false)

		time.Sleep(10 * time.Second)
		d.answers <- record(11, 3610)
		synctest.Wait()
		lines, lost = l.Take()
		cmptest.Equal(t, "a live line has the time of receipt", times(lines, begun), []float64{10})
		cmptest.Equal(t, "it is from before the start", lines[0].BeforeStart, false)
		cmptest.Equal(t, "lost", lost, false)
		state := l.State()
		cmptest.Equal(t, "up", state.Up && state.Err == nil && state.LastSuccess.Equal(time.Now()), true)
	})
}

func TestTimesOfOldLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l := startLog(newFakeDevice(record(1, 600)))
		defer l.Close()
		lines, _ := l.Take()
		cmptest.Equal(t, "ten minutes after the boot, an hour ago", times(lines, begun), []float64{-3000})
	})
}

// TestLostRecords: an overrun shows by the gap in the sequence numbers, and so does a record that
// is too long.
func TestLostRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDevice(record(1, 1), answer{err: syscall.EPIPE}, record(5, 5))
		l := startLog(d)
		defer l.Close()

		if _, lost := l.Take(); lost {
			t.Error("records from before the start count as lost")
		}

		for _, failure := range []error{syscall.EPIPE, syscall.EINVAL} {
			next := int(l.next)
			d.answers <- answer{err: failure}
			d.answers <- record(next+1, 3600)
			d.answers <- record(next+2, 3601)
			synctest.Wait()

			lines, lost := l.Take()
			if len(lines) != 2 || !lost {
				t.Errorf("%v: %d lines, lost %v, want 2 and that some are lost", failure, len(lines), lost)
			}

			if _, lost = l.Take(); lost {
				t.Errorf("%v: lost again", failure)
			}
		}

		cmptest.Equal(t, "up", l.State().Up, true)
	})
}

// TestReopen: the log is opened again after a failure, and is read on from where it was.
func TestReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := newFakeDevice(record(1, 1))
		denied := fmt.Errorf("%w: open /dev/kmsg", gpu.ErrNoPermission)
		begun := time.Now()
		l := startLog(broken, denied, denied, newFakeDevice(record(1, 1), record(2, 3620), record(3, 3621)))
		defer l.Close()
		l.Take()

		broken.answers <- answer{err: syscall.EIO}
		synctest.Wait()

		state := l.State()
		if state.Up || !errors.Is(state.Err, syscall.EIO) || state.LastSuccess.IsZero() {
			t.Errorf("after the failure: %+v", state)
		}

		time.Sleep(retryEvery)
		synctest.Wait()

		if state = l.State(); state.Up || !errors.Is(state.Err, gpu.ErrNoPermission) {
			t.Errorf("without the right: %+v", state)
		}

		time.Sleep(2 * retryEvery)
		synctest.Wait()

		lines, lost := l.Take()
		if len(lines) != 2 || lost || lines[0].BeforeStart || !l.State().Up {
			t.Errorf("%+v, lost %v, %+v", lines, lost, l.State())
		}

		cmptest.Equal(t, "when they were printed", times(lines, begun), []float64{20, 21})
	})
}

// TestLogThatCannotBeRead from the start on: what it has later is from before the start or after it
// by its time.
func TestLogThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l := startLog(gpu.ErrNoPermission, newFakeDevice(record(1, 1), record(2, 3610), record(3, 3610)))
		defer l.Close()

		state := l.State()
		if state.Up || !errors.Is(state.Err, gpu.ErrNoPermission) || !state.LastSuccess.IsZero() {
			t.Errorf("%+v", state)
		}

		time.Sleep(retryEvery)
		synctest.Wait()

		lines, _ := l.Take()
		if len(lines) != 3 || !lines[0].BeforeStart || lines[1].BeforeStart || lines[2].BeforeStart {
			t.Errorf("%+v", lines)
		}

		cmptest.Equal(t, "when they were printed", times(lines, begun), []float64{1 - 3600, 10, 10})
	})
}

// TestRecordsThatWereOverwrittenMeanwhile are lost if the log cannot be read at the start, unless
// the oldest one left is from before it.
func TestRecordsThatWereOverwrittenMeanwhile(t *testing.T) {
	for seconds, want := range map[int]bool{3599: false, 3610: true} {
		synctest.Test(t, func(t *testing.T) {
			l := startLog(gpu.ErrNoPermission, newFakeDevice(record(100, seconds), record(101, 3620)))
			defer l.Close()
			time.Sleep(retryEvery)
			synctest.Wait()
			_, lost := l.Take()
			cmptest.Equal(t, fmt.Sprintf("lost if the oldest is of second %d", seconds), lost, want)
		})
	}
}

// TestEndlessFailures do not occupy a processor: a log that returns nothing but failures is opened
// again later.
func TestEndlessFailures(t *testing.T) {
	for _, failure := range []answer{{err: syscall.EINVAL}, {}} {
		synctest.Test(t, func(t *testing.T) {
			d := newFakeDevice()
			l := startLog(d, newFakeDevice())
			defer l.Close()

			for range 2 * maxSkipped {
				d.answers <- failure
			}

			synctest.Wait()

			if state := l.State(); state.Up {
				t.Errorf("%v: %+v", failure.err, state)
			}
		})
	}
}

// TestLinesThatAreNotTaken are bounded, and then count as lost.
func TestLinesThatAreNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDevice()
		l := startLog(d)
		defer l.Close()

		for i := range maxLines + 1 {
			d.answers <- record(i, 3600)
		}

		synctest.Wait()

		if lines, lost := l.Take(); len(lines) != maxLines || !lost {
			t.Errorf("%d lines, lost %v", len(lines), lost)
		}
	})
}

// TestLinesOfOneIncident: the driver prints several lines about one exception of a program.
func TestLinesOfOneIncident(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFakeDevice()
		l := startLog(d)
		defer l.Close()
		counted := func(texts ...string) int {
			for _, text := range texts {
				d.answers <- xidRecord(int(l.next), 3600, text)
				synctest.Wait()
			}

			lines, _ := l.Take()

			return len(lines)
		}

		warp := "13, pid=5, name=x, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction"
		esr := "13, pid=5, name=x, Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24"
		cmptest.Equal(t, "one exception", counted(warp, esr, esr), 1)
		cmptest.Equal(t, "of two more programs", counted(esr, "13, pid=6, name=x, y", "13, pid=7, name=x, y"), 2)
		other := "45, pid=5, name=x, y"
		cmptest.Equal(t, "with other XIDs", counted("43, pid=5, name=x, y", other, other), 2)
		time.Sleep(repeatGap)
		cmptest.Equal(t, "a second later", counted(warp, esr), 1)
		cmptest.Equal(t, "rows that are remapped", counted("63, Row Remapper: a", "63, Row Remapper: b"), 2)
	})
}

// TestCloseOfALogThatWaits does not block, whatever the log does.
func TestCloseOfALogThatWaits(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		startLog(newFakeDevice()).Close()
		startLog(io.ErrUnexpectedEOF).Close()
	})
}

// TestOpenFile: a log that does not exist has an error of its own.
func TestOpenFile(t *testing.T) {
	if _, err := OpenFile(t.TempDir() + "/kmsg"); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("no file: %v", err)
	}
}

// TestOpenOfAnotherFile: some containers link /dev/kmsg to a console, which never has a record.
func TestOpenOfAnotherFile(t *testing.T) {
	path := t.TempDir() + "/kmsg"
	if err := os.Symlink(os.DevNull, path); err != nil {
		t.Fatal(err)
	}

	_, err := OpenFile(path)
	if !errors.Is(err, gpu.ErrNotFound) {
		t.Fatalf("a link to %s: %v", os.DevNull, err)
	}

	cmptest.HasTexts(t, err.Error(), path, "1:11", "1:3")

	if _, err := OpenFile(t.TempDir()); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a folder: %v", err)
	}
}

// TestReadOfFile reads a pipe as it reads the log: without a record it returns or waits, and Close
// ends that.
func TestReadOfFile(t *testing.T) {
	path := t.TempDir() + "/kmsg"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}

	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()

	d, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}

	buffer := make([]byte, 100)
	if _, err := d.Read(buffer, false); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("an empty log: %v", err)
	}

	read := make(chan error, 1)
	go func() {
		n, err := d.Read(buffer, true)
		if string(buffer[:n]) != "record" {
			err = errors.Join(err, fmt.Errorf("read %q", buffer[:n]))
		}

		read <- err
	}()

	if _, err := writer.WriteString("record"); err != nil {
		t.Fatal(err)
	}

	if err := <-read; err != nil {
		t.Error(err)
	}

	go func() {
		_, err := d.Read(buffer, true)
		read <- err
	}()

	if err := d.Close(); err != nil {
		t.Error(err)
	}

	if err := <-read; err == nil {
		t.Error("a read of a closed log succeeds")
	}
}
