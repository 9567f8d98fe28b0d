// Package crash has no code but its tests: they kill partition control at every point of an
// operation, on the simulated driver's C library, and look at what the next start makes of it.
package crash
