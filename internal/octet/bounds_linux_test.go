package octet

import (
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	const rows, block, blocks, count = 4, 64, 2, 9
	n := os.Getpagesize()
	codes, scales := kerneltest.Alone[uint8](t, n), kerneltest.Alone[float32](t, n)
	x, y, a := kerneltest.Alone[float32](t, n), kerneltest.Alone[float32](t, n), kerneltest.Alone[float32](t, n)
	f16, bf16 := kerneltest.Alone[snug.Float16](t, n), kerneltest.Alone[snug.BFloat16](t, n)
	end := func(v []float32, k int) []float32 { return v[len(v)-k:] }
	for _, f := range formats {
		copy(codes, random(1, n, f))
		for _, k := range Registry.All() {
			for _, cut := range kerneltest.Cuts(n) {
				lo, hi := cut[0], cut[1]
				s := end(scales, cpu.Chunks(hi-lo, block))
				k.DecodeF32(x[lo:hi], codes[lo:hi], s, block, f)
				k.DecodeF16(f16[lo:hi], codes[lo:hi], s, block, f)
				k.DecodeBF16(bf16[lo:hi], codes[lo:hi], s, block, f)
			}
			for _, from := range []int{0, n - count*block*blocks} {
				c := codes[from : from+count*block*blocks]
				k.Dot(end(y, rows), end(x, rows*block*blocks), block*blocks, c[len(c)-block*blocks:], f)
				k.Axpy(end(y, rows*block*blocks), end(a, count*rows), rows, c, block*blocks, f)
			}
		}
	}
}
