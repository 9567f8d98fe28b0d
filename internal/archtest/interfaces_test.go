package archtest

import (
	"go/ast"
	"path"
)

// maxMethods is how many methods an interface may declare. An implementation or a fake of more is
// work that few tests need.
const maxMethods = 6

// largeInterface returns why an interface of a package may declare more methods, empty if it may
// not.
func largeInterface(dir, name string) string {
	switch dir + "." + name {
	case "internal/nvmlsource.Device", "internal/nvmlsource.Library":
		return "the seam to NVML has the functions of go-nvml that we call"
	case "internal/dcgmsource.Session":
		return "the seam to a DCGM host engine has the functions of go-dcgm that we call"
	case "internal/control/server.Backend":
		return "the engine of partition control, with one method for each request of the API"
	}

	return ""
}

// largeInterfaces finds the interfaces with too many methods. What they embed counts where it is
// declared.
func (s source) largeInterfaces() []string {
	var found []string

	ast.Inspect(s.file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}

		of, ok := spec.Type.(*ast.InterfaceType)
		if !ok {
			return true
		}

		methods := 0
		for _, field := range of.Methods.List {
			methods += len(field.Names)
		}

		excepted := largeInterface(path.Dir(s.name), spec.Name.Name) != ""

		switch {
		case methods > maxMethods && !excepted:
			found = append(found, s.at(spec.Pos(), "%s has %d methods, at most %d are allowed",
				spec.Name.Name, methods, maxMethods))
		case methods <= maxMethods && excepted:
			found = append(found, s.at(spec.Pos(), "%s is small now: remove it from largeInterface",
				spec.Name.Name))
		}

		return true
	})

	return found
}
