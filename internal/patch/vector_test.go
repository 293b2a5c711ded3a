//go:build !linux

package patch

import "testing"

// vector returns a vector.
func vector[T any](t *testing.T, n int) []T { return make([]T, n) }
