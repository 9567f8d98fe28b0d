package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const module = "github.com/mig-exporter/mig-exporter/"

// The libraries that the rules name; an import of a package below one counts as one of it.
const (
	goNVML          = "github.com/NVIDIA/go-nvml"
	goDCGM          = "github.com/NVIDIA/go-dcgm"
	goKitLog        = "github.com/go-kit/log"
	kingpin         = "github.com/alecthomas/kingpin/v2"
	clientGolang    = "github.com/prometheus/client_golang"
	clientModel     = "github.com/prometheus/client_model"
	common          = "github.com/prometheus/common"
	exporterToolkit = "github.com/prometheus/exporter-toolkit"
	slogGokit       = "github.com/tjhop/slog-gokit"
	goSystemd       = "github.com/coreos/go-systemd/v22"
	compress        = "github.com/klauspost/compress"
	fsnotify        = "github.com/fsnotify/fsnotify"
	grpc            = "google.golang.org/grpc"
	protobuf        = "google.golang.org/protobuf"
	kubeletAPI      = "k8s.io/kubelet"
	timeRate        = "golang.org/x/time/rate"
	yaml            = "go.yaml.in/yaml/v3"
)

// room is what the code of one package, its tests excepted, may import besides the standard library.
type room struct {
	dir       string
	internals []string // folders of this module
	libraries []string
}

// rooms lists every package that may import more than those of anyRoom, or less.
func rooms() []room { return slices.Concat(baseRooms(), simulatedRooms(), controlRooms()) }

func baseRooms() []room {
	return []room{
		{dir: "internal/gpu"},
		{dir: "internal/mig", internals: []string{"internal/gpu"}},
		{dir: "internal/nodedoc", internals: []string{"internal/gpu"}},
		{dir: "internal/archtest"},
		{dir: "dashboards"},                  // makes files; part of no program
		{dir: "internal/nvmlsource/seamgen"}, // likewise
		{dir: "internal/strictyaml", libraries: []string{yaml}},
		{dir: "internal/cmptest", libraries: []string{"github.com/google/go-cmp"}},
		{
			dir:       "internal/capture",
			internals: []string{"internal/gpu", "internal/nvmlsource", "internal/strictyaml"},
			libraries: []string{goNVML, yaml},
		},
		{
			dir:       "collector",
			internals: []string{"internal/gpu", "internal/mig"},
			libraries: []string{clientGolang, clientModel, common, protobuf}, // protobuf: client_model's timestamps
		},
		{
			dir:       "internal/web",
			internals: []string{"internal/gpu", "internal/nodedoc", "internal/shutdown"},
			libraries: []string{clientGolang, clientModel, common, exporterToolkit, compress, goKitLog, slogGokit, goSystemd},
		},
		{
			dir:       "internal/nvmlsource",
			internals: []string{"internal/gpu", "internal/mig"},
			libraries: []string{goNVML, goKitLog},
		},
		{
			dir:       "internal/dcgmsource",
			internals: []string{"internal/gpu", "internal/mig"},
			libraries: []string{goDCGM, goKitLog},
		},
		{
			dir:       "internal/kubeapi",
			internals: []string{"internal/gpu"},
		},
		{
			dir:       "internal/podmeta",
			internals: []string{"internal/gpu", "internal/mig", "internal/kubeapi"},
			libraries: []string{goKitLog, timeRate},
		},
		{
			dir:       "internal/podresources",
			internals: []string{"internal/gpu", "internal/mig"},
			libraries: []string{grpc, protobuf, kubeletAPI, fsnotify, goKitLog},
		},
	}
}

// simulatedRooms are those of the simulated node.
func simulatedRooms() []room {
	return []room{
		{
			dir:       "internal/sim",
			internals: []string{"internal/gpu", "internal/mig", "internal/strictyaml"},
		},
		{
			dir:       "internal/sim/simnvml",
			internals: []string{"internal/gpu", "internal/mig", "internal/nvmlsource", "internal/sim"},
			libraries: []string{goNVML},
		},
		{
			dir:       "internal/sim/hostengine",
			internals: []string{"internal/gpu", "internal/mig", "internal/sim"},
		},
		{
			dir:       "internal/sim/simdcgm",
			internals: []string{"internal/gpu", "internal/dcgmsource", "internal/sim", "internal/sim/hostengine"},
		},
		{
			dir:       "internal/sim/kubelet",
			internals: []string{"internal/gpu", "internal/sim"},
			libraries: []string{grpc, protobuf, kubeletAPI, goKitLog},
		},
	}
}

// controlRooms are those of partition control.
func controlRooms() []room {
	return []room{
		{
			dir:       "internal/control",
			internals: []string{"internal/gpu", "internal/mig", "internal/control/api", "internal/control/spec"},
			libraries: []string{goKitLog},
		},
		{
			dir:       "internal/control/spec",
			internals: []string{"internal/gpu", "internal/mig", "internal/control/api", "internal/strictyaml"},
		},
		{
			dir:       "internal/control/server",
			internals: []string{"internal/gpu", "internal/mig", "internal/control", "internal/control/api", "internal/control/spec", "internal/shutdown", "internal/strictyaml"},
			libraries: []string{goKitLog},
		},
		{
			dir:       "internal/control/handles",
			internals: []string{"internal/gpu", "internal/mig", "internal/control"},
		},
		{
			dir:       "internal/control/store",
			internals: []string{"internal/control"},
		},
		{
			dir:       "internal/control/hooks",
			internals: []string{"internal/gpu", "internal/control", "internal/control/api"},
			libraries: []string{goKitLog},
		},
		{
			dir:       "internal/control/owners",
			internals: []string{"internal/gpu"},
		},
		{
			dir:       "internal/control/cluster",
			internals: []string{"internal/gpu", "internal/kubeapi", "internal/control"},
		},
	}
}

// anyRoom is the rule for a package that has none of its own: the domain, the logger, no sibling. A new package that is
// there for a library gets a room above.
func anyRoom(dir string) room {
	return room{dir: dir, internals: []string{"internal/gpu", "internal/mig"}, libraries: []string{goKitLog}}
}

// exclusive lists libraries that only some packages may import, whatever else is allowed; cmd is every package below it.
func exclusive() map[string][]string {
	return map[string][]string{
		goNVML:  {"internal/nvmlsource", "internal/sim/simnvml", "internal/capture"},
		goDCGM:  {"internal/dcgmsource"},
		kingpin: {"cmd"},
	}
}

// withoutNVML lists packages that may not depend on go-nvml through others either: cmd/nvml-sim is a library of its own
// and would be left with hundreds of undefined NVML symbols.
func withoutNVML() []string {
	return []string{"internal/gpu", "internal/mig", "internal/sim", "internal/sim/hostengine", "internal/sim/kubelet", "cmd/nvml-sim", "cmd/dcgm-sim"}
}

// goImport is one import of a file of the module. All paths in it are relative to the module's root, slash-separated.
type goImport struct {
	file string
	line int
	path string // as written: "fmt", or beginning with module
}

func (i goImport) dir() string { return path.Dir(i.file) }

// internal returns the folder that an import of this module names.
func (i goImport) internal() (dir string, ok bool) { return strings.CutPrefix(i.path, module) }

// importViolations holds the imports of all files that are not tests against the rules.
func importViolations(imports []goImport) []string {
	var found []string
	for _, i := range imports {
		if rule := brokenRule(i); rule != "" {
			found = append(found, fmt.Sprintf("%s:%d: imports %s: %s", i.file, i.line, i.path, rule))
		}
	}
	for _, dir := range withoutNVML() {
		if chain := chainTo(imports, dir, goNVML, nil); len(chain) > 1 {
			found = append(found, fmt.Sprintf("%s: %s must not depend on %s, not even through others: %s",
				dir, dir, goNVML, strings.Join(chain, " -> ")))
		}
	}
	return found
}

// brokenRule returns the rule that an import breaks, or nothing.
func brokenRule(i goImport) string {
	dir := i.dir()
	for library, users := range exclusive() {
		if below(i.path, library) && !slices.ContainsFunc(users, func(u string) bool { return dir == u || u == "cmd" && below(dir, u) }) {
			return fmt.Sprintf("only %s may import %s", strings.Join(users, " and "), library)
		}
	}
	if below(dir, "cmd") || isStandard(i.path) {
		return ""
	}
	all := rooms()
	r := anyRoom(dir)
	if at := slices.IndexFunc(all, func(r room) bool { return r.dir == dir }); at >= 0 {
		r = all[at]
	}
	if to, ok := i.internal(); ok {
		if slices.Contains(r.internals, to) {
			return ""
		}
		return fmt.Sprintf("of this module, %s may import %s", dir, orNothing(r.internals))
	}
	if slices.ContainsFunc(r.libraries, func(library string) bool { return below(i.path, library) }) {
		return ""
	}
	return fmt.Sprintf("of other modules, %s may import %s", dir, orNothing(r.libraries))
}

// chainTo finds a way from a package to a library through packages of this module.
func chainTo(imports []goImport, dir, library string, seen []string) []string {
	if slices.Contains(seen, dir) {
		return nil
	}
	seen = append(seen[:len(seen):len(seen)], dir)
	for _, i := range imports {
		if i.dir() != dir {
			continue
		}
		if below(i.path, library) {
			return append(seen, i.path)
		}
		if next, ok := i.internal(); ok {
			if chain := chainTo(imports, next, library, seen); chain != nil {
				return chain
			}
		}
	}
	return nil
}

// below reports whether a path is that of a folder or lies below it.
func below(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// isStandard: the paths of the standard library, and "C", have no dot in their first element.
func isStandard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

func orNothing(allowed []string) string {
	if len(allowed) == 0 {
		return "nothing"
	}
	return strings.Join(allowed, ", ")
}
