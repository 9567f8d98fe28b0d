package contract

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

const scenarios = "../../../testdata/scenarios/"

// pair is one node seen through go-dcgm and the library, and by an engine in process.
type pair struct {
	node    *sim.Node
	session *hostengine.Session
}

// join starts the engine in process on the node that the library is about to join.
func join(t *testing.T) *pair {
	t.Helper()
	n := node(t)

	session, err := hostengine.New(n, hostengine.Embedded).Open()
	if err != nil {
		t.Fatal(err)
	}

	return &pair{node: n, session: session}
}

func embedded(t *testing.T) func() {
	t.Helper()

	stop, err := dcgm.Init(dcgm.Embedded)
	if err != nil {
		t.Fatal(err)
	}

	return stop
}

func (p *pair) advance(t *testing.T, by time.Duration) {
	t.Helper()

	if err := p.node.Advance(by); err != nil {
		t.Fatal(err)
	}
}

// entities compares the two hierarchies, and lists all entities.
func (p *pair) entities(t *testing.T) []hostengine.Entity {
	t.Helper()

	want, err := p.session.Hierarchy()
	if err != nil {
		t.Fatal(err)
	}

	got, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil || got.Count != uint(len(want)) {
		t.Fatalf("%d in the hierarchy, want %d; error %v", got.Count, len(want), err)
	}

	ids, err := p.session.GPUs()
	if err != nil {
		t.Fatal(err)
	}

	var all []hostengine.Entity
	for _, id := range ids {
		all = append(all, hostengine.Entity{Level: hostengine.GPU, ID: id})
	}

	for i, m := range want {
		all = append(all, m.Entity)

		compute := uint(0xFFFFFFFF)
		if m.Entity.Level == hostengine.ComputeInstance {
			compute = uint(m.Compute)
		}

		w := dcgm.MigHierarchyInfo_v2{
			Entity: pairOf(m.Entity), Parent: pairOf(m.Parent),
			Info: dcgm.MigEntityInfo{
				GpuUuid: string(m.UUID), NvmlGpuIndex: uint(m.GPU), NvmlInstanceId: uint(m.Instance),
				NvmlComputeInstanceId: compute, NvmlMigProfileId: uint(m.ProfileID), NvmlProfileSlices: uint(m.Slices),
			},
		}
		if got.EntityList[i] != w {
			t.Errorf("hierarchy %d: %+v, want %+v", i, got.EntityList[i], w)
		}
	}

	return all
}

func pairOf(e hostengine.Entity) dcgm.GroupEntityPair {
	return dcgm.GroupEntityPair{EntityGroupId: dcgm.Field_Entity_Group(e.Level), EntityId: uint(e.ID)}
}

// watch watches fields of entities on both sides.
func (p *pair) watch(t *testing.T, entities []hostengine.Entity, fields []uint16) {
	t.Helper()

	own, err := p.session.CreateGroup("all")
	if err != nil {
		t.Fatal(err)
	}

	ownFields, err := p.session.CreateFieldGroup(fields)
	if err != nil {
		t.Fatal(err)
	}

	group, err := dcgm.CreateGroup("all")
	if err != nil {
		t.Fatal(err)
	}

	fieldGroup, err := dcgm.FieldGroupCreate("fields", shorts(fields))
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entities {
		if err := p.session.AddEntity(own, e); err != nil {
			t.Fatal(err)
		}

		if err := dcgm.AddEntityToGroup(group, dcgm.Field_Entity_Group(e.Level), uint(e.ID)); err != nil {
			t.Fatal(err)
		}
	}

	if err := p.session.Watch(own, ownFields, time.Second); err != nil {
		t.Fatal(err)
	}

	if err := dcgm.WatchFieldsWithGroupEx(fieldGroup, group, 1_000_000, 300, 1); err != nil {
		t.Fatal(err)
	}
}

func shorts(fields []uint16) []dcgm.Short {
	var list []dcgm.Short
	for _, f := range fields {
		list = append(list, dcgm.Short(f))
	}

	return list
}

// compare compares all values, and returns how many of them are values and how many blanks with a
// good status.
func (p *pair) compare(t *testing.T, entities []hostengine.Entity, fields []uint16, flags uint) (values, blanks int) {
	t.Helper()

	read := p.session.Latest
	if flags != 0 {
		read = p.session.Live
	}

	var pairs []dcgm.GroupEntityPair
	for _, e := range entities {
		pairs = append(pairs, pairOf(e))
	}

	want, err := read(entities, fields)
	if err != nil {
		t.Fatal(err)
	}

	got, err := dcgm.EntitiesGetLatestValues(pairs, shorts(fields), flags)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d values, want %d; error %v", len(got), len(want), err)
	}

	for i := range want {
		g := show(&got[i])
		w := want[i]
		one := fmt.Sprintf("%v %d %d %c %d %d ", pairOf(w.Entity), w.Field, int(w.Status), w.Type, w.Micros, 0)
		blank := false

		switch w.Type {
		case 'i':
			one += fmt.Sprint(w.Int)
			blank = w.Int >= hostengine.IntBlank
		case 'd':
			one += fmt.Sprint(w.Float)
			blank = w.Float >= hostengine.FloatBlank
		case 's':
			one += w.Text
		}

		if g != one {
			t.Errorf("value %d: %s, want %s", i, g, one)
		}

		switch {
		case w.Status == hostengine.OK && blank:
			blanks++
		case w.Status == hostengine.OK:
			values++
		}
	}

	return values, blanks
}

func show(v *dcgm.FieldValue_v2) string {
	text := fmt.Sprintf("%v %d %d %c %d %d ", dcgm.GroupEntityPair{EntityGroupId: v.EntityGroupId, EntityId: v.EntityID},
		v.FieldID, v.Status, v.FieldType, v.TS, 0)
	switch v.FieldType {
	case 'i':
		return text + fmt.Sprint(v.Int64())
	case 'd':
		return text + fmt.Sprint(v.Float64())
	}

	return text + *v.StringValue
}

func profiling() []uint16 {
	return []uint16{1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012}
}

// TestSameAsInProcess compares go-dcgm's view through the library with the engine's in process,
// value by value, over time and over a layout change.
func TestSameAsInProcess(t *testing.T) {
	for _, name := range []string{"dgx-a100-mixed", "gke-h100-3g"} {
		t.Run(name, func(t *testing.T) {
			if !inChild(t, environment(t, scenarios+name+".yaml")...) {
				return
			}

			p := join(t)
			defer embedded(t)()
			all := p.entities(t)
			devices := []uint16{54, 100, 101, 140, 150, 155, 156, 203, 204, 235, 250, 251, 252, 253, 310, 311, 393, 396}
			p.compare(t, all, profiling(), 0)

			if values, _ := p.compare(t, all, devices, 1); values < 14*p.node.Count() {
				t.Errorf("%d live values", values)
			}

			p.watch(t, all, profiling())
			p.watch(t, all, devices)
			p.advance(t, time.Second)

			if values, _ := p.compare(t, all, profiling(), 0); values > 0 {
				t.Errorf("%d values of two samples", values)
			}

			for range 3 {
				p.advance(t, time.Second)

				values, blanks := p.compare(t, all, profiling(), 0)
				if values < 8*len(all)-24 || blanks == 0 {
					t.Errorf("%d values and %d blanks of %d entities", values, blanks, len(all))
				}

				p.compare(t, all, devices, 0)
			}

			p.repartition(t)
		})
	}
}

// repartition destroys an instance: at first neither hierarchy shows it, then both do, with other
// ids.
func (p *pair) repartition(t *testing.T) {
	t.Helper()

	before := p.entities(t)
	for i := range p.node.Count() {
		s, err := p.node.Read(i, gpu.ReadingMIG)
		if err != nil {
			t.Fatal(err)
		}

		for k := range s.Instances {
			if len(s.Instances[k].ComputeInstances) == 0 && p.node.DestroyGPUInstance(i, s.Instances[k].ID) == nil {
				break
			}
		}
	}

	for range 3 {
		if got := p.entities(t); len(got) > len(before) {
			t.Errorf("%d entities of %d", len(got), len(before))
		}

		p.advance(t, time.Second)
		p.compare(t, p.entities(t), profiling(), 0)
	}
}

// TestDevice: what go-dcgm reports about a GPU comes from several calls, which all must work.
func TestDevice(t *testing.T) {
	if !inChild(t, environment(t, scenarios+"dgx-a100-mixed.yaml")...) {
		return
	}

	p := join(t)
	defer embedded(t)()

	s, err := p.node.Read(0, gpu.ReadingDevice)
	if err != nil {
		t.Fatal(err)
	}

	d, err := dcgm.GetDeviceInfo(0)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "UUID", d.UUID, string(s.UUID))
	cmptest.Equal(t, "supported by DCGM", d.DCGMSupported, "Yes")
	cmptest.Equal(t, "model", d.Identifiers.Model, s.Name)
	cmptest.Equal(t, "memory in MiB", d.PCI.FBTotal, uint(s.MemoryTotal>>20))

	if _, err := dcgm.GetDeviceInfo(99); err == nil || err.Error() != "Bad parameter passed to function" {
		t.Errorf("no such GPU: %v", err)
	}

	groups, err := dcgm.GetSupportedMetricGroups(0)
	if err != nil {
		t.Fatal(err)
	}

	if len(groups) != 1 || len(groups[0].FieldIds) != 12 {
		t.Fatalf("got metric groups %+v, want one of 12 fields", groups)
	}

	cmptest.Equal(t, "first field of the metric group", groups[0].FieldIds[0], 1001)

	if count, err := dcgm.GetAllDeviceCount(); err != nil || count != uint(p.node.Count()) {
		t.Errorf("%d devices, %v", count, err)
	}

	status, err := dcgm.GetDeviceStatus(0)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "power in watts", status.Power, s.Watts)
	cmptest.Equal(t, "used memory in MiB", status.PCI.FBUsed, int64(s.MemoryUsed>>20))

	if m := dcgm.FieldGetByID(1002); m.Tag != "sm_active" || m.FieldType != 'd' {
		t.Errorf("field 1002: %+v", m)
	}

	if _, err := dcgm.FieldGroupCreate("unknown", []dcgm.Short{9999}); err == nil ||
		!strings.Contains(err.Error(), "Unknown field") {
		t.Errorf("unknown field: %v", err)
	}
}

// TestGroups: clients can have 62 of 64 (seen on DCGM 4.5.3), they are gone with the connection,
// and DCGM's text says so.
func TestGroups(t *testing.T) {
	if !inChild(t, environment(t, scenarios+"a30.yaml")...) {
		return
	}

	for range 2 {
		stop := embedded(t)

		for range 62 {
			if _, err := dcgm.NewDefaultGroup("g"); err != nil {
				t.Fatal(err)
			}
		}

		if _, err := dcgm.CreateGroup("g"); err == nil || !strings.Contains(err.Error(), "Max limit reached for the object") {
			t.Errorf("one group too many: %v", err)
		}

		stop()
	}
}

// TestAddress: an engine that listens elsewhere is not found, at a port or at a socket.
func TestAddress(t *testing.T) {
	for own, socket := range map[string]string{"[::1]:5555": "0", "/run/dcgm.sock": "1"} {
		t.Run(strings.Trim(own, "[]/:"), func(t *testing.T) {
			if !inChild(t, append(environment(t, scenarios+"a30.yaml"), "MIG_SIM_DCGM_ADDRESS="+own)...) {
				return
			}

			if _, err := dcgm.Init(dcgm.Standalone, "localhost:5556", "0"); err == nil ||
				!strings.Contains(err.Error(), "connection invalid") {
				t.Fatalf("another address: %v", err)
			}

			stop, err := dcgm.Init(dcgm.Standalone, own, socket)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()

			if ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU); err != nil || len(ids) == 0 {
				t.Errorf("%v, %v", ids, err)
			}
		})
	}
}

// TestFaults: the engine drops connections, comes back without what it had, and may lack rights.
func TestFaults(t *testing.T) {
	text := `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB}]
faults:
- {kind: dcgm-down, at: 10s, for: 5s}
- {kind: dcgm-restart, at: 20s}
- {kind: dcgm-requires-root, at: 30s}
`

	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if !inChild(t, environment(t, path)...) {
		return
	}

	p := join(t)
	list := func() error {
		_, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
		return err
	}
	lost := func(when string, err error) {
		t.Helper()

		if err == nil || !strings.Contains(err.Error(), "Host engine connection invalid/disconnected") {
			t.Errorf("%s: %v", when, err)
		}
	}
	stop := embedded(t)
	p.advance(t, 11*time.Second)
	lost("down", list())
	stop()
	_, err := dcgm.Init(dcgm.Embedded)
	lost("a new connection while it is down", err)
	p.advance(t, 5*time.Second)

	stop = embedded(t)
	if err := list(); err != nil {
		t.Error(err)
	}

	p.advance(t, 5*time.Second)
	lost("restarted", list())
	stop()
	p.advance(t, 10*time.Second)
	defer embedded(t)()

	group, err := dcgm.NewDefaultGroup("all")
	if err != nil {
		t.Fatal(err)
	}

	fields, err := dcgm.FieldGroupCreate("fields", []dcgm.Short{1002})
	if err != nil {
		t.Fatal(err)
	}

	if err := dcgm.WatchFieldsWithGroupEx(fields, group, 1_000_000, 0, 1); err == nil ||
		!strings.Contains(err.Error(), "non-root") {
		t.Errorf("without rights: %v", err)
	}
}
