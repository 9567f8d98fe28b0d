//go:build !race

package dcgmface

const raceEnabled = false
