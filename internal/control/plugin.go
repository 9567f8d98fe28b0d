package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"
)

// pluginRetry is the time between two attempts to restart the device plugin.
const pluginRetry = 5 * time.Second

// awaitPlugin restarts the device plugin once after the change, and returns what is waited for until its former pods
// are gone; nil if nothing is, or the operator has not named the plugin.
func (s *settlement) awaitPlugin(ctx context.Context) []string {
	e, op := s.e, s.op
	if e.o.DevicePlugin == nil {
		return nil
	}

	if len(op.PluginPods) == 0 && !e.o.Now().Before(s.restartAt) {
		s.restartAt = e.o.Now().Add(pluginRetry)
		s.refusal = ""
		if err := e.restartPlugin(ctx, op); err != nil {
			s.refusal = reasonText(err)
		}
	}

	if len(op.PluginPods) == 0 {
		return []string{"the restart of the device plugin (" + s.refusal + ")"}
	}

	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	gone, err := e.o.DevicePlugin.Gone(call, op.PluginPods)
	if err != nil {
		return []string{"the API server to say whether the device plugin's former pod is gone (" + reasonText(err) + ")"}
	}
	if !gone {
		return []string{"the end of the device plugin's former pod"}
	}
	return nil
}

// restartPlugin ends the pods of the device plugin on this node, so that their successors read the new layout.
func (e *Engine) restartPlugin(ctx context.Context, op *operation) error {
	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	pods, err := e.o.DevicePlugin.Restart(call)

	e.mu.Lock()
	news := len(pods) > 0 && !slices.Equal(pods, op.PluginPods)
	if err == nil {
		op.PluginPods = pods
	}
	e.mu.Unlock()

	if news {
		e.addNote(op, "restarted the device plugin")
	}
	if err != nil {
		level.Warn(e.o.Logger).Log("msg", "cannot restart the device plugin", "operation", op.Operation.ID, "err", err)
	} else {
		level.Info(e.o.Logger).Log("msg", "restarted the device plugin", "operation", op.Operation.ID, "pods",
			strings.Join(pods, ","))
	}
	return err
}

// restartAfterRollback restarts the device plugin after a rollback: instances that were created again can have other
// ids, by which the plugin has named their device files.
func (e *Engine) restartAfterRollback(ctx context.Context, op *operation) {
	if e.o.DevicePlugin == nil {
		return
	}

	if err := e.restartPlugin(ctx, op); err != nil {
		e.addWarning(op, "the device plugin could not be restarted (%s): restart its pod on this node", reasonText(err))
	}
}
