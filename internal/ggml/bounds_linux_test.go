package ggml

import (
	"os"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	const rows, count = 4, 3
	size := os.Getpagesize()
	memory, x, y := kerneltest.Alone[byte](t, size), kerneltest.Alone[float32](t, size), kerneltest.Alone[float32](t, size)
	y = y[size-rows:]
	for f := range Formats {
		n := count * f.Elements()
		blocks := random(f, count, false)
		for _, at := range []int{0, size - len(blocks)} {
			b := memory[at : at+len(blocks)]
			copy(b, blocks)
			for _, k := range Registry.All() {
				k.Decode[f](x[:n], b)
				k.Decode[f](x[size-n:], b)
				for r := 1; r <= rows && k.Dot[f] != nil; r++ {
					k.Dot[f](y[rows-r:], x[:r*n], n, b)
					k.Dot[f](y[rows-r:], x[size-r*n:], n, b)
					k.Axpy[f](x[:r*n], n, y[:r], b)
					k.Axpy[f](x[size-r*n:], n, y[rows-r:], b)
				}
			}
		}
	}
}
