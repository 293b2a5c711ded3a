package patch

import (
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// vector returns a vector that ends where no memory follows.
func vector[T any](t *testing.T, n int) []T {
	v := kerneltest.Alone[T](t, (n+16383)/16384*16384+16384)
	return v[len(v)-n:]
}
