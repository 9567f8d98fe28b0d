package control

import (
	"context"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// pluginRetry is the time between two attempts to restart the device plugin.
const pluginRetry = 5 * time.Second

// awaitPlugin restarts the device plugin once after the change, and returns what is waited for until its former pods
// are gone; nil if nothing is, or the operator has not named the plugin.
func (s *kubeletWait) awaitPlugin(ctx context.Context) []string {
	e := s.e
	op := s.op

	if e.o.DevicePlugin == nil {
		return nil
	}

	pods := e.endedPods(op)
	if len(pods) == 0 && !e.o.Now().Before(s.restartAt) {
		s.restartAt = e.o.Now().Add(pluginRetry)
		s.refusal = ""

		if err := e.restartPlugin(ctx, op); err != nil {
			s.refusal = reasonText(err)
		}

		pods = e.endedPods(op)
	}

	if len(pods) == 0 {
		return []string{"the restart of the device plugin (" + s.refusal + ")"}
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	gone, err := e.o.DevicePlugin.Gone(callCtx, pods)
	if err != nil {
		return []string{"the API server to say whether the device plugin's former pod is gone (" +
			reasonText(err) + ")"}
	}

	if !gone {
		return []string{"the end of the device plugin's former pod"}
	}

	return nil
}

// endedPods returns the device plugin's pods that were ended for an operation.
func (e *Engine) endedPods(op *operation) []string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return op.PluginPods
}

// restartPlugin ends the pods of the device plugin on this node, so that their successors read the new layout. One
// restart serves all operations whose steps are done before it begins: of several that settle at once, such as after a
// reboot, only the first ends the pods.
func (e *Engine) restartPlugin(ctx context.Context, op *operation) error {
	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	select {
	case e.restarting <- struct{}{}:
		defer func() { <-e.restarting }()
	case <-callCtx.Done():
		return callCtx.Err()
	}

	served := e.listUnserved(op)
	if len(served) == 0 { // another operation's restart came after this one's steps
		return nil
	}

	pods, err := e.o.DevicePlugin.Restart(callCtx)
	if err != nil {
		level.Warn(e.o.Logger).Log(
			"msg", "cannot restart the device plugin",
			"operation", op.Operation.ID,
			"err", err,
		)

		return err
	}

	e.mu.Lock()
	for _, o := range served {
		o.PluginPods = pods
	}

	e.mu.Unlock()

	for _, o := range served {
		e.addNote(o, "restarted the device plugin")
	}

	level.Info(e.o.Logger).Log(
		"msg", "restarted the device plugin",
		"operation", op.Operation.ID,
		"pods", strings.Join(pods, ","),
	)

	return nil
}

// listUnserved lists the operations that a restart of the device plugin which begins now serves: op, and all others
// that wait for one. It is empty if op was served already.
func (e *Engine) listUnserved(op *operation) []*operation {
	e.mu.Lock()
	defer e.mu.Unlock()

	if len(op.PluginPods) > 0 {
		return nil
	}

	list := []*operation{op}

	for _, o := range e.operations {
		// The current operation may still be rolled back.
		state := o.Operation.State
		if o != op && o != e.current && (state == api.Settling || state == api.Unsettled) &&
			len(o.PluginPods) == 0 {
			list = append(list, o)
		}
	}

	return list
}

// restartAfterRollback restarts the device plugin after a rollback: instances that were created again can have other
// ids, by which the plugin has named their device files.
func (e *Engine) restartAfterRollback(ctx context.Context, op *operation) {
	if e.o.DevicePlugin == nil {
		return
	}

	if err := e.restartPlugin(ctx, op); err != nil {
		e.addWarning(
			op,
			"the device plugin could not be restarted (%s): restart its pod on this node",
			reasonText(err),
		)
	}
}
