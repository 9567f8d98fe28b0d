package migctl

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// confirmWarning is the warning that the operator has to accept.
const confirmWarning = "mig-exporter will treat the device as free although the kubelet does " +
	"not say so: a container that uses it nevertheless loses it with the next layout change. Look " +
	"first: crictl ps on the node, nvidia-smi. This counts for 10 minutes, and no longer than " +
	"until the kubelet or mig-exporter restarts."

// deviceToConfirm is a device that the operator confirms to be free.
type deviceToConfirm struct {
	name  string // its name in requests
	title string // its name for people
	use   nodedoc.Use
}

// confirmFree shows the known users of devices, asks the operator, and confirms to the server,
// device by device, that nothing uses them. If the server refuses one, it continues with the
// others.
func (s *session) confirmFree(ctx context.Context) error {
	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return err
	}

	devices, err := findDevices(newNodeView(node), s.opts.GPUs)
	if err != nil {
		return err
	}

	if err := s.askToConfirm(ctx, &node, devices); err != nil {
		return err
	}

	refused := refusals{asked: len(devices)}
	for _, d := range devices {
		var problem *api.Problem

		err := s.confirmDevice(ctx, d.name)
		switch {
		case len(devices) > 1 && errors.As(err, &problem):
			refused.add(d.name, problem)
		case err != nil:
			return err
		}
	}

	if len(refused.devices) > 0 {
		return &refused
	}

	return nil
}

// findDevices finds devices by their names, each once.
func findDevices(n *nodeView, words []string) ([]deviceToConfirm, error) {
	devices := make([]deviceToConfirm, 0, len(words))

	words, err := completeUUIDs(words, uuidsOf(n.doc.GPUs))
	if err != nil {
		return nil, err
	}

	for _, word := range words {
		d, ok := findDevice(n, word)
		if !ok {
			return nil, usageError{fmt.Sprintf("this node has no device %q: name a MIG device by its UUID, a GPU "+
				"instance as GPU-<uuid>/<id>, a GPU by index, UUID or PCI bus id; migctl get -o wide lists them", word)}
		}

		if !slices.ContainsFunc(devices, func(o deviceToConfirm) bool { return o.name == d.name }) {
			devices = append(devices, d)
		}
	}

	return devices, nil
}

// askToConfirm shows the known users of devices, and asks the operator whether to confirm that
// nothing uses them.
func (s *session) askToConfirm(ctx context.Context, node *nodedoc.Document, devices []deviceToConfirm) error {
	if why := node.Node.HoldersIncomplete; why != "" {
		s.page.paragraph("! ", yellow, "not all holders of devices are known: "+why)
	}

	for i := range devices {
		writeDevice(s.page, &devices[i])
	}

	s.page.line()
	s.page.paragraph("! ", yellow, confirmWarning)
	s.page.line()

	what := devices[0].name
	if len(devices) > 1 {
		what = fmt.Sprintf("these %d devices", len(devices))
	}

	return s.askOperator(ctx, fmt.Sprintf("Confirm that nothing uses %s?", what))
}

// confirmDevice confirms to the server that nothing uses a device, and shows which containers no
// longer count.
func (s *session) confirmDevice(ctx context.Context, name string) error {
	var done api.Confirmation

	path := "/devices/" + url.PathEscape(name) + "/confirm-free"
	if err := s.client.sendDocument(ctx, http.MethodPost, path, nil, newKey(), &done); err != nil {
		return err
	}

	s.page.line(text("%s", done.Device).in(bold))
	s.page.paragraph("  ", green, done.Note)

	for _, h := range done.Confirmed {
		s.page.paragraph("  no longer counts: ", plain, containerName(h.Namespace, h.Pod, h.Container))
	}

	return nil
}

// refusals is the error if the server has refused some or all of several devices.
type refusals struct {
	asked    int // how many devices there were
	devices  []string
	problems []*api.Problem // by device
}

func (r *refusals) add(device string, problem *api.Problem) {
	r.devices = append(r.devices, device)
	r.problems = append(r.problems, problem)
}

func (r *refusals) Error() string {
	return fmt.Sprintf(
		"refused for %d of %s: %s",
		len(r.devices),
		nodedoc.Count(r.asked, "device", "devices"),
		strings.Join(r.devices, ", "),
	)
}

// report writes the problem of each refused device, and then their list.
func (r *refusals) report(p *page, o *options) {
	for i, problem := range r.problems {
		p.line(text("%s", r.devices[i]).in(bold))
		reportProblem(p, problem, o)
	}

	p.paragraph("migctl: ", red, r.Error())
}

// writeDevice shows the known users of a device.
func writeDevice(p *page, d *deviceToConfirm) {
	p.line(text("%s", d.title).in(bold))
	known := map[string]bool{}

	for i := range d.use.Holders {
		h := &d.use.Holders[i]
		t := containerName(h.Namespace, h.Pod, h.Container)

		if isUnconfirmed(h) {
			t += ": " + orUnknown(h.UnconfirmedReason)
		}

		switch {
		case known[t]:
		case isUnconfirmed(h):
			p.paragraph("  may be in use: ", yellow, t)
		default:
			p.paragraph("  in use: ", red, "pod "+t)
		}

		known[t] = true
	}

	switch n, listed := d.use.Processes.Get(); {
	case !listed:
		p.paragraph(
			"  ",
			yellow,
			"what runs on it is not known: mig-exporter sees no processes there, as in a "+
				"pod without hostPID",
		)
	case n > 0:
		p.paragraph("  in use: ", red, nodedoc.Count(n, "process", "processes"))
	}

	if len(known) == 0 {
		p.line(text("  no container is known to use it").in(dim))
	}
}

// findDevice finds a device by its name. Its use includes the holders of all its parts; for a compute
// instance it includes the holders of its GPU instance.
func findDevice(n *nodeView, word string) (deviceToConfirm, bool) {
	for i := range n.doc.GPUs {
		g := &n.doc.GPUs[i]
		if g.UUID != "" && sameGPU(word, g) {
			d := deviceToConfirm{string(g.UUID), fmt.Sprintf("GPU %d, %s", g.Index, g.UUID), g.Use}
			for j := range g.GPUInstances {
				use := n.instanceUse(&g.GPUInstances[j])
				d.use.Holders = slices.Concat(d.use.Holders, use.Holders)
			}

			return d, true
		}

		for j := range g.GPUInstances {
			inst := &g.GPUInstances[j]
			if name := fmt.Sprintf("%s/%d", g.UUID, inst.ID); word == name {
				return deviceToConfirm{
					name,
					fmt.Sprintf("GPU instance %d of GPU %d, %s", inst.ID, g.Index,
						orUnknown(inst.Profile)),
					n.instanceUse(inst).Use,
				}, true
			}

			for k := range inst.ComputeInstances {
				if c := &inst.ComputeInstances[k]; word == string(c.UUID) && word != "" {
					d := deviceToConfirm{word, word, c.Use}
					d.use.Holders = slices.Concat(c.Holders, inst.Holders)

					return d, true
				}
			}
		}
	}

	return deviceToConfirm{}, false
}
