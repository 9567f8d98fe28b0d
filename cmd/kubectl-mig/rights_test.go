package main

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// The pages with the rights that people need.
const (
	commandsPage = "kubectl-mig.md"
	runsPage     = "kubectl-mig-runs.md"
)

// rights are what a person may do, "<verb> <resource>", with the name of the account of tokens.
type rights map[string]bool

func (r rights) add(rules []rbacv1.PolicyRule) {
	for i := range rules {
		for _, verb := range rules[i].Verbs {
			for _, resource := range rules[i].Resources {
				right := verb + " " + resource
				if resource == "serviceaccounts/token" {
					right += " " + strings.Join(rules[i].ResourceNames, " ")
				}

				r[right] = true
			}
		}
	}
}

// list returns the rights but for one: a websocket takes get of a port-forward alone before Kubernetes
// 1.35, which is what the fake API server does.
func (r rights) list() []string {
	return slices.Sorted(maps.Keys(maps.Collect(func(yield func(string, bool) bool) {
		for right := range r {
			if right != "create pods/portforward" && !yield(right, true) {
				return
			}
		}
	})))
}

func readPage(t *testing.T, page string) []byte {
	t.Helper()

	data, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}

	return data
}

// documentedRoles returns the rules of the Roles and ClusterRoles on the pages, "<kind> <name>".
func documentedRoles(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()

	roles := map[string][]rbacv1.PolicyRule{}

	for _, page := range []string{commandsPage, runsPage} {
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readPage(t, page), -1) {
			decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(block[1]), 4096)

			for {
				var role rbacv1.ClusterRole // a Role has the same fields

				err := decoder.Decode(&role)
				if errors.Is(err, io.EOF) {
					break
				}

				if err != nil {
					t.Fatalf("%s: %v", page, err)
				}

				if strings.HasSuffix(role.Kind, "Role") {
					roles[role.Kind+" "+role.Name] = role.Rules
				}
			}
		}
	}

	return roles
}

// usedRights returns the rights that were used since the last call.
func (s *fakeAPI) usedRights() []string {
	used := rights{}

	for _, right := range s.requests() {
		if right != "create serviceaccounts/token" {
			used[right] = true
		}
	}

	s.set(func() {
		for _, account := range s.issued {
			used["create serviceaccounts/token "+account] = true
		}

		clear(s.issued)
	})

	return used.list()
}

// TestDocumentedRights: each command uses the rights of the Roles that the docs name for it, and no
// others.
func TestDocumentedRights(t *testing.T) {
	arguments := map[string]string{
		"get": "", "top": "--once", "profiles": "", "operations": "", "layouts": "", "recommend": "",
		"plan": "--gpus=0 --devices=none", "apply": "--gpus=0 --devices=none --yes", "rollback": "x --yes",
		"accept": "x --yes", "settled": "x --yes", "restore": "x --yes", "mode": "on 0 --yes", "confirm-free": "x --yes",
		"release": "0", "reacquire": "0",
	}

	roles := documentedRoles(t)
	quoted := regexp.MustCompile("`([^`]+)`")
	done := 0

	w := newWorld(t)
	for _, right := range []string{"mode", "force", "release"} {
		w.api.grants[defaultConfigMap+"-"+right] = []string{"get"}
	}

	for _, row := range regexp.MustCompile("(?m)^\\| (`.*) \\| (`.*`) \\| `-.*: get.*\\|$").FindAllSubmatch(readPage(t, commandsPage), -1) {
		granted := rights{}

		for _, name := range quoted.FindAllSubmatch(row[2], -1) {
			rules, ok := roles["Role "+string(name[1])]
			granted.add(rules)

			if !ok { // it has the form of those that are there in full
				granted["create serviceaccounts/token "+string(name[1])] = true
			}
		}

		for _, name := range quoted.FindAllSubmatch(row[1], -1) {
			command := string(name[1])

			line, ok := arguments[command]
			if !ok {
				t.Errorf("the docs have a command %q, for which there is no test", command)
				continue
			}

			// What the exporter answers does not matter: what is asked of the API server does.
			w.run(t, append([]string{command, "gpu-01"}, strings.Fields(line)...)...)
			cmptest.Equal(t, "rights of "+command, w.api.usedRights(), granted.list())
			done++
		}
	}

	cmptest.Equal(t, "commands with documented Roles", done, len(arguments))
}

// expectRunRights: plan, apply, a resumed run, a rollback and runs have used the rights of the Roles
// that the docs name for them, and no others.
func (f *realFleet) expectRunRights() {
	f.t.Helper()

	granted := rights{}
	roles := documentedRoles(f.t)

	for _, name := range []string{"", "-get", "-plan", "-apply", "-runs"} {
		granted.add(roles["Role "+defaultConfigMap+name])
	}

	granted.add(roles["ClusterRole "+defaultConfigMap+"-runs"])
	cmptest.Equal(f.t, "rights of a run", f.api.usedRights(), granted.list())
}
