package optim

import (
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	n := 4 * os.Getpagesize()
	p, g := kerneltest.Alone[float32](t, n), kerneltest.Alone[float32](t, n)
	var all [MaxStates][]float32
	for i := range all {
		all[i] = kerneltest.Alone[float32](t, n)
	}
	for _, k := range Registry.All() {
		for rule := range rules {
			h := hyperOf(rule)
			for _, h.Coupled = range []bool{false, true} {
				for _, h.WeightDecay = range []float64{0, 0.1} {
					for _, cut := range kerneltest.Cuts(n) {
						var s [MaxStates][]float32
						for i := range rule.Signed() {
							s[i] = all[i][cut[0]:cut[1]]
						}
						k.Update(h.Coef(), p[cut[0]:cut[1]], g[cut[0]:cut[1]], s)
					}
				}
			}
		}
	}
}

// Nor with states in 8-bit blocks.
func TestStaysWithinOperands8(t *testing.T) {
	n := 4 * os.Getpagesize()
	const block = 256
	var codes [2][]uint8
	var absmax [2][]float32
	for i := range codes {
		codes[i], absmax[i] = kerneltest.Alone[uint8](t, n), kerneltest.Alone[float32](t, n)
	}
	f32, f16, bf16 := kerneltest.Alone[float32](t, 2*n), kerneltest.Alone[snug.Float16](t, 2*n), kerneltest.Alone[snug.BFloat16](t, 2*n)
	c, scratch := hyperOf(Adam).Coef(), make([]float32, Scratch(block))
	for _, k := range Registry.All() {
		if k.Adam8 == nil {
			continue
		}
		for _, o := range []Operands{
			{P: snug.ViewOf(f32[:n]), G: snug.ViewOf(f32[n:])},
			{P: snug.ViewOf(f16[:n]), G: snug.ViewOf(f16[n:])},
			{P: snug.ViewOf(bf16[:n]), G: snug.ViewOf(bf16[n:])},
			{P: snug.ViewOf(f32[n:]), G: snug.ViewOf(f32[:n])},
			{P: snug.ViewOf(f16[n:]), G: snug.ViewOf(f16[:n])},
			{P: snug.ViewOf(bf16[n:]), G: snug.ViewOf(bf16[:n])},
		} {
			for _, cut := range [][2]int{{0, n}, {block, n}, {0, n - 1}, {0, 127}, {n - 2*block, n}, {n - block, n - 3}} {
				lo, hi := cut[0], cut[1]
				var s [2]State8
				for i := range s {
					s[i] = State8{codes[i][lo:hi], absmax[i][n-(hi-lo+block-1)/block:], adamEncoders[i]}
				}
				k.Adam8(c.Constants, o, lo, hi, s[0], s[1], block, scratch)
			}
		}
	}
}
