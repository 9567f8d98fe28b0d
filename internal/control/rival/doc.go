// Package rival contains tests only. They let a second controller, a foreign partitioner that knows
// nothing of this program, change the GPUs of a simulated node between any two driver calls of an
// operation, and judge both from the outside.
package rival
