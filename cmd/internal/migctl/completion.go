package migctl

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// hintTimeout bounds the requests for the hints of a flag or an argument: a shell waits for them.
const hintTimeout = time.Second

// completions returns the values with which the shell completes a flag or an argument. They come from
// the server that the command would ask.
func (o *options) completions(list func(context.Context, *client) []string) kingpin.HintAction {
	return o.completionsOf(func() (*client, error) {
		if err := o.checkURL(fileExists); err != nil {
			return nil, err
		}

		return newClient(o)
	}, list)
}

// completionsOf returns the values with which the shell completes a flag or an argument, from a server. There
// are none if it does not answer. Another program (o.program) has none: a shell cannot wait until it is
// connected.
func (o *options) completionsOf(
	connect func() (*client, error), list func(context.Context, *client) []string,
) kingpin.HintAction {
	return sync.OnceValue(func() []string { // kingpin calls it for each word
		if o.program != nil {
			return nil
		}

		c, err := connect()
		if err != nil {
			return nil
		}
		defer c.close()
		ctx, cancel := context.WithTimeout(context.Background(), hintTimeout)
		defer cancel()

		return list(ctx, c)
	})
}

// fetchGPUs returns the GPUs of the node, none if the server does not answer.
func fetchGPUs(ctx context.Context, c *client) []nodedoc.GPU {
	var node nodedoc.Document
	if c.fetch(ctx, "/node", &node) != nil {
		return nil
	}

	return node.GPUs
}

func listGPUs(ctx context.Context, c *client) []string {
	var indexes, uuids []string
	for _, g := range fetchGPUs(ctx, c) {
		indexes = append(indexes, fmt.Sprint(g.Index))
		uuids = append(uuids, string(g.UUID))
	}

	return append(indexes, uuids...)
}

// listUnrestored returns the GPUs whose layouts are not restored. The node's document does not have
// those that are lost.
func listUnrestored(ctx context.Context, c *client) []string {
	var list api.Operations
	if c.fetch(ctx, "/operations", &list) != nil {
		return nil
	}

	var all []string
	for i := range list.Unrestored {
		all = append(all, string(list.Unrestored[i].GPU))
	}

	return all
}

func listMIGDevices(ctx context.Context, c *client) []string {
	var all []string

	for _, g := range fetchGPUs(ctx, c) {
		for _, inst := range g.GPUInstances {
			for _, ci := range inst.ComputeInstances {
				all = append(all, string(ci.UUID))
			}
		}
	}

	return all
}

// listDevices returns a value of --devices for each profile: 3g.20gb=1.
func listDevices(ctx context.Context, c *client) []string {
	var all []string

	for _, g := range fetchGPUs(ctx, c) {
		for _, p := range g.Profiles {
			all = append(all, p.Name+"=1")
		}
	}

	slices.Sort(all)

	return slices.Compact(all)
}

func listOperationIDs(ctx context.Context, c *client) []string {
	var list api.Operations
	if c.fetch(ctx, "/operations", &list) != nil {
		return nil
	}

	var all []string
	for i := range list.Operations {
		all = append(all, list.Operations[i].ID)
	}

	return all
}

func listLayoutNames(ctx context.Context, c *client) []string {
	var list api.NamedLayouts
	if c.fetch(ctx, "/layouts", &list) != nil {
		return nil
	}

	var all []string
	for i := range list.Layouts {
		all = append(all, list.Layouts[i].Name)
	}

	return all
}
