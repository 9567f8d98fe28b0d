package nodestatus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// component is this program's name as the source of Events.
const component = "mig-exporter"

// namespace is where Kubernetes keeps the Events on objects that have no namespace, such as Nodes.
// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
const namespace = "default"

// maxEvents is how many Events can wait for the API server, maxTries how often we try to create
// one.
const (
	maxEvents = 64
	maxTries  = 5
)

// Event is an Event on the node.
type Event struct {
	// Key identifies the Event: if you add two with the same Key, the node gets one.
	Key             string
	Reason, Message string
	Warning         bool
	Time            time.Time
}

// EventOptions configure an Events.
type EventOptions struct {
	API    API
	Node   string // its name
	Logger log.Logger
}

// Events creates Events on the node. It is safe for concurrent use.
type Events struct {
	opts    EventOptions
	waiting chan Event
}

// NewEvents returns an Events, which creates none until Run is called.
func NewEvents(opts EventOptions) *Events {
	return &Events{opts: opts, waiting: make(chan Event, maxEvents)}
}

// Add queues an Event for Run to create. It does not block: if too many wait, it drops the Event
// and logs that.
func (e *Events) Add(event Event) {
	select {
	case e.waiting <- event:
	default:
		e.logDropped(event, errors.New("too many wait for the API server"))
	}
}

// Run creates the Events that are added until ctx ends. Then it creates those that still wait, for
// at most stopTimeout. It returns nil.
func (e *Events) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case event := <-e.waiting:
			e.createWithRetries(ctx, event)
		case <-ctx.Done():
		}
	}

	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()

	for {
		select {
		case event := <-e.waiting:
			if err := e.create(stopCtx, event); err != nil {
				e.logDropped(event, err)
			}
		default:
			return nil
		}
	}
}

// createWithRetries creates an Event. If the API server does not answer, it tries again; if the API
// server refuses, that would not help.
func (e *Events) createWithRetries(ctx context.Context, event Event) {
	var backoff retry.Backoff

	for try := 1; ; try++ {
		err := e.create(ctx, event)
		if err == nil {
			return
		}

		var refused *kubeapi.RefusedError
		if errors.As(err, &refused) || try == maxTries {
			e.logDropped(event, err)
			return
		}

		now := time.Now()
		backoff.Postpone(now, minRetry, maxRetry)

		if retry.Sleep(ctx, backoff.Next.Sub(now)) != nil {
			e.Add(event) // ctx has ended: Run tries once more
			return
		}
	}
}

// eventBody is the JSON of a Kubernetes Event.
type eventBody struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Involved   map[string]string `json:"involvedObject"`
	Type       string            `json:"type"`
	Reason     string            `json:"reason"`
	Message    string            `json:"message"`
	First      time.Time         `json:"firstTimestamp"`
	Last       time.Time         `json:"lastTimestamp"`
	Count      int               `json:"count"`
	Source     map[string]string `json:"source"`
	Reporter   string            `json:"reportingComponent"`
	Instance   string            `json:"reportingInstance"`
}

func (e *Events) create(ctx context.Context, event Event) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	hash := sha256.Sum256([]byte(event.Key))
	at := event.Time.UTC().Truncate(time.Second)
	body := eventBody{
		APIVersion: "v1",
		Kind:       "Event",
		Metadata: map[string]string{
			"namespace": namespace,
			"name":      e.opts.Node + "." + hex.EncodeToString(hash[:8]),
		},
		// The UID is the node's name, as in the kubelet's Events: kubectl describe looks for that.
		Involved: map[string]string{"apiVersion": "v1", "kind": "Node", "name": e.opts.Node, "uid": e.opts.Node},
		Type:     "Normal",
		Reason:   event.Reason,
		Message:  shorten(event.Message),
		First:    at,
		Last:     at,
		Count:    1,
		Source:   map[string]string{"component": component, "host": e.opts.Node},
		Reporter: component,
		Instance: e.opts.Node,
	}

	if event.Warning {
		body.Type = "Warning"
	}

	err := e.opts.API.Do(ctx, kubeapi.Request{
		Method: http.MethodPost,
		Path:   "/api/v1/namespaces/" + namespace + "/events",
		Query:  url.Values{"fieldManager": {manager}},
		Body:   body,
	}, nil)
	if errors.Is(err, kubeapi.ErrConflict) { // an earlier try has created it
		return nil
	}

	return err
}

func (e *Events) logDropped(event Event, err error) {
	level.Warn(e.opts.Logger).Log(
		"msg", "an Event on the node was not created", "reason", event.Reason, "message", event.Message, "err", err,
	)
}
