package nodelabels

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// attempt identifies what we have tried, or are trying: to apply one layout in one boot. We keep it
// on the node, so that a restarted exporter repeats neither a layout that was applied nor one that
// failed. If the rules under the same name change, or the node reboots, that is another attempt.
type attempt struct {
	Config string `json:"config"`
	Layout string `json:"layout,omitempty"` // hash of the layout's rules; empty if there is none
	Boot   string `json:"boot,omitempty"`
}

// record is an attempt, and what else of it has to survive a restart.
type record struct {
	attempt
	// Again is set if the attempt failed, but may succeed later: an instance was busy, say.
	Again bool `json:"again,omitempty"`
	// Rebooted is set before we start the reboot command, which we start only once for a layout.
	Rebooted bool `json:"rebooted,omitempty"`
}

// newAttempt returns the attempt to apply a layout.
func newAttempt(config string, rules []api.LayoutRule, boot string) attempt {
	a := attempt{Config: config, Boot: boot}

	if rules != nil {
		text, _ := json.Marshal(rules) // it sorts the keys of maps, so equal rules have equal text
		sum := sha256.Sum256(text)
		a.Layout = hex.EncodeToString(sum[:8])
	}

	return a
}

// recordOf returns the record on the node; an empty one if there is none that can be read.
func recordOf(n Node) record {
	var r record
	if json.Unmarshal([]byte(n.Annotations[attemptAnnotation]), &r) != nil {
		return record{}
	}

	return r
}

func (r record) text() string {
	text, _ := json.Marshal(r)
	return string(text)
}

// hasRebooted reports whether the reboot command was started for the same layout.
func (r record) hasRebooted(a attempt) bool {
	return r.Rebooted && r.Config == a.Config && r.Layout == a.Layout
}
