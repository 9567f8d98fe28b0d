package contract

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// layoutChanges is how often a GPU is repartitioned, under the readings of two programs.
const layoutChanges = 6

// A third process cuts a GPU again and again while both programs read it, slowly enough to be in
// the middle each time. What is served are at every moment instances that the GPU has had, with
// their places, of which no two are the same; after each change they are those of it; and no
// reading is an error.
func TestLayoutChangeByAnotherProcess(t *testing.T) {
	path := scenarioFile(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true}]
faults: [{kind: slow, at: 0s, delay: 2ms}]
`)
	state := filepath.Join(t.TempDir(), "state.json")
	env := []string{"MIG_SIM_SCENARIO=" + path, "MIG_SIM_STATE=" + state, "MIG_SIM_CLOCK=step"}
	urls := []string{
		launch(t, env, "--driver=sim", "--sim.clock=step", "--sim.scenario="+path),
		launch(t, env, "--nvml.library-path="+built("libnvidia-ml.so.1"), "--poll.interval=50ms"),
	}
	node := joinState(t, path, state)
	c := partitioner{t: t, node: node, had: map[string]bool{}}
	served := watchLayouts(t, urls)

	for round := range layoutChanges {
		c.destroy()

		if round%2 == 0 {
			c.partition(19, 0, 1)
			c.partition(19, 2, 1)
		} else {
			c.partition(5, 0, 4)
		}

		c.partition(9, 4, 3)
		last := layoutOf(t, node)
		request(t, http.MethodPost, urls[0]+"/-/sim/advance?by=1s")

		for _, url := range urls {
			waitFor(t, url, func(scrape string) bool { return servedLayout(scrape) == last })
		}
	}

	for layout, url := range served() {
		c.check(layout, url)
	}

	for _, url := range urls {
		// The first poll that has the layout may have begun before the last compute instance was
		// there.
		waitFor(t, url, regexp.MustCompile(`(?m)^nvidia_mig_gpu_instance_memory_used_bytes\{`).MatchString)

		scrape := request(t, http.MethodGet, url+"/metrics")
		if !regexp.MustCompile(`(?m)^nvidia_gpu_up\{.*\} 1$`).MatchString(scrape) {
			t.Errorf("%s: the GPU is not up in the end", url)
		}

		if failed := regexp.MustCompile(`(?m)^nvidia_gpu_read_errors_total\{.*\} [1-9].*$`).FindString(scrape); failed != "" {
			t.Errorf("%s: %s", url, failed)
		}
	}
}

// partitioner partitions GPU 0 and knows its layout.
type partitioner struct {
	t    *testing.T
	node *sim.Node
	now  []gpu.InstanceID
	had  map[string]bool // 3g.20gb@4:4
}

// partition creates a GPU instance with one compute instance of all of it.
func (c *partitioner) partition(profile uint32, start, slices int) {
	c.t.Helper()

	id, err := c.node.CreateGPUInstance(0, profile, gpu.Some(start))
	if err == nil {
		for instance := range strings.FieldsSeq(layoutOf(c.t, c.node)) {
			c.had[instance] = true
		}

		_, err = c.node.CreateComputeInstance(0, id, slices)
	}

	if err != nil {
		c.t.Fatal(err)
	}

	c.now = append(c.now, id)
}

func (c *partitioner) destroy() {
	c.t.Helper()

	for _, id := range c.now {
		if err := errors.Join(c.node.DestroyComputeInstance(0, id, 0), c.node.DestroyGPUInstance(0, id)); err != nil {
			c.t.Fatal(err)
		}
	}

	c.now = nil
}

// check holds a served layout to instances that there were, and each memory slice to one of them.
func (c *partitioner) check(layout, url string) {
	c.t.Helper()
	used := map[string]bool{}

	for instance := range strings.FieldsSeq(layout) {
		if !c.had[instance] {
			c.t.Errorf("%s serves %q: the GPU has never had %s", url, layout, instance)
		}

		for _, slice := range slicesOf(c.t, instance) {
			if used[slice] {
				c.t.Errorf("%s serves %q: memory slice %s twice", url, layout, slice)
			}

			used[slice] = true
		}
	}
}

// watchLayouts scrapes until its result is called for: every layout that was served, and where.
func watchLayouts(t *testing.T, urls []string) func() map[string]string {
	t.Helper()
	seen := map[string]string{}
	stop := make(chan struct{})
	var mu sync.Mutex

	var watching sync.WaitGroup
	for _, url := range urls {
		watching.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}

				response, err := http.Get(url + "/metrics")
				if err != nil {
					t.Errorf("scrape: %v", err)
					return
				}

				scrape, err := io.ReadAll(response.Body)
				response.Body.Close()

				if err != nil {
					t.Errorf("scrape: %v", err)
					return
				}

				mu.Lock()
				seen[servedLayout(string(scrape))] = url
				mu.Unlock()
			}
		})
	}

	end := sync.OnceFunc(func() {
		close(stop)
		watching.Wait()
	})
	t.Cleanup(end)

	return func() map[string]string {
		end()
		return seen
	}
}

var instanceInfo = regexp.MustCompile(`(?m)^nvidia_mig_gpu_instance_info\{(.*)\} 1$`)

// servedLayout is the GPU's layout in a scrape: every GPU instance with its placement.
func servedLayout(scrape string) string {
	var list []string
	for _, m := range instanceInfo.FindAllStringSubmatch(scrape, -1) {
		list = append(list, label(m[1], "mig_profile")+"@"+label(m[1], "placement"))
	}

	slices.Sort(list)

	return strings.Join(list, " ")
}

func label(labels, name string) string {
	if m := regexp.MustCompile(`(?:^|,)` + name + `="([^"]*)"`).FindStringSubmatch(labels); m != nil {
		return m[1]
	}

	return ""
}

// slicesOf are the memory slices of 3g.20gb@4:4.
func slicesOf(t *testing.T, instance string) []string {
	t.Helper()
	_, placement, _ := strings.Cut(instance, "@")

	var start, size int
	if _, err := fmt.Sscanf(placement, "%d:%d", &start, &size); err != nil {
		t.Errorf("placement of %s: %v", instance, err)
	}

	var list []string
	for i := range size {
		list = append(list, strconv.Itoa(start+i))
	}

	return list
}

func layoutOf(t *testing.T, node *sim.Node) string {
	t.Helper()

	s, err := node.Read(0, gpu.ReadingMIG)
	if err != nil {
		t.Fatal(err)
	}

	var list []string
	for _, i := range s.Instances {
		list = append(list, i.Profile.Name+"@"+i.Placement.String())
	}

	slices.Sort(list)

	return strings.Join(list, " ")
}
