//go:build !race

package offload

// underRace says that sync.Pool drops values at random, so that pools allocate.
const underRace = false
