//go:build race

package quant8

// raceEnabled: under the race detector sync.Pool drops memory at random.
const raceEnabled = true
