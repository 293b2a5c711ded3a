package rounding

import (
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
)

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	n := 4 * os.Getpagesize()
	dst, src := kerneltest.Alone[snug.BFloat16](t, n), kerneltest.Alone[float32](t, n)
	gradients := []snug.View{
		snug.ViewOf(src), snug.ViewOf(kerneltest.Alone[snug.Float16](t, n)), snug.ViewOf(kerneltest.Alone[snug.BFloat16](t, n)),
	}
	d := Draws{Stream: philox.Stream{Seed: 1}}
	for _, k := range Registry.All() {
		for _, cut := range kerneltest.Cuts(n) {
			lo, hi := cut[0], cut[1]
			d.store(snug.ViewOf(dst), lo, src[lo:hi], k.BF16)
			d.store(snug.ViewOf(dst), lo, src[lo:hi], k.BF16Stream)
			for _, g := range gradients {
				d.accumulate(k, dst[lo:hi], g, lo, 1, 1)
			}
		}
	}
}
