package capture

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// answers are the series of one entity, by call: function(argument, ...). Each kind of entity has
// its own calls.
type (
	answers         map[string]*series
	nodeAnswers     answers
	gpuAnswers      answers
	migAnswers      answers
	instanceAnswers answers
)

func (a *nodeAnswers) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	*a = readSeries(r, n, key, nodeCalls())
}
func (a *gpuAnswers) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	*a = readSeries(r, n, key, gpuCalls())
}
func (a *migAnswers) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	*a = readSeries(r, n, key, migCalls())
}
func (a *instanceAnswers) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	*a = readSeries(r, n, key, instanceCalls())
}

// series is every answer to one call, in the order of the calls.
type series struct {
	entries []entry
	poll    pollNumber // the last poll with this call
	calls   int        // how many times that poll made it
}

// entry is the answer to one call: the nth of its kind in a poll, from 1.
type entry struct {
	poll pollNumber
	nth  int
	answer
}

// answer is what the driver returned for one call.
type answer struct {
	ret   nvml.Return
	value any // of the call's type if ret is SUCCESS
	// until is the poll in which the driver answered: later than the poll of the call if the call
	// hung, or never.
	until pollNumber
}

// never is the poll of an answer that did not come while the node was captured.
const never pollNumber = -1

// countCall counts a call in a poll and returns its number in that poll, from 1.
func (s *series) countCall(poll pollNumber) int {
	if s.poll != poll {
		s.poll = poll
		s.calls = 0
	}

	s.calls++

	return s.calls
}

// answerTo returns the last answer up to the nth call in a poll, or the first answer if all are
// later.
func (s *series) answerTo(poll pollNumber, nth int) answer {
	found := s.entries[0].answer
	for _, e := range s.entries {
		if e.poll > poll || e.poll == poll && e.nth > nth {
			break
		}

		found = e.answer
	}

	return found
}

// MarshalYAML writes only answers that differ from the one before them, and a single answer without
// its poll.
func (s *series) MarshalYAML() (any, error) {
	changes := &yaml.Node{Kind: yaml.MappingNode}
	var last *yaml.Node

	for _, e := range s.entries {
		n := e.encode(e.poll)
		if reflect.DeepEqual(n, last) {
			continue
		}

		last = n
		key := strconv.Itoa(int(e.poll))

		if e.nth > 1 {
			key += "." + strconv.Itoa(e.nth)
		}

		changes.Content = append(changes.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, n)
	}

	if len(changes.Content) == 2 {
		return last, nil
	}

	return mapping("polls", changes), nil
}

// encode returns an answer to a call of a poll as YAML.
func (a answer) encode(poll pollNumber) *yaml.Node {
	switch {
	case a.until == never:
		return mapping("hangs", "ever")
	case a.until > poll:
		return mapping("hangs", a.until, "then", a.encode(a.until))
	case a.ret != nvml.SUCCESS:
		return mapping("error", code(a.ret))
	}

	return encode(a.value)
}

// readSeries reads the series of an entity, whose kind has the known calls.
func readSeries(
	r *strictyaml.Reader,
	n *yaml.Node,
	key string,
	known []callType,
) map[string]*series {
	all := map[string]*series{}
	if !r.IsMapping(n, key, "a mapping of calls to answers") {
		return all
	}

	for name, value := range strictyaml.Pairs(n) {
		callKey := key + "." + name.Value

		c, canonical, err := findCall(known, name.Value)
		switch {
		case err != nil:
			r.Fail(name, callKey, "%v", err)
		case all[canonical] != nil:
			r.Fail(name, callKey, "duplicate key")
		default:
			all[canonical] = &series{entries: readEntries(r, value, callKey, c.answer)}
		}
	}

	return all
}

// readEntries reads the answers of type t to one call: one answer, or {polls: {0: A, 2: B}}.
func readEntries(r *strictyaml.Reader, n *yaml.Node, key string, t reflect.Type) []entry {
	if !strictyaml.HasKey(n, "polls") {
		return []entry{{0, 1, readAnswer(r, n, key, t, 0)}}
	}

	var doc struct{ Polls *yaml.Node }
	r.Decode(n, key, &doc)
	key += ".polls"
	var list []entry

	for name, value := range strictyaml.Pairs(doc.Polls) {
		pollKey := key + "." + name.Value
		poll, nth, ok := parsePoll(name.Value)
		r.Check(name, pollKey, poll)

		last := len(list) - 1
		switch {
		case !ok:
			r.Fail(name, pollKey, "is no poll; expected one such as 2, or 2.2 for a second answer")
		case last >= 0 && (poll < list[last].poll || poll == list[last].poll && nth <= list[last].nth):
			r.Fail(name, pollKey, "is not after the poll before it")
		}

		list = append(list, entry{poll, nth, readAnswer(r, value, pollKey, t, poll)})
	}

	if len(list) == 0 {
		r.Expected(doc.Polls, key, "a mapping of one poll or more to answers")
		return []entry{{}} // a series has an entry, also in a file with errors
	}

	return list
}

// parsePoll parses "3", the first call in poll 3, or "3.2", the second.
func parsePoll(text string) (poll pollNumber, nth int, ok bool) {
	pollText, nthText, hasNth := strings.Cut(text, ".")

	number, err := strconv.ParseUint(pollText, 10, 31)
	if err != nil || !hasNth {
		return pollNumber(number), 1, err == nil
	}

	nth, err = strconv.Atoi(nthText)

	return pollNumber(number), nth, err == nil && nth > 1
}

// readAnswer reads the answer of type t to a call in a poll: a value, an error, or a hang, which
// ends with an answer in a later poll or never.
func readAnswer(
	r *strictyaml.Reader,
	n *yaml.Node,
	key string,
	t reflect.Type,
	poll pollNumber,
) answer {
	switch {
	case strictyaml.HasKey(n, "error"):
		var failure struct{ Error code }
		r.Decode(n, key, &failure)

		return answer{ret: nvml.Return(failure.Error), until: poll}
	case !strictyaml.HasKey(n, "hangs"):
		value := reflect.New(t)
		r.Decode(n, key, value.Interface())

		return answer{value: value.Elem().Interface(), until: poll}
	case !strictyaml.HasKey(n, "then"):
		var hang struct{ Hangs *yaml.Node }
		r.Decode(n, key, &hang)

		if hang.Hangs.Value != "ever" {
			r.Expected(hang.Hangs, key+".hangs", "ever, or a poll with {then: ANSWER} beside it")
		}

		return answer{until: never}
	}

	var hang struct {
		Hangs pollNumber
		Then  *yaml.Node
	}
	r.Decode(n, key, &hang)

	if strictyaml.HasKey(hang.Then, "hangs") {
		r.Fail(hang.Then, key+".then", "hangs again; expected what the driver answered then")
		return answer{}
	}

	late := readAnswer(r, hang.Then, key+".then", t, poll)
	late.until = hang.Hangs

	return late
}
