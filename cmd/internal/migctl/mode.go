package migctl

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// modeWarning says what the driver may do by itself. The operator has to accept that.
const modeWarning = "A change of MIG mode needs GPUs without instances and without users. " +
	"mig-exporter asks for no reset. The driver itself may unbind or reset the GPU on it: then " +
	"everything that runs on the GPU ends, and the number of its device file (/dev/nvidiaN) may " +
	"change. In a virtual machine that an Ampere GPU (A100, A30) is passed through to, the mode " +
	"stays pending until the GPU is reset or the machine reboots."

// setMode asks the operator and switches the MIG mode of GPUs, one after the other. It stops at the
// first that fails.
func (s *session) setMode(ctx context.Context) error {
	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return err
	}

	gpus, err := chooseGPUs(s.opts.GPUs, &node)
	if err != nil {
		return err
	}

	if why := unreadText(&node); why != "" && slices.Contains(s.opts.GPUs, "all") {
		return errors.New("the GPUs here are not all of them: " + why)
	}

	wanted := map[string]string{"on": "enabled", "off": "disabled"}[s.opts.State]
	var changing []nodedoc.GPU

	for i := range gpus {
		g := &gpus[i]
		name := gpuTitle(s.page, g.Index, g.Name, g.UUID)

		switch {
		case g.UUID == "":
			return usageError{fmt.Sprintf("GPU %d does not answer: it has no UUID now", g.Index)}
		case g.MIGMode.Current == wanted && (g.MIGMode.Pending == "" || g.MIGMode.Pending == wanted):
			s.page.line(text("%s", name).in(bold))
			s.page.line(text("  MIG mode is %s already", s.opts.State).in(green))
			continue
		}

		changing = append(changing, *g)
		s.page.line(text("%s", name).in(bold))
		s.page.line(text("  MIG mode is %s, to be %s", modeText(g.MIGMode), s.opts.State))

		if n := len(g.GPUInstances); n > 0 {
			s.page.paragraph("  ! ", yellow, "it has "+nodedoc.Count(n, "GPU instance", "GPU instances")+
				", which must be destroyed first")
		}

		for _, user := range newNodeView(node).gpuUse(g).users() {
			s.page.paragraph("  in use: ", yellow, user)
		}
	}

	if len(changing) == 0 {
		s.page.line(text("Nothing to do."))
		return nil
	}

	s.page.line()
	s.page.paragraph("! ", yellow, modeWarning)
	s.page.line()

	err = s.askOperator(
		ctx,
		fmt.Sprintf("Switch MIG mode of %s to %s?", nodedoc.Count(len(changing), "GPU", "GPUs"),
			s.opts.State),
	)
	if err != nil {
		return err
	}

	return s.switchModes(ctx, changing)
}

func (s *session) switchModes(ctx context.Context, gpus []nodedoc.GPU) error {
	request := api.ModeRequest{Enabled: s.opts.State == "on", TakeOver: s.opts.TakeOver}
	for i := range gpus {
		s.page.line(text("GPU %d", gpus[i].Index).in(bold))

		err := s.startOperation(
			ctx,
			http.MethodPut,
			"/gpus/"+url.PathEscape(string(gpus[i].UUID))+"/mig-mode",
			request,
		)
		if err != nil {
			if rest := len(gpus) - i - 1; rest > 0 && !errors.Is(err, context.Canceled) {
				s.page.line(text("Not tried: %s", nodedoc.Count(rest, "GPU", "GPUs")).in(yellow))
			}

			return err
		}
	}

	return nil
}

// writeMode shows the wanted, the current and the pending mode, and how to finish a change that is
// pending.
func writeMode(p *page, m *api.ModeResult) {
	if m == nil {
		return
	}

	if m.Wanted == m.Current && m.Current == m.Pending && m.Waits == "" {
		p.line(text("  MIG mode is %s", mig.OnOff(m.Current)).in(green))
		return
	}

	t := fmt.Sprintf(
		"MIG mode %s wanted, %s now, %s pending",
		mig.OnOff(m.Wanted),
		mig.OnOff(m.Current),
		mig.OnOff(m.Pending),
	)
	switch m.Waits {
	case "":
	case "in use":
		t += ": waits for the GPU to be free"
	default:
		t += ": waits for " + m.Waits
	}

	p.paragraph("  ", yellow, t)

	switch m.Waits {
	case "reset":
		p.paragraph(
			"  to finish: ",
			yellow,
			"end what uses the GPU, then: nvidia-smi --gpu-reset -i "+string(m.GPU),
		)
	case "reboot":
		p.paragraph("  to finish: ", yellow, "reboot the node")
	case "in use":
		p.paragraph("  to finish: ", yellow, "end what uses the GPU, then repeat the command")
	}

	writeHolds(p, "  ", m.Holders)
}
