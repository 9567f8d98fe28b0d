package poll

import (
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// report logs what changed and what is missing, once each.
func (p *Poller) report(before, now *gpu.Snapshot) {
	d := gpu.Diff(before, now)
	info, warn := level.Info(p.opts.Logger), level.Warn(p.opts.Logger)
	for _, id := range d.Appeared {
		info.Log("msg", "Found GPU", "gpu", id)
	}
	for _, id := range d.Vanished {
		warn.Log("msg", "GPU is gone", "gpu", id)
	}
	for _, id := range d.WentUp {
		info.Log("msg", "GPU answers again", "gpu", id)
	}
	for _, id := range d.WentDown {
		warn.Log("msg", "GPU does not answer", "gpu", id, "err", p.gpus[id].failure[0].Err)
	}
	for _, id := range d.ModeChanged {
		info.Log("msg", "MIG mode changed", "gpu", id)
	}
	if before == nil {
		before = &gpu.Snapshot{}
	} else {
		for _, c := range d.Created {
			info.Log("msg", "MIG instance created", "gpu", c.Key.GPU, "gpu_instance", c.Key.ID, "profile", c.Profile, "mig_uuid", c.UUID)
		}
		for _, c := range d.Destroyed {
			info.Log("msg", "MIG instance destroyed", "gpu", c.Key.GPU, "gpu_instance", c.Key.ID, "profile", c.Profile, "mig_uuid", c.UUID)
		}
	}
	for _, s := range now.Sources {
		p.reportSource(before, s)
	}
	if now.Unmatched != before.Unmatched && now.Unmatched > 0 {
		warn.Log("msg", "The kubelet gave out device ids that name no device of this node", "ids", now.Unmatched)
	}
}

// reportSource logs a source that went away or came back, and why it is away each time that the reason changes.
func (p *Poller) reportSource(before *gpu.Snapshot, now gpu.SourceState) {
	was := gpu.SourceState{Up: true}
	for _, s := range before.Sources {
		if s.Name == now.Name {
			was = s
		}
	}
	switch {
	case now.Up && !was.Up:
		level.Info(p.opts.Logger).Log("msg", "Source answers", "source", now.Name)
	case !now.Up && (was.Up || was.Err.Error() != now.Err.Error()):
		level.Warn(p.opts.Logger).Log("msg", "Source does not answer; it is asked again in every cycle", "source", now.Name, "err", now.Err)
	}
}
