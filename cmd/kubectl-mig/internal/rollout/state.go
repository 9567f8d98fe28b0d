// Package rollout repartitions the nodes of a cluster, one after another or some at a time: it
// cordons a node, evicts the pods in the way if it may, lets the node's exporter change the layout,
// waits until the node offers the new devices, and uncordons it.
//
// Each of these is a phase of a node. We save the state of the run before each phase, and a phase can
// be repeated. So a run that was killed can go on where it was, also on another machine.
package rollout

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// Run is the state of a run.
type Run struct {
	APIVersion string    `json:"apiVersion"`
	Name       string    `json:"name"`
	Created    time.Time `json:"created"`
	// Owner is the client that has saved the state last.
	Owner string `json:"owner"`
	// Undo says that the run gives the nodes whose Undo is set their former layout again, and leaves
	// the others alone.
	Undo    bool    `json:"undo,omitempty"`
	Options Options `json:"options"`
	// Specs are the layouts, in the order of the file's entries.
	Specs []api.Spec `json:"specs"`
	Nodes []Node     `json:"nodes"` // by name
}

// Options say how a run deals with its nodes.
type Options struct {
	// MaxUnavailable is how many nodes are repartitioned at a time.
	MaxUnavailable int `json:"maxUnavailable"`
	// TakeOver allows changes of GPUs that another owner manages.
	TakeOver bool `json:"takeOver,omitempty"`
	// Timeout is how long we wait for a node: for its exporter to answer, for processes of evicted
	// pods to end, for the kubelet and the API server to offer the new devices.
	Timeout time.Duration `json:"timeout"`
	// Reason is the stated reason of the nodes' operations, in the words of the client that has
	// begun the run.
	Reason string `json:"reason,omitempty"`
	// Eviction says how to evict pods; nil if we must not.
	Eviction *Eviction `json:"eviction,omitempty"`
}

// Eviction has the flags of kubectl drain.
type Eviction struct {
	Force                  bool          `json:"force,omitempty"`
	IgnoreDaemonSets       bool          `json:"ignoreDaemonSets,omitempty"`
	DeleteEmptyDirData     bool          `json:"deleteEmptyDirData,omitempty"`
	DisableEviction        bool          `json:"disableEviction,omitempty"`
	GracePeriodSeconds     int           `json:"gracePeriodSeconds"`
	Timeout                time.Duration `json:"timeout"` // 0: none
	PodSelector            string        `json:"podSelector,omitempty"`
	SkipWaitForDeleteAfter int           `json:"skipWaitForDeleteAfterSeconds,omitempty"`
}

// Node is the state of one node. Its phase is what we do next, or what was interrupted.
type Node struct {
	Name  string `json:"name"`
	Spec  int    `json:"spec"` // index of Run.Specs
	Phase Phase  `json:"phase"`
	// Undo says that we roll the node's operation back, or have done so.
	Undo bool `json:"undo,omitempty"`
	// Cordon says who has cordoned the node; empty before the run has cordoned it.
	Cordon Cordon `json:"cordon,omitempty"`
	// Pods are those that are being evicted.
	Pods   []Pod `json:"pods,omitempty"`
	Rounds int   `json:"rounds,omitempty"` // how often pods were evicted, or a plan was stale
	// Before is what the node had when it was cordoned. It is nil if that is not known.
	Before *Offer `json:"before,omitempty"`
	// Plan, Hash and Key are of the operation that is being started.
	Plan string `json:"plan,omitempty"`
	Hash string `json:"hash,omitempty"`
	Key  string `json:"key,omitempty"`
	// Operation is the id of the operation that gives the node its layout, RolledBackBy of the one
	// that undoes it.
	Operation    string `json:"operation,omitempty"`
	RolledBackBy string `json:"rolledBackBy,omitempty"`
	// LeftBy is an operation that was interrupted or accepted: it has left a layout that is perhaps
	// neither the one before nor the planned one, and it cannot be rolled back.
	LeftBy string `json:"leftBy,omitempty"`
	// Failure is why the node has failed, or will have once it is uncordoned. Retry is the phase in
	// which a resumed run goes on.
	Failure string `json:"failure,omitempty"`
	// Unclear says that the layout is not the one from before the run, or that we don't know. If the
	// node fails then, it stays cordoned.
	Unclear bool `json:"unclear,omitempty"`
	// Retry is the phase of a failed node with which a resumed run goes on.
	Retry   Phase     `json:"retry,omitempty"`
	Changed time.Time `json:"changed,omitzero"`

	since time.Time // since when this execution has had the node in its phase
}

// Phase is how far a node is.
type Phase string

// The phases.
const (
	Waiting     Phase = "waiting"     // nothing was done yet
	Cordoning   Phase = "cordoning"   // the node is being cordoned
	Planning    Phase = "planning"    // the exporter plans, and names the pods in the way
	Evicting    Phase = "evicting"    // pods are being evicted
	Starting    Phase = "starting"    // the operation is being started
	Running     Phase = "running"     // the exporter repartitions, and waits for the kubelet
	Settling    Phase = "settling"    // the API server does not show the new devices yet
	Uncordoning Phase = "uncordoning" // the node is being uncordoned
	Done        Phase = "done"
	Skipped     Phase = "skipped" // the node had the layout already
	Failed      Phase = "failed"
)

// Final reports whether we do nothing more on a node in this phase.
func (p Phase) Final() bool { return p == Done || p == Skipped || p == Failed }

// Cordon says who has cordoned a node.
type Cordon string

// The cordons. The zero value is a node that the run has not looked at yet.
const (
	Own     Cordon = "own"     // the run, which lifts it
	Foreign Cordon = "foreign" // another client, which has to lift it
)

// Pod names a pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Offer is what a node has, and offers to pods, at one time.
type Offer struct {
	// Devices counts the MIG devices by the resources that they are offered as. In the state of an
	// older version it is nil if the exporter had not said.
	Devices map[string]int `json:"devices"`
	// Resources are the numbers of devices in the node's allocatable.
	Resources map[string]int `json:"resources"`
}

// Target is a node and the index of its spec.
type Target struct {
	Node string
	Spec int
}

// Bounds of a run: its state is one object of the API server, which takes objects of a mebibyte.
const (
	maxState   = 900 << 10
	nodeRoom   = 1 << 10 // what a node may take, except for its pods
	maxFailure = 400
	maxPods    = 128 // that are evicted from a node at a time
	offerRoom  = 2 << 10
)

// NewRun returns a run that has done nothing yet. It returns an error if its state might not fit into
// one object.
func NewRun(now time.Time, targets []Target, specs []api.Spec, options Options) (*Run, error) {
	if len(targets) == 0 {
		return nil, errors.New("no node is selected")
	}

	options.MaxUnavailable = max(options.MaxUnavailable, 1)
	r := &Run{
		APIVersion: api.Version,
		Name:       "mig-" + now.UTC().Format("20060102-150405") + "-" + strings.ToLower(rand.Text()[:5]),
		Created:    now.UTC(),
		Options:    options,
		Specs:      specs,
	}

	for _, t := range targets {
		r.Nodes = append(r.Nodes, Node{Name: t.Node, Spec: t.Spec, Phase: Waiting})
	}

	document, err := json.Marshal(specs)
	if err != nil {
		return nil, fmt.Errorf("write the specs: %w", err)
	}

	inProgress := min(options.MaxUnavailable, len(targets)) * (maxPods*320 + offerRoom)
	if size := len(document) + len(targets)*nodeRoom + inProgress; size > maxState {
		return nil, fmt.Errorf("%d nodes, %d at a time, with %d bytes of specs are too many for one run: "+
			"its state would have %d bytes of at most %d; make several files of this one",
			len(targets), options.MaxUnavailable, len(document), size, maxState)
	}

	return r, nil
}

// Resume makes the nodes that have failed go on. It reports false if all nodes are done.
func (r *Run) Resume() bool {
	isLeft := false

	for i := range r.Nodes {
		n := &r.Nodes[i]
		isLeft = isLeft || r.isLeftOut(n) || r.concerns(n) && n.Phase != Done && n.Phase != Skipped

		if n.Phase != Failed || !r.concerns(n) {
			continue
		}

		n.Phase = n.Retry
		n.Failure = ""
		n.Retry = ""

		// If we have evicted pods, planBusy still waits for their processes.
		if n.Phase == Waiting {
			n.Rounds = min(n.Rounds, 1)
		}
	}

	return isLeft
}

// RollBack makes the run undo what it has done on the named nodes, or on all nodes that it has
// changed if none is named.
func (r *Run) RollBack(names []string) error {
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}

	found := 0

	for i := range r.Nodes {
		n := &r.Nodes[i]
		if len(names) > 0 && !wanted[n.Name] {
			continue
		}

		delete(wanted, n.Name)

		if !n.Phase.Final() && (n.Phase != Waiting || n.Undo) {
			return fmt.Errorf("node %s is %s: resume the run first", n.Name, n.Phase)
		}

		phase, ok := n.undoPhase()
		if ok {
			found++
			n.Undo = true
			n.Phase = phase
			n.Failure = ""
			n.Retry = ""
			n.Rounds = 0

			continue
		}

		if len(names) > 0 {
			return fmt.Errorf("node %s is %s: the run has nothing to undo there", n.Name, n.describe())
		}
	}

	for name := range wanted {
		return fmt.Errorf("node %s is not of run %s", name, r.Name)
	}

	if found == 0 {
		return fmt.Errorf("run %s has nothing to undo", r.Name)
	}

	r.Undo = true

	return nil
}

// undoPhase returns the phase in which the rollback of a node begins. It reports false if there is
// nothing to undo, or no way to.
func (n *Node) undoPhase() (Phase, bool) {
	switch {
	case !n.Phase.Final():
		return "", false
	case n.Operation != "" && n.RolledBackBy == "":
		return Waiting, true
	case n.Phase != Failed:
		return "", false
	case n.Undo:
		return n.Retry, true
	case n.Plan != "" && n.Unclear:
		return Waiting, true // the operation may have been started: we look for it
	case n.Cordon != Own || n.Unclear && n.Retry == Waiting:
		return "", false
	case !n.Unclear:
		return Uncordoning, true
	}

	return Settling, true // it has its layout, by another client
}

// isLeftOut reports whether a rollback leaves a node out that the run keeps cordoned.
func (r *Run) isLeftOut(n *Node) bool {
	return r.Undo && !n.Undo && n.Phase == Failed && n.Cordon == Own
}

func (n *Node) describe() string {
	if n.RolledBackBy != "" {
		return "rolled back"
	}

	if n.Phase == Failed && n.LeftBy != "" {
		return fmt.Sprintf("failed (%s), and operation %s cannot be rolled back. Give the node a layout, "+
			"then lift the cordon with kubectl uncordon", n.Failure, n.LeftBy)
	}

	return string(n.Phase)
}

// concerns reports whether the run works on a node now: all nodes, or while it undoes, those to undo.
func (r *Run) concerns(n *Node) bool { return n.Undo == r.Undo }

// Summary has numbers of a run's nodes.
type Summary struct{ Done, Skipped, Failed, Left int }

// Summary counts the nodes that the run works on.
func (r *Run) Summary() Summary {
	var s Summary

	for i := range r.Nodes {
		n := &r.Nodes[i]

		switch {
		case r.isLeftOut(n):
			s.Failed++
		case !r.concerns(n):
		case n.Phase == Done:
			s.Done++
		case n.Phase == Skipped:
			s.Skipped++
		case n.Phase == Failed:
			s.Failed++
		default:
			s.Left++
		}
	}

	return s
}

// shorten returns a failure's text as one line of at most maxFailure bytes.
func shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= maxFailure {
		return text
	}

	return strings.ToValidUTF8(text[:maxFailure], "") + "..."
}
