package sim

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// openLog opens the log of a node.
func openLog(t *testing.T, n *Node) *LogReader {
	t.Helper()

	r, err := n.OpenKernelLog()
	if err != nil {
		t.Fatal(err)
	}

	return r
}

// readAll returns the records that the log has.
func readAll(t *testing.T, r *LogReader) []string {
	t.Helper()
	buffer := make([]byte, 1000)
	var list []string

	for {
		n, err := r.Read(buffer, false)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return list
		case err != nil:
			t.Fatal(err)
		}

		list = append(list, string(buffer[:n]))
	}
}

// xidEventsOf returns how many events of each XID a GPU had.
func xidEventsOf(n *Node, index int) map[uint64]int {
	counts := map[uint64]int{}

	events, _ := n.History(index, 0)
	for _, e := range events {
		if e.Kind == gpu.EventXID {
			counts[e.XID]++
		}
	}

	return counts
}

// TestXIDsOfIdleAndBusyGPUs: every XID is printed, and only those that strike channels or that the
// driver finds itself are events.
func TestXIDsOfIdleAndBusyGPUs(t *testing.T) {
	n := start(t, `version: 1
gpus: [{model: H100-80GB, count: 2}, {model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}]
workloads: [{name: w, memory: 1GiB, sm: 10}]
processes: [{device: 1, workload: w}, {device: "2/3g.40gb@0", workload: w}]
faults:
- {at: 1s, gpu: 0, kind: xid, xid: 62}
- {at: 2s, gpu: 0, kind: xid, xid: 119}
- {at: 3s, gpu: 0, kind: xid, xid: 79}
- {at: 4s, gpu: 1, kind: xid, xid: 79}
- {at: 5s, gpu: 2, kind: xid, xid: 31, gi: 1, ci: 0}
`)
	advance(t, n, 10*time.Second)
	r := openLog(t, n)
	defer r.Close()

	cmptest.Equal(t, "events of the idle GPU", xidEventsOf(n, 0), map[uint64]int{})
	cmptest.Equal(t, "events of the busy GPU", xidEventsOf(n, 1), map[uint64]int{79: channelsPerProcess})
	cmptest.Equal(t, "events of the MIG GPU", xidEventsOf(n, 2), map[uint64]int{31: 1})

	records := readAll(t, r)
	if len(records) != 5 {
		t.Fatalf("%d records: %q", len(records), records)
	}

	cmptest.Equal(t, "record of 62", records[0],
		"4,0,1000000,-;NVRM: Xid (PCI:0000:1b:00): 62, Internal micro-controller halt\n")
	cmptest.HasTexts(t, records[4], "4,4,5000000,-;NVRM: Xid (PCI:0000:52:00 GPU-I:01 GPU-CI:00): 31, pid=")
}

// TestKernelLogIsOverwritten: a reader that is late learns that it has missed records.
func TestKernelLogIsOverwritten(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A30}]\n")
	r := openLog(t, n)
	defer r.Close()
	n.lockAndCatchUp()

	for i := range maxRecords + 2 {
		n.print(fmt.Sprint("record ", i))
	}

	n.mu.Unlock()

	if _, err := r.Read(make([]byte, 100), false); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v, want EPIPE", err)
	}

	records := readAll(t, r)
	if len(records) != maxRecords || !strings.HasSuffix(records[0], ";record 2\n") {
		t.Errorf("%d records, the first %q", len(records), records[0])
	}
}

// TestReadOfKernelLogWaits until there is a record, or until Close; AwaitHandled waits until the record
// was read.
func TestReadOfKernelLogWaits(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A30}]\nfaults: [{at: 1s, gpu: 0, kind: xid, xid: 79}]\n")
	r := openLog(t, n)
	read := make(chan error, 8)
	go func() {
		for {
			_, err := r.Read(make([]byte, 100), true)
			read <- err

			if err != nil {
				return
			}
		}
	}()

	advance(t, n, 2*time.Second)
	n.AwaitHandled(t.Context())

	if len(read) != 1 {
		t.Fatalf("%d records were read when AwaitHandled returned, want 1", len(read))
	}

	if err := <-read; err != nil {
		t.Error(err)
	}

	if err := r.Close(); err != nil {
		t.Error(err)
	}

	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestKernelLogAfterReboot has what was printed since then.
func TestKernelLogAfterReboot(t *testing.T) {
	n := start(t, `version: 1
gpus: [{model: A30}]
faults: [{at: 1s, gpu: 0, kind: xid, xid: 48}, {at: 2s, kind: reboot}, {at: 3s, gpu: 0, kind: xid, xid: 63}]
`)
	before := openLog(t, n)
	defer before.Close()
	advance(t, n, time.Second)
	cmptest.Equal(t, "records before the reboot", len(readAll(t, before)), 1)

	advance(t, n, 9*time.Second)
	after := openLog(t, n)
	defer after.Close()

	for name, r := range map[string]*LogReader{"a reader from before": before, "a new reader": after} {
		records := readAll(t, r)
		if len(records) != 1 || !strings.Contains(records[0], "): 63, ") {
			t.Errorf("%s: %q, want the XID after the reboot alone", name, records)
		}
	}
}

func TestNoRightToKernelLog(t *testing.T) {
	n := start(t, "version: 1\nnode: {kernelLog: false}\ngpus: [{model: A30}]\n")
	if _, err := n.OpenKernelLog(); !errors.Is(err, gpu.ErrNoPermission) {
		t.Error(err)
	}
}
