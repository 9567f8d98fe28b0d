// Package archtest tests the rules of ARCHITECTURE.md that no linter knows: which packages stay
// free of go-nvml, that each package has import rules and is described, what only package main may
// do, which package variables there may be, how long files and functions may grow, and which words
// comments avoid. It also follows the links of the documents. It has no code of its own.
package archtest
