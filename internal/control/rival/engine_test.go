package rival

import (
	"context"
	"errors"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/journal"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// All that these tests know of how an engine is made. Whatever changes there changes this file alone.

// stateFolder is where an engine keeps what outlives it, in the folder of a node.
const stateFolder = "state"

// newEngine makes an engine over its state on disk, which release gives back.
func newEngine(folder, boot string, a control.Actuator, node *poll.Poller, logger log.Logger) (e *control.Engine, release func() error, err error) {
	file, err := journal.Open(folder)
	if err != nil {
		return nil, nil, err
	}
	e, err = control.New(control.Options{
		Hostname: "rival", BootID: boot, Apply: true, Actuator: a, Node: node, Journal: file,
		CallTimeout: limit, Now: time.Now, Logger: logger,
	})
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return e, file.Close, nil
}

// accept closes an operation that is degraded, with what stands.
func accept(ctx context.Context, e *control.Engine, by control.Actor, id string) (*api.Operation, error) {
	return e.Abandon(ctx, by, id)
}
