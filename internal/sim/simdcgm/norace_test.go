//go:build !race

package simdcgm

const raceEnabled = false
