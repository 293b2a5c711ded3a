// Package blockq is the arithmetic of blockwise 8-bit quantization: the largest magnitude, the nearest codes and the
// values of codes. It runs on the calling goroutine and allocates nothing. All tiers give the same bits.
package blockq

import "github.com/snug-ml/snug/internal/cpu"

// Kernels are the loops of one tier.
type Kernels struct {
	// AbsMax returns the largest magnitude of x, or NaN if not all of x is
	// finite.
	AbsMax func(x []float32) float32
	// Decode writes x[i] = m[codes[i]]·absmax[i/block] for the len(absmax)
	// blocks of x; the last block may be partial.
	Decode func(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int)
	// DecodeStream is Decode that keeps x out of the caches where it can.
	DecodeStream func(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int)
	// Encode writes the codes of x[i]/absmax. No quotient exceeds 1 in
	// magnitude. absmax is finite and not 0. The quotient of -0 counts as 0.
	Encode func(codes []uint8, x []float32, absmax float32, e *Encoder)
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, reference) }

// Encode writes the codes of one block x, whose largest magnitude is absmax. A
// block with a NaN or an infinity has absmax NaN and gets codes of 0.
func (e *Encoder) Encode(codes []uint8, x []float32, absmax float32) {
	if absmax == 0 || absmax != absmax {
		for i := range codes {
			codes[i] = e.zero
		}
		return
	}
	Registry.Best().Encode(codes, x, absmax, e)
}
