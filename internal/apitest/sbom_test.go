package apitest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// TestSBOM: the SBOM of both programs is valid by the schema that CycloneDX publishes for its
// version, with SPDX's list of license identifiers, and what is no valid document is refused by it.
func TestSBOM(t *testing.T) {
	sbom := filepath.Join(t.TempDir(), "sbom.cdx.json")

	programs, err := testbuild.Programs()
	if err != nil {
		t.Fatal(err)
	}

	goTool(t, "run", "./cmd/sbom", "-version=1.2.3", "-sbom="+sbom, "-licenses="+sbom+".licenses",
		filepath.Join(programs, "mig-exporter"), filepath.Join(programs, "migctl"))

	text, err := os.ReadFile(sbom)
	if err != nil {
		t.Fatal(err)
	}

	var document cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&document); err != nil {
		t.Fatal(err)
	}

	schema := cyclonedxSchema(t, document.SpecVersion.String())

	validate := func(text string) error {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}

		return schema.Validate(value)
	}
	if err := validate(string(text)); err != nil {
		t.Error(err)
	}

	if len(*document.Components) < 20 {
		t.Errorf("the SBOM has %d components", len(*document.Components))
	}

	for right, wrong := range map[string]string{
		`"id": "Apache-2.0"`: `"id": "Apache 2"`, `"type": "library"`: `"type": "module"`, `"alg": "SHA-256"`: `"alg": "h1"`,
	} {
		broken := strings.Replace(string(text), right, wrong, 1)
		if broken == string(text) || validate(broken) == nil {
			t.Errorf("%s instead of %s is not refused", wrong, right)
		}
	}
}

// cyclonedxSchema returns the JSON schema of a version of CycloneDX, which its Go module has beside
// its code.
func cyclonedxSchema(t *testing.T, version string) *jsonschema.Schema {
	t.Helper()
	module := goTool(t, "-C", "internal/apitest", "list", "-m", "-f={{.Dir}}", "github.com/CycloneDX/cyclonedx-go")
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	var id string
	// The file of JSON signatures is not named as its id is.
	for _, name := range []string{"spdx.schema.json", "jsf-0.82.schemax.json", "bom-" + version + ".schema.json"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(module), "schema", name))
		if err != nil {
			t.Fatal(err)
		}

		schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}

		id = schema.(map[string]any)["$id"].(string)
		if err := compiler.AddResource(id, schema); err != nil {
			t.Fatal(err)
		}
	}

	schema, err := compiler.Compile(id)
	if err != nil {
		t.Fatal(err)
	}

	return schema
}

// goTool runs the go command at the root of the repository and returns its output.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.Command("go", args...)
	command.Dir = filepath.Join("..", "..")
	var errOut bytes.Buffer
	command.Stderr = &errOut

	out, err := command.Output()
	if err != nil {
		t.Fatalf("go %q: %v\n%s", args, err, errOut.String())
	}

	return string(out)
}
