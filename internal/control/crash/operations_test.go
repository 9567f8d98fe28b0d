package crash

import "github.com/mig-exporter/mig-exporter/internal/control/api"

// operation is a change to be killed at each of its points.
type operation struct {
	name     string
	scenario string
	todo     task
	end      api.OperationState // without a crash
	points   int                // that there must be at least
}

func counts(gpus []api.Selector, devices map[string]api.DeviceRequest) task {
	return task{Spec: api.Spec{GPUs: gpus, Devices: devices}}
}

// header is a node of two A100 and one H100 in MIG mode with a layout each, and a process on one of
// the instances.
const header = `
version: 1
node: {hostname: crash, driver: "580.95.05", privileged: true}
workloads:
  - {name: serving, memory: 2GiB, sm: 10}
`

const repartitionNode = header + `
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0", "1g.5gb@2"]}
  - {model: A100-40GB, mig: true, layout: []}
processes:
  - {device: "0/3g.20gb@4", workload: serving}
`

const fullNode = header + `
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", {gi: "2g.10gb@0", ci: ["1c", "1c"]}]}
`

func operations() []operation {
	return []operation{
		{
			name: "create on an empty GPU", scenario: repartitionNode, end: api.Succeeded, points: 12,
			todo: counts([]api.Selector{"1"}, map[string]api.DeviceRequest{"3g.20gb": {Count: 1}, "2g.10gb": {Count: 1}}),
		},
		{
			name: "repartition beside a busy instance", scenario: repartitionNode, end: api.Succeeded, points: 20,
			todo: counts([]api.Selector{"0"}, map[string]api.DeviceRequest{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 3}}),
		},
		{
			name: "compute instances of an instance that stays", scenario: repartitionNode, end: api.Succeeded, points: 8,
			todo: counts([]api.Selector{"0"}, map[string]api.DeviceRequest{
				"3g.20gb": {Count: 1}, "2g.10gb": {Count: 1, Compute: []string{"1c", "1c"}}, "1g.5gb": {Count: 1},
			}),
		},
		{
			name: "destroy all of a GPU", scenario: fullNode, end: api.Succeeded, points: 12,
			todo: counts([]api.Selector{"0"}, map[string]api.DeviceRequest{}),
		},
		{
			name: "a creation fails and all is rolled back", end: api.RolledBack, points: 30,
			scenario: repartitionNode +
				"faults: [{kind: change-fails, gpu: 0, on: create-gi, after: 1, times: 1, error: unknown}]\n",
			todo: counts([]api.Selector{"0"}, map[string]api.DeviceRequest{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 3}}),
		},
		{
			name: "MIG mode", scenario: header + "gpus: [{model: H100-80GB}]\n", end: api.Succeeded, points: 8,
			todo: task{Mode: &modeTask{GPU: 0, Enabled: true}},
		},
		{
			name: "two GPUs", scenario: repartitionNode, end: api.Succeeded, points: 20,
			todo: counts([]api.Selector{"all"}, map[string]api.DeviceRequest{"3g.20gb": {Count: 2}}),
		},
	}
}
