package capture

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
)

// answerReader reads what was said in a recording whose moments and GPUs are known.
type answerReader struct {
	*reader
	rec *Recording
}

// lastMoment is 0 where the moments could not be read, too.
func (r answerReader) lastMoment() uint64 { return uint64(max(len(r.rec.Moments)-1, 0)) }

func (r answerReader) gpu(n *yaml.Node, key string) gpuRecord {
	o := r.object(n, key, "gpu", "answers", "?mig_devices", "?gpu_instances")
	g := gpuRecord{name: o.text("gpu"), devices: map[int]answers{}, instances: map[slot]answers{}}
	if at := o.fields["answers"]; at != nil {
		g.answers = r.answers(at, o.sub("answers"), gpuQuestions())
	}
	for i, at := range o.list("mig_devices") {
		d := r.object(at, fmt.Sprintf("%s[%d]", o.sub("mig_devices"), i), "index", "answers")
		index := d.number("index", 1<<16)
		if g.devices[index] != nil {
			r.fail(at, d.sub("index"), "is %d, which stands here twice", index)
		}
		if said := d.fields["answers"]; said != nil {
			g.devices[index] = r.answers(said, d.sub("answers"), migQuestions())
		}
	}
	for i, at := range o.list("gpu_instances") {
		d := r.object(at, fmt.Sprintf("%s[%d]", o.sub("gpu_instances"), i), "profile", "position", "answers")
		s := slot{uint32(d.number("profile", 1<<32-1)), d.number("position", maxHandles)}
		if g.instances[s] != nil {
			r.fail(at, d.key, "is position %d of profile %d, which stands here twice", s.position, s.profile)
		}
		if said := d.fields["answers"]; said != nil {
			g.instances[s] = r.answers(said, d.sub("answers"), instanceQuestions())
		}
	}
	return g
}

// maxHandles bounds a list of GPUs or GPU instances; none has a tenth of it.
const maxHandles = 1 << 10

// answers reads the answers to each question.
func (r answerReader) answers(n *yaml.Node, key string, known []question) answers {
	all := answers{}
	if !r.mapping(n, key, "a mapping of questions to answers") {
		return all
	}
	for _, p := range pairs(n) {
		at := key + "." + p.key.Value
		q, canonical, err := findQuestion(known, p.key.Value)
		switch {
		case err != nil:
			r.fail(p.key, at, "%v", err)
		case all[canonical] != nil:
			r.fail(p.key, at, "stands here twice")
		default:
			all[canonical] = r.entries(p.value, at, q.answer)
		}
	}
	return all
}

// entries reads the answers to one question: one, or {moments: {0: A, 2: B}}.
func (r answerReader) entries(n *yaml.Node, key string, t reflect.Type) []entry {
	if !hasKey(n, "moments") {
		return []entry{{0, 1, r.answer(n, key, t, 0)}}
	}
	o := r.object(n, key, "moments")
	key = o.sub("moments")
	var list []entry
	if n = o.fields["moments"]; !r.mapping(n, key, "a mapping of moments to answers") {
		return []entry{{}}
	}
	for _, p := range pairs(n) {
		at := key + "." + p.key.Value
		moment, nth, ok := parseMoment(p.key.Value)
		switch last := len(list) - 1; {
		case !ok || uint64(moment) > r.lastMoment():
			r.fail(p.key, at, "is no moment; expected 0 to %d, or such as 0.2 for a second answer", r.lastMoment())
		case last >= 0 && (moment < list[last].moment || moment == list[last].moment && nth <= list[last].nth):
			r.fail(p.key, at, "is not after the moment before it")
		}
		list = append(list, entry{moment, nth, r.answer(p.value, at, t, moment)})
	}
	if len(list) == 0 {
		r.fail(n, key, "is empty; expected a mapping of moments to answers")
		return []entry{{}}
	}
	return list
}

// parseMoment reads 3, the first asking in a moment, or 3.2, the second.
func parseMoment(text string) (moment, nth int, ok bool) {
	whole, part, has := strings.Cut(text, ".")
	moment, err := strconv.Atoi(whole)
	if err != nil || moment < 0 {
		return 0, 0, false
	}
	if !has {
		return moment, 1, true
	}
	nth, err = strconv.Atoi(part)
	return moment, nth, err == nil && nth > 1
}

func hasKey(n *yaml.Node, key string) bool {
	return n.Kind == yaml.MappingNode && slices.ContainsFunc(pairs(n), func(p pair) bool {
		return p.key.Kind == yaml.ScalarNode && p.key.Value == key
	})
}

// answer reads a value, an error, or what comes late, of a question put in a moment or after it.
func (r answerReader) answer(n *yaml.Node, key string, t reflect.Type, moment int) answer {
	switch {
	case hasKey(n, "error"):
		o := r.object(n, key, "error")
		return answer{ret: r.code(o.fields["error"], o.sub("error")), until: moment}
	case !hasKey(n, "hangs"):
		return answer{value: r.value(n, key, t), until: moment}
	case !hasKey(n, "then"):
		o := r.object(n, key, "hangs")
		if at := o.fields["hangs"]; at.Value != "ever" {
			r.fail(at, o.sub("hangs"), "is %s; expected ever, or a moment with {then: ANSWER} beside it", kindOf(at))
		}
		return answer{until: never}
	}
	o := r.object(n, key, "hangs", "then")
	late := answer{}
	if then := o.fields["then"]; then != nil && !hasKey(then, "hangs") {
		late = r.answer(then, o.sub("then"), t, moment)
	} else if then != nil {
		r.fail(then, o.sub("then"), "hangs again; expected what the driver answered then")
	}
	late.until = o.number("hangs", r.lastMoment())
	return late
}

// value reads what the driver answered. What the rest of the program takes on trust is checked.
func (r answerReader) value(n *yaml.Node, key string, t reflect.Type) any {
	errs := len(r.errs)
	v := r.decode(n, key, t).Interface()
	if len(r.errs) > errs {
		return v
	}
	switch v := v.(type) {
	case gpuName:
		if !r.rec.has(string(v)) {
			r.fail(n, key, "is %q, which is none of the recorded gpus", v)
		}
	case count:
		if v < 0 || v > maxHandles {
			r.fail(n, key, "is %d; expected a number of handles, at most %d", v, maxHandles)
		}
	}
	return v
}

func (r *reader) code(n *yaml.Node, key string) nvml.Return {
	ret, ok := returnOf(n.Value)
	if !ok || n.Kind != yaml.ScalarNode {
		r.fail(n, key, "is %s; expected a code of NVML such as NOT_SUPPORTED, or its number", kindOf(n))
	}
	return ret
}

func (r answerReader) event(n *yaml.Node, key string) eventRecord {
	if hasKey(n, "error") {
		o := r.object(n, key, "before", "error")
		return eventRecord{before: o.number("before", r.lastMoment()), ret: r.code(o.fields["error"], o.sub("error"))}
	}
	o := r.object(n, key, "before", "?gpu", "type", "data", "gpu_instance_id", "compute_instance_id")
	e := eventRecord{before: o.number("before", r.lastMoment()), gpu: o.text("gpu")}
	if at := o.fields["gpu"]; at != nil && !r.rec.has(e.gpu) {
		r.fail(at, o.sub("gpu"), "is %s, which is none of the recorded gpus", kindOf(at))
	}
	if at := o.fields["type"]; at != nil {
		kind, ok := eventArg().value(at.Value)
		if !ok || at.Kind != yaml.ScalarNode {
			r.fail(at, o.sub("type"), "is %s; expected a type of event such as XID_CRITICAL_ERROR, or its number", kindOf(at))
		}
		e.event.Type = kind
	}
	if at := o.fields["data"]; at != nil {
		e.event.Data = r.unsigned(at, o.sub("data"), 64)
	}
	e.event.GPUInstanceID = uint32(o.number("gpu_instance_id", 1<<32-1))
	e.event.ComputeInstanceID = uint32(o.number("compute_instance_id", 1<<32-1))
	return e
}
