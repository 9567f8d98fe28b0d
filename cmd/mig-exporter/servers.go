package main

import (
	"context"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/inference"
	"github.com/mig-exporter/mig-exporter/internal/servermetrics"
)

// openServers begins to ask the pods' inference servers for metrics, if we can find pods. If the clock
// is stepped, we ask after polls, because no time passes between them.
func (n *node) openServers() {
	if n.serverPods == nil {
		return
	}

	opts := servermetrics.Options{
		Pods:     n.serverPods,
		Read:     inference.Parse,
		Now:      n.now,
		Interval: servermetrics.Interval / n.speed,
		Logger:   log.With(n.logger, "component", "servers"),
	}
	if s, ok := n.serverPods.(*simulatedServers); ok {
		opts.Dial = s.dial
	}

	asker := servermetrics.New(opts)
	n.poll.Servers = asker.Answers
	n.observers = append(n.observers, asker.Observe)

	if n.stepped {
		var asked time.Time
		polled := n.polled
		n.polled = func() {
			polled()

			if now := n.now(); now.Sub(asked) >= servermetrics.Interval {
				asked = now
				asker.AskAll(context.Background())
			}
		}

		return
	}

	n.parts = append(n.parts, asker.Run)
}
