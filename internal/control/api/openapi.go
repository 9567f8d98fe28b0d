package api

import _ "embed"

//go:embed openapi.yaml
var openAPI []byte

// OpenAPI is the description of the HTTP API, in YAML. It must not be modified.
func OpenAPI() []byte { return openAPI }
