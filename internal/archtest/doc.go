// Package archtest holds the rules of ARCHITECTURE.md by tests: who may import whom, what only package main may do, which
// package variables there may be, and how long files and functions may grow. It also follows the links of the documents. It has
// no code of its own.
package archtest
