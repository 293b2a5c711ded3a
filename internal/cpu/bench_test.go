package cpu

import "testing"

func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(map[int]string{1: "1", 64: "64"}[n], func(b *testing.B) {
			a := sumArgs{make([]int, n), make([]int, n)}
			for b.Loop() {
				squares.Run(n, a)
			}
		})
	}
}
