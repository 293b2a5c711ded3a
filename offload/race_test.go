//go:build race

package offload

const underRace = true
