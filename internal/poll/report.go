package poll

import (
	"errors"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// logChanges logs what changed between two Snapshots, and what is missing, once each.
func (p *Poller) logChanges(before, now *gpu.Snapshot) {
	d := gpu.Diff(before, now)

	info := level.Info(p.opts.Logger)
	warn := level.Warn(p.opts.Logger)

	for _, id := range d.Appeared {
		info.Log("msg", "found GPU", "gpu", id)
	}

	for _, id := range d.Vanished {
		warn.Log("msg", "GPU is gone", "gpu", id)
	}

	for _, id := range d.WentUp {
		info.Log("msg", "GPU answers again", "gpu", id)
	}

	for _, id := range d.WentDown {
		if r, ok := p.gpus[id].released.Get(); ok {
			info.Log("msg", "GPU is released", "gpu", id, "by", r.Cause)
			continue
		}

		warn.Log("msg", "GPU does not answer", "gpu", id, "err", p.gpus[id].failure[0].Err)
	}

	for _, id := range d.ModeChanged {
		info.Log("msg", "MIG mode changed", "gpu", id)
	}

	if before == nil {
		before = &gpu.Snapshot{}
	} else {
		logChange := func(msg string, c gpu.InstanceChange) {
			info.Log(
				"msg", msg,
				"gpu", c.ID.GPU(),
				"gpu_instance", c.ID.Instance().Or(0),
				"profile", c.Profile,
				"mig_uuid", c.UUID,
			)
		}

		for _, c := range d.Created {
			// An instance may be as old as its GPU, of which this is the first reading.
			if !slices.Contains(d.Appeared, c.ID.GPU()) {
				logChange("MIG instance created", c)
			}
		}

		for _, c := range d.Destroyed {
			logChange("MIG instance destroyed", c)
		}
	}

	for _, s := range now.Sources {
		p.logSource(before, s)
	}

	p.logHolders(before, now)
	p.logUnmatched(before.Unmatched, now.Unmatched)
}

// logHolders logs when the holders of devices become unknown, and known again.
func (p *Poller) logHolders(before, now *gpu.Snapshot) {
	was := firstUnknown(before)
	is := firstUnknown(now)

	switch {
	case slices.ContainsFunc(now.Sources, isNotConfigured): // logSource has said it
	case is != "" && was == "":
		level.Warn(p.opts.Logger).Log(
			"msg", "holders of some devices are unknown; they count as neither allocated nor free",
			"reason", is,
		)
	case is == "" && was != "":
		level.Info(p.opts.Logger).Log("msg", "holders of all devices are known")
	}
}

func isNotConfigured(s gpu.SourceState) bool { return errors.Is(s.Err, gpu.ErrNotConfigured) }

// firstUnknown returns why holders are unknown: the reason that concerns all devices or, if there
// is none, the first unconfirmed holder. It is empty if all holders are known.
func firstUnknown(s *gpu.Snapshot) string {
	if s.HoldersIncomplete != "" {
		return s.HoldersIncomplete
	}

	for i := range s.GPUs {
		if h := unconfirmedHolder(&s.GPUs[i]); h != nil {
			return h.Namespace + "/" + h.Pod + ": " + h.Unconfirmed
		}
	}

	return ""
}

// unconfirmedHolder returns the first unconfirmed holder of a GPU or of its compute instances; nil
// if there is none. The holders of a GPU instance are those of its compute instances.
func unconfirmedHolder(g *gpu.GPU) *gpu.Holder {
	for d := range g.Devices() {
		i := slices.IndexFunc(
			d.Holders,
			func(h gpu.Holder) bool { return h.Unconfirmed != "" && !h.Undescribed },
		)
		if i >= 0 && (d.Instance == nil || d.Compute != nil) {
			return &d.Holders[i]
		}
	}

	return nil
}

// maxUnmatchedLogged bounds the unmatched device ids that are logged after one poll.
const maxUnmatchedLogged = 20

// logUnmatched logs the device ids that name no device of this node, except those that the Snapshot
// before had, too.
func (p *Poller) logUnmatched(before, now []gpu.Assignment) {
	logged := 0

	for _, a := range now {
		if isListed(before, &a) {
			continue
		}

		if logged++; logged > maxUnmatchedLogged {
			level.Warn(p.opts.Logger).Log(
				"msg", "more device ids from the kubelet match no device of this node",
				"ids", len(now),
			)

			return
		}

		level.Warn(p.opts.Logger).Log(
			"msg", "pod was given a device that is not on this node: "+
				"restart the device plugin, then delete the pod",
			"id", a.ID,
			"resource", a.Holder.Resource,
			"namespace", a.Holder.Namespace,
			"pod", a.Holder.Pod,
			"container", a.Holder.Name,
		)
	}
}

// isListed reports whether a list has an assignment of a's device to a's container.
func isListed(list []gpu.Assignment, a *gpu.Assignment) bool {
	return slices.ContainsFunc(list, func(b gpu.Assignment) bool {
		return b.ID == a.ID && b.Holder.Container == a.Holder.Container
	})
}

// logSource logs a source that stopped or resumed answering, and each new reason why it does not
// answer.
func (p *Poller) logSource(before *gpu.Snapshot, now gpu.SourceState) {
	was := gpu.SourceState{Up: true}

	for _, s := range before.Sources {
		if s.Name == now.Name {
			was = s
		}
	}

	switch {
	case isNotConfigured(now):
		if was.Err == nil || was.Err.Error() != now.Err.Error() {
			level.Info(p.opts.Logger).Log(
				"msg", "the holders of devices are unknown, so that partition control takes them for busy",
				"source", now.Name,
				"state", now.Err,
			)
		}
	case now.Up && !was.Up:
		level.Info(p.opts.Logger).Log("msg", "source answers", "source", now.Name)
	case !now.Up && (was.Up || was.Err.Error() != now.Err.Error()):
		level.Warn(p.opts.Logger).Log(
			"msg", "source is not available; trying again",
			"source", now.Name,
			"err", now.Err,
		)
	}
}
