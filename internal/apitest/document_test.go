package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

const base = "file:///openapi.json"

// document is the OpenAPI file with its schemas, which are JSON Schema 2020-12 in OpenAPI 3.1.
type document struct {
	root     map[string]any
	compiler *jsonschema.Compiler

	mu   sync.Mutex
	seen map[string]bool // "GET /api/v1/node 200"
}

func load(t *testing.T) *document {
	t.Helper()

	var tree any
	if err := yaml.Unmarshal(api.OpenAPI(), &tree); err != nil {
		t.Fatal(err)
	}

	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}

	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}

	d := &document{root: root.(map[string]any), compiler: jsonschema.NewCompiler(), seen: make(map[string]bool)}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()

	if err := d.compiler.AddResource(base, root); err != nil {
		t.Fatal(err)
	}

	return d
}

// TestNoCommaEndsADescription: what follows a comma of a description that is not quoted is a key without a
// value, which validators of OpenAPI refuse.
func TestNoCommaEndsADescription(t *testing.T) {
	var file yaml.Node
	if err := yaml.Unmarshal(api.OpenAPI(), &file); err != nil {
		t.Fatal(err)
	}

	var visit func(n *yaml.Node)

	visit = func(n *yaml.Node) {
		for i, part := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 1 && part.Tag == "!!null" {
				t.Errorf("line %d: %q has no value", part.Line, n.Content[i-1].Value)
			}

			visit(part)
		}
	}

	visit(&file)
}

// at follows a JSON pointer, and references on its way; it returns where it arrived, too.
func (d *document) at(pointer string) (any, string) {
	var here any = d.root
	done := "#"

	for _, element := range strings.Split(strings.TrimPrefix(strings.TrimPrefix(pointer, "#"), "/"), "/") {
		object, ok := here.(map[string]any)
		if !ok {
			return nil, ""
		}

		here = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(element)]
		done += "/" + element

		if object, ok := here.(map[string]any); ok {
			if to, ok := object["$ref"].(string); ok && len(object) == 1 {
				here, done = d.at(to)
			}
		}
	}

	return here, done
}

func escape(element string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(element) }

// validate holds a JSON text against the schema at a pointer.
func (d *document) validate(pointer string, text []byte) error {
	_, where := d.at(pointer)
	if where == "" {
		return fmt.Errorf("there is no schema at %s", pointer)
	}

	schema, err := d.compiler.Compile(base + "#" + (&url.URL{Path: where[1:]}).EscapedPath())
	if err != nil {
		return fmt.Errorf("schema %s: %w", pointer, err)
	}

	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}

	return schema.Validate(value)
}

// operation finds the path and the method of a request in the document.
func (d *document) operation(r *http.Request) (pointer, name string) {
	paths := d.root["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if matches(strings.Split(path, "/"), strings.Split(r.URL.Path, "/")) {
			pointer = "#/paths/" + escape(path) + "/" + strings.ToLower(r.Method)
			if found, _ := d.at(pointer); found != nil {
				return pointer, r.Method + " " + path
			}
		}
	}

	return "", ""
}

func matches(want, have []string) bool {
	if len(want) != len(have) {
		return false
	}

	for i, element := range want {
		if !strings.HasPrefix(element, "{") && element != have[i] {
			return false
		}
	}

	return true
}

// checkRequest reports whether a request's body is as the document has it.
func (d *document) checkRequest(r *http.Request, body []byte) error {
	pointer, name := d.operation(r)
	if pointer == "" {
		return fmt.Errorf("%s %s is not in the document", r.Method, r.URL.Path)
	}

	description, _ := d.at(pointer + "/requestBody")
	switch {
	case description == nil && len(body) > 0:
		return fmt.Errorf("%s: there is no body in the document", name)
	case description == nil:
		return nil
	case len(body) == 0 && description.(map[string]any)["required"] == true:
		return fmt.Errorf("%s: the body is missing", name)
	case len(body) == 0:
		return nil
	}

	return d.validate(pointer+"/requestBody/content/application~1json/schema", body)
}

// checkResponse reports whether a response is as the document has it: status, media type, headers
// and body.
func (d *document) checkResponse(response *http.Response, body []byte) error {
	pointer, name := d.operation(response.Request)
	if pointer == "" {
		pointer = "#/paths/~1api~1v1~1node/get"
		name = "unknown" // the problem is the same everywhere
	}

	status := strconv.Itoa(response.StatusCode)
	if found, _ := d.at(pointer + "/responses/" + status); found == nil {
		if response.StatusCode < 400 {
			return fmt.Errorf("%s: status %s is not in the document", name, status)
		}

		status = "default"
	}

	d.mu.Lock()
	d.seen[name+" "+status] = true
	d.mu.Unlock()

	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		return err
	}

	at := pointer + "/responses/" + status + "/content/" + escape(media)
	if found, _ := d.at(at); found == nil {
		return fmt.Errorf("%s %s: media type %s is not in the document", name, status, media)
	}

	headers, _ := d.at(pointer + "/responses/" + status + "/headers")
	if object, ok := headers.(map[string]any); ok && object["Location"] != nil && response.Header.Get("Location") == "" {
		return fmt.Errorf("%s %s: no Location", name, status)
	}

	switch media {
	case "application/json", "application/problem+json":
		return d.validate(at+"/schema", body)
	case "text/event-stream":
		return d.checkEvents(at+"/schema", body)
	}

	return nil
}

func (d *document) checkEvents(schema string, body []byte) error {
	for block := range strings.SplitSeq(strings.TrimSpace(string(body)), "\n\n") {
		if strings.HasPrefix(block, ":") {
			continue
		}

		_, data, ok := strings.Cut(block, "\ndata: ")
		if !ok {
			return fmt.Errorf("event %q has no data", block)
		}

		if err := d.validate(schema, []byte(data)); err != nil {
			return err
		}
	}

	return nil
}

// TestExamples: the examples of the document are as its schemas say.
func TestExamples(t *testing.T) {
	d := load(t)
	checked := 0
	var walk func(pointer string, here any)
	walk = func(pointer string, here any) {
		object, ok := here.(map[string]any)
		if !ok {
			return
		}

		if examples, ok := object["examples"].(map[string]any); ok && object["schema"] != nil {
			for name, example := range examples {
				text, err := json.Marshal(example.(map[string]any)["value"])
				if err != nil {
					t.Fatal(err)
				}

				if err := d.validate(pointer+"/schema", text); err != nil {
					t.Errorf("%s, example %s: %v", pointer, name, err)
				}

				checked++
			}
		}

		for key, below := range object {
			walk(pointer+"/"+escape(key), below)
		}
	}
	walk("#", d.root)

	if checked < 8 {
		t.Errorf("only %d examples", checked)
	}
}

// TestReferencesAndSchemas: each schema compiles, and each reference leads somewhere.
func TestReferencesAndSchemas(t *testing.T) {
	d := load(t)
	for name := range d.root["components"].(map[string]any)["schemas"].(map[string]any) {
		if _, err := d.compiler.Compile(base + "#/components/schemas/" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	var walk func(here any)
	walk = func(here any) {
		switch here := here.(type) {
		case map[string]any:
			if to, ok := here["$ref"].(string); ok {
				if found, _ := d.at(to); found == nil {
					t.Errorf("%s leads nowhere", to)
				}
			}

			for _, below := range here {
				walk(below)
			}
		case []any:
			for _, below := range here {
				walk(below)
			}
		}
	}
	walk(d.root)
}

func readAll(t *testing.T, r io.ReadCloser) []byte {
	t.Helper()
	defer r.Close()

	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}

	return body
}
