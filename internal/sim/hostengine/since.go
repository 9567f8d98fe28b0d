package hostengine

import "slices"

// ValuesSince lists, by entity, the values that the fields of a group of entities got from a time
// on, in microseconds since 1970, and returns the time to ask from next. Of XIDs there is one for
// each event, of all else the latest alone.
func (s *Session) ValuesSince(
	groupID, fieldsID uintptr,
	since int64,
) (values []Value, next int64, err error) {
	if err := s.beginCall(); err != nil {
		return nil, 0, err
	}

	e := s.engine
	defer e.mu.Unlock()

	g := e.groups[groupID]

	fields := e.fields[fieldsID]
	if g == nil || fields == nil {
		return nil, 0, NotConfigured
	}

	e.followAll()
	e.update()
	next = since

	for _, of := range g.entities {
		for _, f := range fields.ids {
			for _, v := range e.valuesSince(of, f, since) {
				next = max(next, v.Micros+1)
				values = append(values, v)
			}
		}
	}

	return values, next, nil
}

func (e *Engine) valuesSince(of Entity, field uint16, since int64) []Value {
	latest := e.value(of, field)
	if latest.Status != OK {
		return nil
	}

	list := []Value{latest}

	if index, member, ok := e.gpuOf(of); ok && field == fieldXID {
		begun := e.watchOf(of, field).since.UnixMicro()
		if all := e.xids(index, member, begun); len(all) > 0 {
			list = all
		}
	}

	return slices.DeleteFunc(list, func(v Value) bool { return v.Micros < since })
}
