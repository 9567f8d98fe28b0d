package nvmlsrc

import (
	"errors"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// answers is what an entity is known to refuse, by the name of the question. It holds while the entity stands as it is.
type answers struct {
	unsupported map[string]bool
	denied      map[string]error     // for lack of privilege
	refused     map[gpu.Reading]bool // denials that are on record: asking again and being denied again is nothing new
}

func newAnswers() answers {
	return answers{unsupported: map[string]bool{}, denied: map[string]error{}, refused: map[gpu.Reading]bool{}}
}

// asker puts questions to one entity during one reading and keeps the books: what is not supported is remembered and
// seldom asked again, what is denied is asked again with the slow tier, every other failure is an error of the entity.
type asker struct {
	source *Source
	answers
	retry bool // ask again what was denied
	errs  []gpu.ReadError
	fatal error // the GPU as a whole cannot be asked any more; nothing further is
	stale bool  // the entity, a MIG device or an instance, is not what it was (losesEntity); of a GPU it says nothing
}

// ask puts one question. It is false where there is no answer, for whatever reason. A question is named by the function
// of NVML, with its argument where it is asked with several.
func ask[T any](a *asker, question string, reading gpu.Reading, f func() (T, nvml.Return)) (T, bool) {
	var answer T
	if !a.may(question, reading) {
		return answer, false
	}
	answer, ret := f()
	return answer, a.took(question, reading, ret)
}

// may tells whether a question is to be asked. A denial that holds is an error of this reading, too.
func (a *asker) may(question string, reading gpu.Reading) bool {
	if a.fatal != nil || a.unsupported[question] {
		return false
	}
	if err := a.denied[question]; err != nil && !a.retry {
		a.errs = append(a.errs, gpu.ReadError{Reading: reading, Err: err, Remembered: true})
		return false
	}
	return true
}

// took takes the return code of a question and tells whether it was answered.
func (a *asker) took(question string, reading gpu.Reading, ret nvml.Return) bool {
	err := a.judge(question, reading, ret)
	if err == nil {
		return true
	}
	if errors.Is(err, gpu.ErrNoPermission) {
		a.source.privilege.lacks(reading)
	}
	a.fail(reading, err)
	return false
}

// judge takes the return code of a question without making an error of it. It returns nil where it was answered.
func (a *asker) judge(question string, reading gpu.Reading, ret nvml.Return) error {
	err := a.source.check(question, ret)
	switch {
	case err == nil:
		if a.denied[question] != nil {
			delete(a.denied, question)
			delete(a.refused, reading)
			a.source.privilege.regained(reading)
		}
	case errors.Is(err, gpu.ErrNotSupported):
		a.unsupported[question] = true
	case errors.Is(err, gpu.ErrNoPermission):
		a.denied[question] = err
	case losesDevice(err):
		a.fatal = err
	case losesEntity(err):
		a.stale = true
	}
	return err
}

// fail makes an error of a question that was not answered. What is not supported is absent, not an error; what loses the
// whole GPU is the reading's own error.
func (a *asker) fail(reading gpu.Reading, err error) {
	if errors.Is(err, gpu.ErrNotSupported) || a.fatal != nil {
		return
	}
	e := gpu.ReadError{Reading: reading, Err: err}
	if errors.Is(err, gpu.ErrNoPermission) {
		e.Remembered, a.refused[reading] = a.refused[reading], true
	}
	a.errs = append(a.errs, e)
}

// text makes a label of a driver's string.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
