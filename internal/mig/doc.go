// Package mig is the geometry of Multi-Instance GPUs: profile names, placements, capacity, and the
// table of known models. It is pure.
package mig
