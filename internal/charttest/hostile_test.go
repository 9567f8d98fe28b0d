package charttest

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
)

// harmless are texts that the schema accepts for one value or another. All of them have a part that
// is replaced.
func harmless() []string {
	return []string{replaced, "/" + replaced, replaced + ":5555", "--" + replaced, "vendor/class=" + replaced,
		"vendor/" + replaced}
}

const replaced = "qqq"

// hostile are texts that mean something else to YAML than to the reader, in a line or within
// braces.
func hostile() []string {
	return []string{"a: b", "a #b", "a, b}", `"a'\b`, "a\n- b: c", "* a", "{{ a }}", " a ", "a:", "@a", "123", "true", "null"}
}

// schemaNode is what a JSON schema says of a value, as far as the test needs it.
type schemaNode struct {
	Type                 any                   `json:"type"`
	Enum                 []any                 `json:"enum"`
	Pattern              string                `json:"pattern"`
	Properties           map[string]schemaNode `json:"properties"`
	Items                *schemaNode           `json:"items"`
	AdditionalProperties any                   `json:"additionalProperties"`
}

// textValues calls yield for each text that values can have: with its path, and with a function
// that makes values of it.
func (n schemaNode) textValues(path string, wrap func(any) any, yield func(path, pattern string, wrap func(any) any)) {
	switch {
	case n.Type == "string" && n.Enum == nil:
		yield(path, n.Pattern, wrap)
	case n.Items != nil:
		n.Items.textValues(path+"[]", func(v any) any { return wrap([]any{v}) }, yield)
	}

	if more, ok := n.AdditionalProperties.(map[string]any); ok && more["type"] == "string" {
		pattern, _ := more["pattern"].(string)
		yield(path+"{}", pattern, func(v any) any { return wrap(values{"key": v}) })
	}

	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		n.Properties[name].textValues(strings.TrimPrefix(path+"."+name, "."),
			func(v any) any { return wrap(values{name: v}) }, yield)
	}
}

// besides returns the values with which a text is rendered, by its path; for most of them there is
// nothing special.
func besides(t *testing.T) func(path string) values {
	t.Helper()
	base := merge(everything(t), set("dashboards.enabled", false), set("prometheusRule.enabled", false))
	special := map[string]values{
		"nameOverride":                  set("fullnameOverride", "name"),
		"driver.nriDevice":              set("runtimeClassName", ""),
		"driver.hostPath":               set("privileged", true),
		"kernelLog":                     set("kernelLog.enabled", true),
		"podMonitor.labels{}":           merge(set("serviceMonitor.enabled", false), set("podMonitor.enabled", true)),
		"prometheusRule":                set("prometheusRule.enabled", true),
		"dashboards":                    set("dashboards.enabled", true),
		"nodeSelector{}":                set("affinity", nil),
		"serviceAccount.name":           set("serviceAccount.create", false),
		"podMetadata.labels[]":          set("podMetadata.enabled", true),
		"control.kubectl.caCertificate": set("control.kubectl.serverName", "exporter"),
		"control.kubectl.serverName":    set("control.kubectl.caCertificate", "PEM"),
		"nodeLabels":                    set("nodeLabels.mode", "read"),
	}

	return func(path string) values {
		top, _, _ := strings.Cut(path, ".")
		return merge(base, special[top], special[path])
	}
}

// TestHostileTexts: a text of the values is rendered as it is, as a whole and as nothing but a
// text, or it is refused.
func TestHostileTexts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}

	var schema schemaNode
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}

	loaded := loadChart(t)
	beside := besides(t)
	count := 0
	schema.textValues("", func(v any) any { return v }, func(path, pattern string, wrap func(any) any) {
		count++
		with := func(text string) values { return merge(beside(path), wrap(text).(values)) }
		accepted := regexp.MustCompile(pattern)

		shape := slices.IndexFunc(harmless(), accepted.MatchString)
		if shape < 0 { // such as durations and digests
			if strings.ContainsAny(pattern, ".") || strings.Contains(pattern, "[^") {
				t.Errorf("%s: no text is harmless by %s", path, pattern)
			}

			return
		}

		want := decodeRendered(t, loaded, path, with(harmless()[shape]))
		if !strings.Contains(encode(t, want), replaced) {
			t.Errorf("%s: it is not rendered", path)
		}

		for _, evil := range hostile() {
			shaped := strings.Replace(harmless()[shape], replaced, evil, 1)
			for _, text := range slices.Compact([]string{evil, shaped}) {
				if !accepted.MatchString(text) { // Helm refuses it
					continue
				}

				got := decodeRendered(t, loaded, path, with(text))
				equal(t, path+": "+text, got, replaceTexts(want, harmless()[shape], text))
			}
		}
	})

	if count < 30 {
		t.Errorf("%d texts in the schema", count)
	}
}

// decodeRendered returns the objects of all templates.
func decodeRendered(t *testing.T, loaded *chart.Chart, path string, over values) []any {
	t.Helper()

	files, err := renderFiles(loaded, over)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}

	var all []any

	for _, file := range slices.Sorted(maps.Keys(files)) {
		objects, err := decodeObjects(files[file])
		if err != nil {
			t.Errorf("%s: %s: %v", path, file, err)
		}

		for _, o := range objects {
			all = append(all, o)
		}
	}

	return all
}

// replaceTexts replaces a text in all texts of a value.
func replaceTexts(value any, from, to string) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, from, to)
	case []any:
		changed := make([]any, len(v))
		for i := range v {
			changed[i] = replaceTexts(v[i], from, to)
		}

		return changed
	case map[string]any:
		changed := map[string]any{}
		for key := range v {
			changed[strings.ReplaceAll(key, from, to)] = replaceTexts(v[key], from, to)
		}

		return changed
	}

	return value
}
