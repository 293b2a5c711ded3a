//go:build race

package fused

// raceEnabled: under the race detector sync.Pool drops memory at random.
const raceEnabled = true
