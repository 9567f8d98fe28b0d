package gpu

import "testing"

const (
	plainGPU = UUID("GPU-aaaaaaaa-0000-0000-0000-000000000000") // without MIG
	migGPU   = UUID("GPU-bbbbbbbb-0000-0000-0000-000000000000")
	downGPU  = UUID("GPU-cccccccc-0000-0000-0000-000000000000") // its minor number is another's now
)

// referenceGPUs is a node: on migGPU a 3g of two compute instances at 0:4, GPU instance 7, and a
// 1g.24gb at 4:2, GPU instance 2, whose placement starts where that of a GPU instance of another
// profile may.
func referenceGPUs() []GPU {
	instance := func(id InstanceID, profile uint32, at Placement, computeInstances ...ComputeInstance) GPUInstance {
		return GPUInstance{ID: id, ProfileID: Some(profile), Placement: Some(at), ComputeInstances: computeInstances}
	}

	return []GPU{
		{Facts: Facts{UUID: downGPU, Minor: Some(0)}, Instances: []GPUInstance{
			instance(5, 9, Placement{0, 4}, ComputeInstance{ID: 0, UUID: "MIG-down"}),
		}},
		{Facts: Facts{UUID: plainGPU, Minor: Some(0)}, Device: Device{Up: true}},
		{Facts: Facts{UUID: migGPU, Minor: Some(2)}, Device: Device{Up: true}, Instances: []GPUInstance{
			instance(7, 9, Placement{0, 4}, ComputeInstance{ID: 0, UUID: "MIG-first"},
				ComputeInstance{ID: 1, UUID: "MIG-second"}),
			instance(2, 19, Placement{4, 2}, ComputeInstance{ID: 0, UUID: "MIG-third"}),
			{ID: 3}, // its placement and profile are withheld
		}},
		{Facts: Facts{Index: 3}, Device: Device{Up: true}}, // the driver gives no handle for it
	}
}

func byIDs(g UUID, i InstanceID, c ComputeID) DeviceRef {
	return DeviceRef{GPU: g, Instance: Some(i), Compute: Some(c)}
}

func byGKE(minor int, i InstanceID) DeviceRef {
	return DeviceRef{Minor: Some(minor), Instance: Some(i)}
}

func byDRA(minor int, profile uint32, start int) DeviceRef {
	return DeviceRef{Minor: Some(minor), ProfileID: Some(profile), PlacementStart: Some(start)}
}

func byHAMi(g UUID, start int) DeviceRef { return DeviceRef{GPU: g, PlacementStart: Some(start)} }

// TestResolve has every form of device id: of a device that exists, of one that does not, of
// another GPU, of none. Replicas (GPU-<uuid>::3, nvidia2/vgpu1, HAMi's GPU-<uuid>-9) are references
// to what they are replicas of.
func TestResolve(t *testing.T) {
	const down, plain, withMIG = 0, 1, 2
	for name, tt := range map[string]struct {
		ref   DeviceRef
		at    DeviceIndex
		match Match
	}{
		"GPU-<uuid>":              {DeviceRef{GPU: migGPU}, DeviceIndex{withMIG, Whole, Whole}, MatchDevice},
		"GPU-<uuid> without MIG":  {DeviceRef{GPU: plainGPU}, DeviceIndex{plain, Whole, Whole}, MatchDevice},
		"GPU-<uuid> that is down": {DeviceRef{GPU: downGPU}, DeviceIndex{down, Whole, Whole}, MatchDevice},
		"GPU-<uuid> of another node": {DeviceRef{GPU: "GPU-dddddddd-0000-0000-0000-000000000000"}, DeviceIndex{},
			MatchNothing},
		"no id":                        {DeviceRef{}, DeviceIndex{}, MatchNothing},
		"MIG-<uuid>":                   {DeviceRef{MIG: "MIG-second"}, DeviceIndex{withMIG, 0, 1}, MatchDevice},
		"MIG-<uuid> of a GPU down":     {DeviceRef{MIG: "MIG-down"}, DeviceIndex{down, 0, 0}, MatchDevice},
		"MIG-<uuid> that is unknown":   {DeviceRef{MIG: "MIG-gone"}, DeviceIndex{}, MatchNothing},
		"MIG-GPU-<uuid>/7/1":           {byIDs(migGPU, 7, 1), DeviceIndex{withMIG, 0, 1}, MatchDevice},
		"MIG-GPU-<uuid>/2/0":           {byIDs(migGPU, 2, 0), DeviceIndex{withMIG, 1, 0}, MatchDevice},
		"MIG-GPU-<uuid>/2/1, no CI":    {byIDs(migGPU, 2, 1), DeviceIndex{withMIG, 1, Whole}, MatchParent},
		"MIG-GPU-<uuid>/8/0, no GI":    {byIDs(migGPU, 8, 0), DeviceIndex{withMIG, Whole, Whole}, MatchParent},
		"MIG-GPU-<uuid>/7/0, no MIG":   {byIDs(plainGPU, 7, 0), DeviceIndex{plain, Whole, Whole}, MatchParent},
		"MIG-GPU-<uuid>/7/0, no GPU":   {byIDs("GPU-other", 7, 0), DeviceIndex{}, MatchNothing},
		"nvidia2":                      {DeviceRef{Minor: Some(2)}, DeviceIndex{withMIG, Whole, Whole}, MatchDevice},
		"nvidia0, two had the number":  {DeviceRef{Minor: Some(0)}, DeviceIndex{plain, Whole, Whole}, MatchDevice},
		"nvidia1, unknown":             {DeviceRef{Minor: Some(1)}, DeviceIndex{}, MatchNothing},
		"nvidia2/gi7":                  {byGKE(2, 7), DeviceIndex{withMIG, 0, Whole}, MatchDevice},
		"nvidia2/gi2":                  {byGKE(2, 2), DeviceIndex{withMIG, 1, Whole}, MatchDevice},
		"nvidia2/gi8, no GI":           {byGKE(2, 8), DeviceIndex{withMIG, Whole, Whole}, MatchParent},
		"nvidia0/gi5 of the GPU down":  {byGKE(0, 5), DeviceIndex{plain, Whole, Whole}, MatchParent},
		"nvidia1/gi7, unknown":         {byGKE(1, 7), DeviceIndex{}, MatchNothing},
		"HAMi at 0":                    {byHAMi(migGPU, 0), DeviceIndex{withMIG, 0, Whole}, MatchDevice},
		"HAMi at 6, reserved":          {byHAMi(migGPU, 6), DeviceIndex{withMIG, Whole, Whole}, MatchParent},
		"HAMi at 0, no MIG":            {byHAMi(plainGPU, 0), DeviceIndex{plain, Whole, Whole}, MatchParent},
		"HAMi at 0, no GPU":            {byHAMi("GPU-other", 0), DeviceIndex{}, MatchNothing},
		"gpu-2-mig-1g24gb-19-4":        {byDRA(2, 19, 4), DeviceIndex{withMIG, 1, Whole}, MatchDevice},
		"gpu-2-mig-2g48gb-14-4, other": {byDRA(2, 14, 4), DeviceIndex{withMIG, Whole, Whole}, MatchParent},
		"gpu-2-mig-1g24gb-19-6, no GI": {byDRA(2, 19, 6), DeviceIndex{withMIG, Whole, Whole}, MatchParent},
		"gpu-0-mig-3g-9-0, GPU down":   {byDRA(0, 9, 0), DeviceIndex{plain, Whole, Whole}, MatchParent},
		"gpu-1-mig-1g24gb-19-4, no":    {byDRA(1, 19, 4), DeviceIndex{}, MatchNothing},
	} {
		t.Run(name, func(t *testing.T) {
			if at, match := NewResolver(referenceGPUs()).Resolve(tt.ref); at != tt.at || match != tt.match {
				t.Errorf("%+v: got %v, match %d; want %v, match %d", tt.ref, at, match, tt.at, tt.match)
			}
		})
	}
}

// TestMinorNumberIsOfTheGPUThatIsUp has the GPU that is down behind the other.
func TestMinorNumberIsOfTheGPUThatIsUp(t *testing.T) {
	gpus := referenceGPUs()

	gpus[0], gpus[1] = gpus[1], gpus[0]
	if at, match := NewResolver(gpus).Resolve(byGKE(0, 5)); at != (DeviceIndex{0, Whole, Whole}) || match != MatchParent {
		t.Errorf("got %v, match %d", at, match)
	}

	gpus[0].Minor = None[int]()
	if at, match := NewResolver(gpus).Resolve(byGKE(0, 5)); at != (DeviceIndex{1, 0, Whole}) || match != MatchDevice {
		t.Errorf("a GPU that is down, and no other with its number: got %v, match %d", at, match)
	}
}

// BenchmarkResolve resolves one reference to each MIG device of eight GPUs.
func BenchmarkResolve(b *testing.B) {
	var gpus []GPU
	var refs []DeviceRef

	for n := range 8 {
		g := GPU{Facts: Facts{UUID: migGPU + UUID(rune('a'+n)), Minor: Some(n)}, Device: Device{Up: true}}
		for i := range 7 {
			id := MIGUUID(string(g.UUID) + string(rune('a'+i)))
			g.Instances = append(g.Instances, GPUInstance{ID: InstanceID(i), ComputeInstances: []ComputeInstance{{UUID: id}}})
			refs = append(refs, DeviceRef{MIG: id})
		}

		gpus = append(gpus, g)
	}

	b.ReportAllocs()

	for b.Loop() {
		d := NewResolver(gpus)
		for _, r := range refs {
			if _, match := d.Resolve(r); match != MatchDevice {
				b.Fatal(r)
			}
		}
	}
}
