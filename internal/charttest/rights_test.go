package charttest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// right is a verb on a resource of a group.
type right struct{ verb, group, resource string }

// rightsOf returns the rights of all ClusterRoles and Roles, and fails for rules of any other form.
func rightsOf(t *testing.T, objects []object) map[right]bool {
	t.Helper()
	rights := map[right]bool{}

	for _, o := range objects {
		if o["kind"] != "ClusterRole" && o["kind"] != "Role" {
			continue
		}

		for _, rule := range o["rules"].([]any) {
			lists := rule.(map[string]any)
			if len(lists) != 3 {
				t.Errorf("%s: rule %v", describe(o), rule)
			}

			for _, group := range lists["apiGroups"].([]any) {
				for _, resource := range lists["resources"].([]any) {
					for _, verb := range lists["verbs"].([]any) {
						rights[right{verb.(string), group.(string), resource.(string)}] = true
					}
				}
			}
		}
	}

	return rights
}

// Each switch brings the rights that it needs and no other.
func TestRightsBySwitch(t *testing.T) {
	pods := right{"list", "", "pods"}
	claims := right{"get", "resource.k8s.io", "resourceclaims"}
	reading := []right{pods, claims, {"get", "", "nodes"}, {"list", "resource.k8s.io", "resourceslices"},
		{"list", "inference.redhat.com", "instaslices"}, {"list", "inference.redhat.com", "nodeaccelerators"}}

	network := merge(set("control.enabled", true), set("control.network", values{"enabled": true, "existingSecret": "s"}))
	for name, tc := range map[string]struct {
		over values
		want []right
	}{
		"metrics":      {values{}, nil},
		"processes":    {merge(set("mig.monitor", true), set("hostProcesses.enabled", true)), nil},
		"pod metadata": {set("podMetadata.enabled", true), []right{pods}},
		"claims": {merge(set("podMetadata.enabled", true), set("podMetadata.resourceClaims", true)),
			[]right{pods, claims}},
		"control": {set("control.enabled", true), reading},
		"cordon": {merge(set("control.enabled", true), set("control.cordon", true)),
			append(slices.Clone(reading), right{"patch", "", "nodes"})},
		"device plugin": {merge(set("control.enabled", true), readValues(t, "device-plugin")),
			append(slices.Clone(reading), right{"patch", "", "nodes"}, right{"delete", "", "pods"})},
		"node conditions": {set("nodeStatus.conditions", true), []right{pods, {"patch", "", "nodes/status"}}},
		"node events": {merge(set("control.enabled", true), set("nodeStatus.events", true)),
			append(slices.Clone(reading), right{"create", "", "events"})},
		"node labels, to read": {set("nodeLabels.mode", "read"),
			[]right{pods, {"get", "", "nodes"}, {"get", "", "configmaps"}}},
		"node labels, to follow": {merge(set("control.enabled", true), set("nodeLabels.mode", "follow")),
			append(slices.Clone(reading), right{"patch", "", "nodes"}, right{"get", "", "configmaps"})},
		"certificates": {network, reading},
		"tokens": {merge(network, set("control.network.kubernetesTokens", true)), append(slices.Clone(reading),
			right{"create", "authentication.k8s.io", "tokenreviews"},
			right{"create", "authorization.k8s.io", "subjectaccessreviews"})},
	} {
		objects := render(t, tc.over)

		got := rightsOf(t, objects)

		want := map[right]bool{}
		for _, r := range tc.want {
			want[r] = true
		}

		equal(t, name, texts(got), texts(want))

		pod, _ := container(t, objects)
		if mounted := pod["automountServiceAccountToken"]; mounted != (len(want) > 0) {
			t.Errorf("%s: automountServiceAccountToken: %v", name, mounted)
		}
	}
}

func texts(rights map[right]bool) []string {
	var all []string
	for r := range rights {
		all = append(all, r.verb+" "+r.resource+"."+r.group)
	}

	slices.Sort(all)

	return all
}

// allRights are the values that need every right.
func allRights(t *testing.T) values {
	t.Helper()

	return merge(readValues(t, "control", "device-plugin"), set("nodeLabels.mode", "follow"),
		set("nodeStatus.conditions", true), set("nodeStatus.events", true))
}

// TestRightsAreDocumented: all that the chart can give is what docs/kubernetes.md lists.
// internal/kubelettest tries the chart's rights on a real API server.
func TestRightsAreDocumented(t *testing.T) {
	documented := documentedObjects(t, "docs/kubernetes.md")
	equal(t, "rights", texts(rightsOf(t, render(t, allRights(t)))), texts(rightsOf(t, documented)))
}

// documentedObjects returns the documents of all YAML blocks of a page.
func documentedObjects(t *testing.T, page string) []object {
	t.Helper()
	var documented []object

	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readFile(t, page), -1) {
		objects, err := decodeObjects(block[1])
		if err != nil {
			t.Fatalf("%s: %v", page, err)
		}

		documented = append(documented, objects...)
	}

	return documented
}

// TestRightsAreUsed: the resources of the rights are those that the paths of requests in the code
// name.
func TestRightsAreUsed(t *testing.T) {
	granted := map[string]bool{}

	for r := range rightsOf(t, render(t, allRights(t))) {
		resource, _, _ := strings.Cut(r.resource, "/") // the path of a part has the object's name before it
		granted[resource] = true
	}

	requested := map[string]bool{}

	methods := map[string]bool{}
	for _, dir := range []string{"internal/podmeta", "internal/control/cluster", "internal/health/nodestatus"} {
		readRequests(t, filepath.Join(root, dir), requested, methods)
	}

	for word := range granted {
		if !requested[word] {
			t.Errorf("the right for %s is used by no request", word)
		}
	}

	for word := range requested {
		if !granted[word] {
			t.Errorf("a request names %s, and no right does", word)
		}
	}

	equal(t, "methods", methods, map[string]bool{"MethodDelete": true, "MethodGet": true, "MethodPatch": true, "MethodPost": true})
}

// readRequests adds the resources that string literals name as a part of a path, or as the names of
// InstaSlice's resources, and the methods of package http.
func readRequests(t *testing.T, dir string, resources, methods map[string]bool) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}

	resource := regexp.MustCompile(`^(/api/v1/|/apis/[a-z0-9.]+/v1/|/)?([a-z]{4,})/?$`)
	kind := regexp.MustCompile(`^[a-z]*(slices|accelerators)$`)

	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}

		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}

		ast.Inspect(parsed, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "http" && strings.HasPrefix(n.Sel.Name, "Method") {
					methods[n.Sel.Name] = true
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if n.Kind != token.STRING || err != nil {
					return true
				}

				found := resource.FindStringSubmatch(text)
				switch {
				case kind.MatchString(text):
					resources[text] = true
				case found != nil && strings.HasPrefix(text, "/") && found[2] != "apis" && found[2] != "namespaces":
					resources[found[2]] = true
				}
			}

			return true
		})
	}
}
