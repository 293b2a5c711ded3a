//go:build !race

package kerneltest

// Race reports whether the race detector is on, whose shadow memory counts as the process's.
const Race = false
