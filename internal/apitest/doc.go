// Package apitest holds the HTTP API of partition control against its OpenAPI document. It is a module of its own, so
// that the validator is none of the product's dependencies.
package apitest
