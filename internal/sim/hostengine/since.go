package hostengine

import "slices"

// ValuesSince lists, by entity, the values that a field group has for a group of entities since a
// time in microseconds since 1970. The XID field has a value for each event, other fields only the
// latest. next is the time from which to ask in the next call.
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

	for _, entity := range g.entities {
		for _, f := range fields.ids {
			for _, v := range e.valuesSince(entity, f, since) {
				next = max(next, v.Micros+1)
				values = append(values, v)
			}
		}
	}

	return values, next, nil
}

func (e *Engine) valuesSince(entity Entity, field uint16, since int64) []Value {
	latest := e.value(entity, field)
	if latest.Status != OK {
		return nil
	}

	list := []Value{latest}

	if index, member, ok := e.gpuOf(entity); ok && field == fieldXID {
		watched := e.watchOf(entity, field).since.UnixMicro()
		if all := e.xids(index, member, watched); len(all) > 0 {
			list = all
		}
	}

	return slices.DeleteFunc(list, func(v Value) bool { return v.Micros < since })
}
