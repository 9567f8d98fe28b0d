// Package apitest holds documents against their published forms: the HTTP API of partition control
// against its OpenAPI document, and the SBOM of the programs against CycloneDX's schema. It is a
// module of its own, so that the validator is none of the product's dependencies.
package apitest
