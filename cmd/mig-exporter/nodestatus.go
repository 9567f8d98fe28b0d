package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/health/nodestatus"
)

// The conditions of the Node.
const (
	conditionHealthy = "GPUHealthy"
	conditionLayout  = "MIGLayoutApplied"
)

// startGrace is how long after the start we leave the conditions as they are if we have not read the
// node yet.
const startGrace = 30 * time.Second

// noLayoutWanted is the reason of the condition if neither an operation nor the label wants a layout.
const noLayoutWanted = "NoLayoutWanted"

// layoutFollower compares the layouts of the GPUs with those that they should have: the layouts that
// operations of partition control have made, and the layout that the node's label names.
type layoutFollower struct {
	controlled bool // partition control is on
	labelled   bool // we read the label

	mu         sync.Mutex
	state      string // the engine's state; empty before it is first reported
	known      bool   // wanted was reported
	wanted     []control.WantedLayout
	unrestored []api.Unrestored
	label      nodelabels.Status
}

func (f *layoutFollower) setState(state string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.state = state
}

func (f *layoutFollower) setWanted(list []control.WantedLayout) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.known = true
	f.wanted = list
}

func (f *layoutFollower) setUnrestored(list []api.Unrestored) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.unrestored = list
}

func (f *layoutFollower) setLabel(s nodelabels.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.label = s
}

// condition returns the condition MIGLayoutApplied, by a Snapshot: the worse one of operations and
// label.
func (f *layoutFollower) condition(s *gpu.Snapshot) nodestatus.Condition {
	f.mu.Lock()
	defer f.mu.Unlock()

	c := f.judgeOperations(s)

	l, ok := f.judgeLabel()
	if ok && (c.Reason == noLayoutWanted || l.Status.IsWorse(c.Status)) {
		return l
	}

	return c
}

// judgeLabel returns the condition by the layout that the node's label names; ok is false if the label
// names none.
func (f *layoutFollower) judgeLabel() (c nodestatus.Condition, ok bool) {
	l := &f.label

	applied, known := l.Applied.Get()

	switch {
	case !f.labelled:
		return c, false
	case !l.Read:
		return layoutCondition(nodestatus.Unknown, "LabelUnread",
			"the node's label nvidia.com/mig.config could not be read"), true
	case l.Config == "":
		return c, false
	case !known:
		return layoutCondition(nodestatus.Unknown, "LabelUnknown",
			"what the GPUs would have with nvidia.com/mig.config="+l.Config+" is not known"), true
	case !applied:
		return layoutCondition(nodestatus.False, "LabelNotApplied", fmt.Sprintf(
			"the GPUs lack the layout of nvidia.com/mig.config=%s; nvidia.com/mig.config.state is %q",
			l.Config, l.State)), true
	}

	return layoutCondition(nodestatus.True, "LayoutApplied",
		"the layout of nvidia.com/mig.config="+l.Config+" stands"), true
}

// judgeOperations returns the condition by the layouts that operations have made.
func (f *layoutFollower) judgeOperations(s *gpu.Snapshot) nodestatus.Condition {
	switch {
	case !f.controlled:
		return layoutCondition(nodestatus.True, noLayoutWanted, "partition control is off")
	case !f.known || s == nil:
		return layoutCondition(nodestatus.Unknown, "ControlStarting", "partition control has not started yet")
	case f.state == "read-only":
		return layoutCondition(nodestatus.Unknown, "ControlReadOnly",
			"partition control cannot use its state folder, so that the layouts that should stand are not known")
	case f.state == "degraded":
		return layoutCondition(nodestatus.False, "OperationDegraded",
			"an operation could be neither finished nor rolled back")
	case f.state == "stuck":
		return layoutCondition(nodestatus.False, "OperationStuck", "a driver call of an operation does not return")
	case len(f.unrestored) > 0:
		u := &f.unrestored[0]

		return layoutCondition(nodestatus.False, "NotRestored",
			fmt.Sprintf("%s lacks the layout that it had before the reboot: %s", nameGPU(s, u.GPU), u.Detail))
	case len(f.wanted) == 0:
		return layoutCondition(nodestatus.True, noLayoutWanted,
			"no operation has made a layout that should stand")
	}

	return f.compare(s)
}

// compare compares the layouts that operations have made with those of the GPUs. A layout that
// differs goes before one that we cannot see.
func (f *layoutFollower) compare(s *gpu.Snapshot) nodestatus.Condition {
	result := layoutCondition(nodestatus.True, "LayoutApplied", "the layouts stand that operations have made")

	for i := range f.wanted {
		w := &f.wanted[i]
		name := nameGPU(s, w.GPU)
		g := findGPU(s, w.GPU)

		if g == nil || !g.Up {
			result = layoutCondition(nodestatus.Unknown, "GPUUnreadable", name+" cannot be read")
			continue
		}

		current, ok := instancesOf(g)
		wanted := wantedInstances(w.Instances)

		switch {
		case !ok:
			result = layoutCondition(nodestatus.Unknown, "LayoutHidden", "the driver withholds the instances of "+name)
		case sameLayout(current, wanted):
		case f.state == "running":
			return layoutCondition(nodestatus.False, "OperationUnderWay", name+" is being repartitioned")
		default:
			return layoutCondition(nodestatus.False, "LayoutDiffers",
				fmt.Sprintf("%s has %s, should have %s", name, layoutText(current), layoutText(wanted)))
		}
	}

	return result
}

func layoutCondition(status nodestatus.Status, reason, message string) nodestatus.Condition {
	return nodestatus.Condition{Type: conditionLayout, Status: status, Reason: reason, Message: message}
}

func findGPU(s *gpu.Snapshot, id gpu.UUID) *gpu.GPU {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == id {
			return &s.GPUs[i]
		}
	}

	return nil
}

// nameGPU returns a name of a GPU for people: "GPU 3", or its UUID if the Snapshot lacks it.
func nameGPU(s *gpu.Snapshot, id gpu.UUID) string {
	if s != nil {
		if g := findGPU(s, id); g != nil {
			return fmt.Sprintf("GPU %d", g.Index)
		}
	}

	return string(id)
}

// healthCondition returns the condition GPUHealthy by the health of the GPUs. It is True with degraded
// GPUs, because they work.
func healthCondition(r *health.Report) nodestatus.Condition {
	c := nodestatus.Condition{Type: conditionHealthy, Message: r.Message, Reason: "GPUsHealthy"}
	if worst, ok := r.Worst(); ok {
		c.Reason = string(worst.Code)
	}

	switch r.State {
	case health.Healthy, health.Degraded:
		c.Status = nodestatus.True
	case health.Unhealthy:
		c.Status = nodestatus.False
	default:
		c.Status = nodestatus.Unknown
	}

	return c
}

// openNodeReports opens the writers of the Node's conditions and Events, if they are on. Call it
// before partition control is opened, which reports to them.
func (x *exporter) openNodeReports(cfg *KubernetesConfig, controlled bool) error {
	if !cfg.NodeConditions && !cfg.NodeEvents {
		return nil
	}

	server, err := x.node.kind.apiServer()
	if err == nil && server.address == "" {
		err = errors.New("this simulated node has no API server, see MIG_SIM_API_SERVER")
	}

	client, err := x.node.openAPIServer(server, err, cfg)
	if err != nil {
		return err
	}

	if cfg.NodeEvents {
		x.nodeEvents = nodestatus.NewEvents(
			nodestatus.EventOptions{API: client, Node: cfg.NodeName, Logger: x.logger},
		)
		x.node.parts = append(x.node.parts, x.nodeEvents.Run)
	}

	if !cfg.NodeConditions {
		return nil
	}

	x.layouts = &layoutFollower{controlled: controlled, labelled: cfg.NodeLabels.Mode != nodeLabelsOff}

	written := newConditionTime(cfg.NodeName)
	if err := x.fresh.Register(written); err != nil {
		return err
	}

	conditions := nodestatus.NewConditions(nodestatus.ConditionOptions{
		API:     client,
		Node:    cfg.NodeName,
		Read:    x.conditions(time.Now()),
		Earlier: x.recallCondition,
		Written: func(at time.Time) { written.Set(float64(at.UnixMilli()) / 1000) },
		Now:     x.node.now,
		Logger:  x.logger,
	})
	x.node.parts = append(x.node.parts, conditions.Run)

	flush := x.flush
	x.flush = func(ctx context.Context) {
		flush(ctx)
		conditions.Flush(ctx)
	}

	return nil
}

// recallCondition recalls from the condition that an earlier process has written that a GPU is
// unhealthy, if the driver does not report the reason again, such as an XID.
func (x *exporter) recallCondition(written nodestatus.Condition, since time.Time) {
	if written.Type != conditionHealthy || written.Status == nodestatus.True ||
		!health.IsPast(health.Code(written.Reason)) {
		return
	}

	// A reboot since then has reset the GPUs.
	if uptime := x.node.log.Uptime; uptime != nil && since.Before(x.node.now().Add(-uptime())) {
		return
	}

	x.health.RecallNode(since, written.Message)
}

// conditions returns a function that returns the conditions. It returns false while the program has
// not read the node yet, for at most startGrace.
func (x *exporter) conditions(began time.Time) func() ([]nodestatus.Condition, bool) {
	return func() ([]nodestatus.Condition, bool) {
		now := x.node.now()
		if x.node.stepped { // between a step and its Snapshot all readings look old
			now = time.Time{}
		}

		list := []nodestatus.Condition{
			healthCondition(x.health.Report(now)),
			x.layouts.condition(x.poller.Current()),
		}

		isNew := list[0].Reason == string(health.CodeNoSnapshot) ||
			list[0].Reason == string(health.CodeFirstReading) ||
			list[1].Reason == "ControlStarting" || list[1].Reason == "LabelUnread"

		return list, !isNew || time.Since(began) > startGrace
	}
}

// newConditionTime returns a metric for an alert: it shows that the conditions are no longer written.
func newConditionTime(node string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "mig_exporter_node_conditions_timestamp_seconds",
		Help: "When the API server last accepted the conditions of the Node, as Unix time; 0 before " +
			"the first time (--kubernetes.node-conditions).",
		ConstLabels: prometheus.Labels{"node": node},
	})
}

// addEvent adds an Event on the node about an operation that has ended, or waits for an operator. It
// does not name the user: more people can read Events than the audit log.
func (x *exporter) addEvent(end control.Ended) {
	op := end.Operation
	texts := make([]string, 0, len(end.Changes))

	for _, c := range end.Changes {
		texts = append(texts, fmt.Sprintf("%s: %s -> %s", nameGPU(x.poller.Current(), c.GPU),
			layoutText(wantedInstances(c.Before)), layoutText(wantedInstances(c.After))))
	}

	if m := op.Mode; m != nil {
		texts = append(texts, fmt.Sprintf("%s: MIG mode %t", nameGPU(x.poller.Current(), m.GPU), m.Wanted))
	}

	message := fmt.Sprintf("operation %s (%s) is %s", op.ID, op.Verb, op.State)
	if len(texts) > 0 {
		message += "; " + strings.Join(texts, "; ")
	}

	if p := op.Error; p != nil {
		message += "; " + p.Title
	}

	ended := op.Ended
	if ended.IsZero() {
		ended = x.node.now()
	}

	x.nodeEvents.Add(nodestatus.Event{
		Key:     fmt.Sprint(op.ID, " ", op.State, " ", op.Started.UnixNano()),
		Reason:  eventReason(op.State),
		Message: message,
		Warning: op.State != api.Succeeded && op.State != api.Accepted,
		Time:    ended,
	})
}

// eventReason returns the reason of the Event for a state of an operation: MIGOperationRolledBack for
// rolled-back.
func eventReason(state api.OperationState) string {
	text := "MIGOperation"
	for word := range strings.SplitSeq(cmp.Or(string(state), "unknown"), "-") {
		text += strings.ToUpper(word[:1]) + word[1:]
	}

	return text
}
