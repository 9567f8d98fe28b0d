package capture

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Types of which not every value is valid in a recording: the reader checks each with its method expected. Those that are
// written as a name have UnmarshalText, whose error is what was expected.
type (
	formatVersion int
	kubelet       bool
	identities    string
	pollTimes     []time.Duration
	pollNumber    int    // counted from 0
	gpuName       string // a GPU of the recording
	handleCount   int    // how many handles there are
	slot          string // where a GPU instance stands in the driver's lists: PROFILE/POSITION
	code          nvml.Return
	eventType     uint64
)

const (
	identitiesPseudonyms identities = "pseudonyms"
	identitiesKept       identities = "kept"
)

// maxHandles bounds a list of GPUs or GPU instances; none has a tenth of it.
const maxHandles = 1 << 10

func (v formatVersion) expected(*Recording) string {
	if v == 1 {
		return ""
	}
	return "1, the version of the scenario format"
}

func (k kubelet) expected(*Recording) string {
	if !k {
		return ""
	}
	return "false: the kubelet of a node is not recorded"
}

func (i identities) expected(*Recording) string {
	if i == identitiesPseudonyms || i == identitiesKept {
		return ""
	}
	return fmt.Sprintf("%s or %s", identitiesPseudonyms, identitiesKept)
}

func (p pollTimes) expected(*Recording) string {
	if len(p) > 0 && p[0] == 0 {
		return ""
	}
	return "the times of one poll or more, the first 0s"
}

func (p pollNumber) expected(rec *Recording) string {
	if last := rec.lastPoll(); p < 0 || p > last {
		return fmt.Sprintf("at most %d, the last poll", last)
	}
	return ""
}

// lastPoll is 0 if the polls could not be read.
func (r *Recording) lastPoll() pollNumber { return pollNumber(max(len(r.Recorded.Polls)-1, 0)) }

func (g gpuName) expected(rec *Recording) string {
	if rec.Recorded.GPUs[g] != nil {
		return ""
	}
	return "one of the recorded gpus"
}

func (c handleCount) expected(*Recording) string {
	if c >= 0 && c <= maxHandles {
		return ""
	}
	return fmt.Sprintf("a number of handles, at most %d", maxHandles)
}

// slotOf is the slot of a position in the list of a profile. The handle has no other name before it is asked.
func slotOf(profile uint32, position int) slot { return slot(fmt.Sprintf("%d/%d", profile, position)) }

func (s slot) expected(*Recording) string {
	var profile uint32
	var position int
	_, err := fmt.Sscanf(string(s), "%d/%d", &profile, &position)
	if err == nil && slotOf(profile, position) == s && position >= 0 && position < maxHandles {
		return ""
	}
	return "a profile id and a position in its list, such as 9/0"
}

func (e eventRecord) expected(*Recording) string {
	if (e.Error == 0) != (e.Event == nil) {
		return ""
	}
	return "either an event or an error"
}

// UnmarshalText reads a time.
func (t *timestamp) UnmarshalText(text []byte) (err error) {
	if t.Time, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
		return errors.New("a time such as 2026-01-31T12:00:00Z")
	}
	return nil
}

// MarshalText writes NVML's name of a code, without NVML_ERROR_, or its number: drivers know codes that headers do not.
func (c code) MarshalText() ([]byte, error) {
	if c < 0 {
		return []byte(strconv.Itoa(int(c))), nil
	}
	return []byte(returnNames.name(uint64(c))), nil
}

// UnmarshalText reads a code other than SUCCESS.
func (c *code) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		named, _ := returnNames.value(string(text))
		v = int64(named)
	}
	if v == 0 || v != int64(int32(v)) {
		return errors.New("a code of NVML such as NOT_SUPPORTED, or its number")
	}
	*c = code(v)
	return nil
}

// MarshalText writes NVML's name of the type, or its number.
func (e eventType) MarshalText() ([]byte, error) { return []byte(eventNames.name(uint64(e))), nil }

// UnmarshalText reads the name of a type, or its number.
func (e *eventType) UnmarshalText(text []byte) error {
	v, ok := eventNames.value(string(text))
	if !ok {
		return errors.New("a type of event such as XID_CRITICAL_ERROR, or its number")
	}
	*e = eventType(v)
	return nil
}
