package nvmlsource_test

import (
	"fmt"
	"strings"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// calls notes every call that a Source makes, the event queue's own excepted: of which entity, and
// with which arguments. It is an Interceptor.
type calls struct {
	mu      sync.Mutex
	made    map[call]int
	devices map[any]string // the names of GPUs by the driver's own handles
}

// call is one function of NVML with its arguments, asked of one entity. The part of an entity's
// name before the first space is its kind.
type call struct{ entity, function, arguments string }

const ofNode = "node"

func (c *calls) Before(made nvmlsource.Call) nvmlsource.Verdict {
	if strings.HasPrefix(made.Function, "nvmlEventSet") || made.Function == "nvmlDeviceRegisterEvents" ||
		made.Function == "nvmlGpmSampleFree" {
		return nvmlsource.Verdict{}
	}

	entity, ok := made.Object.(string)
	if !ok {
		entity = ofNode
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.made[call{entity, made.Function, fmt.Sprint(made.Args)}]++

	return nvmlsource.Verdict{}
}

// Object returns the name of an entity.
func (c *calls) Object(made nvmlsource.Call, position int, handle any) (object any, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch made.Function {
	case "nvmlDeviceGetHandleByIndex":
		c.devices[handle] = fmt.Sprintf("GPU %d", made.Args[0])
		return c.devices[handle], true
	case "nvmlEventSetWait":
		return c.devices[handle], true
	case "nvmlDeviceGetMigDeviceHandleByIndex":
		return fmt.Sprintf("MIG-device %s/%d", made.Object, made.Args[0]), true
	case "nvmlDeviceGetGpuInstances", "nvmlDeviceCreateGpuInstanceWithPlacement":
		return fmt.Sprintf("GPU-instance %s/%d/%d", made.Object, made.Args[0], position), true
	}

	return fmt.Sprintf("compute-instance %s/%d/%d", made.Object, made.Args[0], position), true
}

// taken returns the calls since the last time.
func (c *calls) taken() map[call]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = map[call]int{}

	return made
}
