package hostengine

import (
	_ "embed" // the table of fields
	"fmt"
	"strings"
)

// Field is what DCGM says of a field. Short, Unit and Width are for tables such as that of dcgmi dmon.
type Field struct {
	ID          uint16
	Type        byte // DCGM_FT_*: 'i', 'd', 's' or 'b'
	Size        int  // in bytes; 0: it varies, or is unknown
	Tag         string
	Level       Level // the lowest level that has the field; NoEntity: it belongs to the node
	NVML        int   // the field's id in NVML; 0: it has none
	Short, Unit string
	Width       int
}

//go:embed fields.txt
var fieldTable string

// Fields lists the fields that the engine knows, by id.
func Fields() []Field {
	levels := map[string]Level{
		"node": NoEntity,
		"gpu":  GPU,
		"vgpu": VGPU,
		"gi":   GPUInstance,
		"ci":   ComputeInstance,
	}

	var all []Field

	for line := range strings.Lines(fieldTable) {
		if strings.HasPrefix(line, "#") {
			continue
		}

		var f Field
		var levelName string

		_, err := fmt.Sscanf(line, "%d %c %d %s %s %d %s %q %d",
			&f.ID, &f.Type, &f.Size, &f.Tag, &levelName, &f.NVML, &f.Short, &f.Unit, &f.Width)

		level, known := levels[levelName]
		if err != nil || !known {
			panic(fmt.Sprintf("hostengine: embedded fields.txt: %q: %v", line, err)) // a test reads it, too
		}

		f.Level = level
		all = append(all, f)
	}

	return all
}
