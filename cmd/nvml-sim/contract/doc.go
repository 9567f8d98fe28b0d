// Package contract holds the tests of nvml-sim as its clients meet it: the built library, loaded by
// go-nvml and by the program. They are separate from the library's code because a test of that
// package would be linked with its C functions, and go-nvml would then call those instead of the
// ones it loads.
package contract
