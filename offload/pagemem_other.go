//go:build (!darwin && !linux) || race

package offload

const mapsMemory = false // not of Go's heap

// mapMemory returns n bytes of Go's heap, the only memory that the race detector knows.
func mapMemory(n int) []byte { return heapMemory(n, directAlignment) }

// unmapMemory leaves mem to the collector.
func unmapMemory(mem []byte) {}
