package capture

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
)

// answers are the series of one entity, by the call as it is written: function(argument, ...).
type answers map[string]*series

// series is every answer to one call, in the order of calling.
type series struct {
	entries []entry
	// How often the call has been made in the last poll in which it was.
	poll  pollNumber
	calls int
}

// entry is an answer with its place in time: that of the nth such call (from 1) in a poll.
type entry struct {
	poll pollNumber
	nth  int
	answer
}

// answer is what the driver returned for one call.
type answer struct {
	ret   nvml.Return
	value any // of the call's type if ret is SUCCESS
	// until is the poll in which the driver answered, never for a call that hung to the end. It is later than the poll of
	// the call only if the call outlasted that.
	until pollNumber
}

// never is the poll of an answer that did not come while the node was captured.
const never pollNumber = -1

// next counts one more call in a poll and returns which one of it this is.
func (s *series) next(poll pollNumber) int {
	if s.poll != poll {
		s.poll, s.calls = poll, 0
	}
	s.calls++
	return s.calls
}

// at is the last answer given up to the nth call in a poll; before the first it is the first.
func (s *series) at(poll pollNumber, nth int) answer {
	found := s.entries[0].answer
	for _, e := range s.entries {
		if e.poll > poll || e.poll == poll && e.nth > nth {
			break
		}
		found = e.answer
	}
	return found
}

// MarshalYAML writes the answers that differ from the one before them; one that holds throughout stands alone.
func (s *series) MarshalYAML() (any, error) {
	changes := &yaml.Node{Kind: yaml.MappingNode}
	var last *yaml.Node
	for _, e := range s.entries {
		n := e.answer.encode(e.poll)
		if reflect.DeepEqual(n, last) {
			continue
		}
		last = n
		at := strconv.Itoa(int(e.poll))
		if e.nth > 1 {
			at += "." + strconv.Itoa(e.nth)
		}
		changes.Content = append(changes.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: at}, n)
	}
	if len(changes.Content) == 2 {
		return last, nil
	}
	return mapping("polls", changes), nil
}

// encode writes an answer to a call of a poll.
func (a answer) encode(poll pollNumber) *yaml.Node {
	switch {
	case a.until == never:
		return mapping("hangs", encode(reflect.ValueOf("ever")))
	case a.until > poll:
		return mapping("hangs", encode(reflect.ValueOf(a.until)), "then", a.encode(a.until))
	case a.ret != nvml.SUCCESS:
		var n yaml.Node
		_ = n.Encode(code(a.ret)) // of text, which has no error
		return mapping("error", &n)
	}
	return encode(reflect.ValueOf(a.value))
}

// answers reads the series of one entity, of which the calls are known.
func (r *reader) answers(n *yaml.Node, key string, known []callType) answers {
	all := answers{}
	if !r.isMapping(n, key, "a mapping of calls to answers") {
		return all
	}
	for name, value := range pairs(n) {
		at := key + "." + name.Value
		c, canonical, err := findCall(known, name.Value)
		switch {
		case err != nil:
			r.fail(name, at, "%v", err)
		case all[canonical] != nil:
			r.fail(name, at, "stands here twice")
		default:
			all[canonical] = &series{entries: r.entries(value, at, c.answer)}
		}
	}
	return all
}

// entries reads the answers to one call: one, or {polls: {0: A, 2: B}}.
func (r *reader) entries(n *yaml.Node, key string, t reflect.Type) []entry {
	if !hasKey(n, "polls") {
		return []entry{{0, 1, r.answer(n, key, t, 0)}}
	}
	var of struct {
		Polls *yaml.Node `yaml:"polls"`
	}
	r.decode(n, key, reflect.ValueOf(&of).Elem())
	key += ".polls"
	if !r.isMapping(of.Polls, key, "a mapping of polls to answers") {
		return []entry{{}}
	}
	var list []entry
	for name, value := range pairs(of.Polls) {
		at := key + "." + name.Value
		poll, nth, ok := parsePoll(name.Value)
		last := len(list) - 1
		r.checkLater(name, at, poll)
		switch {
		case !ok:
			r.fail(name, at, "is no poll; expected one such as 2, or 2.2 for a second answer")
		case last >= 0 && (poll < list[last].poll || poll == list[last].poll && nth <= list[last].nth):
			r.fail(name, at, "is not after the poll before it")
		}
		list = append(list, entry{poll, nth, r.answer(value, at, t, poll)})
	}
	if len(list) == 0 {
		r.fail(n, key, "is empty; expected a mapping of polls to answers")
		return []entry{{}}
	}
	return list
}

// parsePoll reads 3, the first call in a poll, or 3.2, the second.
func parsePoll(text string) (poll pollNumber, nth int, ok bool) {
	whole, part, has := strings.Cut(text, ".")
	number, err := strconv.ParseUint(whole, 10, 31)
	if err != nil || !has {
		return pollNumber(number), 1, err == nil
	}
	nth, err = strconv.Atoi(part)
	return pollNumber(number), nth, err == nil && nth > 1
}

// answer reads a value, an error, or what comes late, of a call in a poll.
func (r *reader) answer(n *yaml.Node, key string, t reflect.Type, poll pollNumber) answer {
	switch {
	case hasKey(n, "error"):
		var of struct {
			Error code `yaml:"error"`
		}
		r.decode(n, key, reflect.ValueOf(&of).Elem())
		return answer{ret: nvml.Return(of.Error), until: poll}
	case !hasKey(n, "hangs"):
		value := reflect.New(t).Elem()
		r.decode(n, key, value)
		return answer{value: value.Interface(), until: poll}
	case !hasKey(n, "then"):
		var of struct {
			Hangs *yaml.Node `yaml:"hangs"`
		}
		r.decode(n, key, reflect.ValueOf(&of).Elem())
		if of.Hangs.Value != "ever" {
			r.fail(of.Hangs, key+".hangs", "is %s; expected ever, or a poll with {then: ANSWER} beside it", kindOf(of.Hangs))
		}
		return answer{until: never}
	}
	var of struct {
		Hangs pollNumber `yaml:"hangs"`
		Then  *yaml.Node `yaml:"then"`
	}
	r.decode(n, key, reflect.ValueOf(&of).Elem())
	if hasKey(of.Then, "hangs") {
		r.fail(of.Then, key+".then", "hangs again; expected what the driver answered then")
		return answer{}
	}
	late := r.answer(of.Then, key+".then", t, poll)
	late.until = of.Hangs
	return late
}
