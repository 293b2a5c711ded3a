// Package saturate adds and multiplies int64 without overflow: the result is the nearest int64.
package saturate

import "math"

// Add returns a+b.
func Add(a, b int64) int64 {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}

// Mul returns a·b.
func Mul(a, b int64) int64 {
	p := a * b
	switch {
	case a == 0 || b == 0 || p/b == a && !(b == -1 && a == math.MinInt64):
		return p
	case (a < 0) == (b < 0):
		return math.MaxInt64
	default:
		return math.MinInt64
	}
}
