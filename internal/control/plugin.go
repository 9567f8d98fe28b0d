package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// pluginRetry is the time between two attempts to restart the device plugin.
const pluginRetry = 5 * time.Second

// renewPlugin restarts the device plugin once after the change. Until its former pods are gone, it
// returns what we wait for. It returns nil once they are, or if the operator has not named the
// plugin.
func (w *kubeletWait) renewPlugin(ctx context.Context) []string {
	e := w.e
	op := w.op

	if e.o.DevicePlugin == nil {
		return nil
	}

	pods := op.copy().PluginPods
	if len(pods) == 0 && !e.o.Now().Before(w.restartAt) {
		w.restartAt = e.o.Now().Add(pluginRetry)
		w.refusal = ""

		if err := e.restartPlugin(ctx, op); err != nil {
			w.refusal = reasonText(err)
		}

		pods = op.copy().PluginPods
	}

	if len(pods) == 0 {
		return []string{"the restart of the device plugin (" + w.refusal + ")"}
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

// restartPlugin ends the pods of the device plugin on this node, so that their successors read the
// new layout. One restart serves all operations whose steps are done before it begins: of several
// that settle at once, such as after a reboot, only the first ends the pods.
func (e *Engine) restartPlugin(ctx context.Context, op *operation) error {
	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	if err := e.restarting.take(callCtx); err != nil {
		return err
	}

	defer e.restarting.release()

	waiting := e.listAwaitingPlugin(op)
	if len(waiting) == 0 { // a restart for another operation came after this one's steps
		return nil
	}

	pods, err := e.o.DevicePlugin.Restart(callCtx)
	if err != nil {
		level.Warn(e.o.Logger).Log(
			"msg", "cannot restart the device plugin",
			"operation", op.id,
			"err", err,
		)

		return err
	}

	for _, served := range waiting {
		served.change(func(o *entry) { o.PluginPods = pods })
		served.addNote("restarted the device plugin")
	}

	level.Info(e.o.Logger).Log(
		"msg", "restarted the device plugin",
		"operation", op.id,
		"pods", strings.Join(pods, ","),
	)

	return nil
}

// listAwaitingPlugin lists the operations that wait for a restart of the device plugin: op, and all
// others whose steps are done. It is empty if another operation's restart has served op.
func (e *Engine) listAwaitingPlugin(op *operation) (list []*operation) {
	e.state.update(func(b *book) {
		if len(op.in(b).PluginPods) > 0 {
			return
		}

		list = b.list(func(o *entry) bool {
			state := o.Operation.State
			return (state == api.Settling || state == api.Unsettled) && len(o.PluginPods) == 0
		})

		// The current operation may still be rolled back.
		list = slices.DeleteFunc(list, func(o *operation) bool { return o == op || o == b.current })
		list = append(list, op)
	})

	return list
}

// restartAfterRollback restarts the device plugin after a rollback: instances that were created
// again can have other ids than those by which the plugin knows their device files.
func (e *Engine) restartAfterRollback(ctx context.Context, op *operation) {
	if e.o.DevicePlugin == nil {
		return
	}

	if err := e.restartPlugin(ctx, op); err != nil {
		op.addWarning(
			"the device plugin could not be restarted (%s): restart its pod on this node",
			reasonText(err),
		)
	}
}
