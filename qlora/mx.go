package qlora

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/quant8"
)

// This file has MXFP4. Its scales are bytes, the powers of two from 2^-127 to 2^127: codes of double quantization,
// whose map has these powers, and whose own absmax are 1.

const (
	mxBlock = 32  // elements of a block
	mxBias  = 127 // of the exponents
	mxNaN   = 255 // the scale that is no number
	mxTop   = 2   // the exponent of the largest value, 6
)

// mxfp4 are the values of E2M1, by code; those with an even last bit take ties.
var mxfp4 = nibble.NewEvenFormat(e2m1, func(v float32) bool {
	v = float32(math.Abs(float64(v)))
	return v == 0 || v == 1 || v == 2 || v == 4
})

var e2m1 = func() (v [16]float32) {
	for c, x := range []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
		v[c], v[c+8] = x, float32(math.Copysign(float64(x), -1))
	}
	return v
}()

// powers are the scales, by code.
var powers = func() *quant8.Map {
	m := new(quant8.Map)
	for c := range mxNaN {
		m[c] = float32(math.Ldexp(1, c-mxBias))
	}
	return m
}()

// setMX gives w what is not in the codes and the bytes of the scales.
func (w *Weight) setMX(dev *snug.Device) (err error) {
	ones := make([]float32, Blocks(w.n/mxBlock, nestedBlock))
	for i := range ones {
		ones[i] = 1
	}
	w.m = powers
	w.nested, err = put(dev, ones)
	return err
}

// fillMX makes the memory of src. It works on the host.
func (w *Weight) fillMX(dev *snug.Device, src snug.View) error {
	if n := len(w.shape); n == 0 || w.shape[n-1]%mxBlock != 0 {
		return fmt.Errorf("a weight of shape %v, want rows of a multiple of %d elements for %s: %w", w.shape, mxBlock, w.t, snug.ErrShape)
	}
	src, err := finiteSource(src)
	if err != nil {
		return err
	}
	a := mxArgs{src, make([]uint8, PackedBytes(w.n)), make([]uint8, w.n/mxBlock)}
	mxTask.Run(cpu.Chunks(w.n, grain), a)
	if w.packed, err = put(dev, a.packed); err != nil {
		return err
	}
	if w.codes, err = put(dev, a.scales); err != nil {
		return err
	}
	return w.setMX(dev)
}

// mxArgs are the blocks of a vector.
type mxArgs struct {
	src            snug.View
	packed, scales []uint8
}

var mxTask = cpu.NewTask(func(a *mxArgs, item int) {
	tile := tiles.Get(mxBlock)
	defer tiles.Put(tile)
	first, last := cpu.Chunk(a.src.Len(), grain, item)
	for lo := first; lo < last; lo += mxBlock {
		x := half.Floats(a.src, lo, (*tile)[:mxBlock])
		a.scales[lo/mxBlock] = encodeMX(a.packed[lo/2:(lo+mxBlock)/2], x)
	}
})

// encodeMX writes the codes of a block, and returns its scale.
func encodeMX(packed []uint8, x []float32) uint8 {
	_, exponent := math.Frexp(float64(blockq.Registry.Best().AbsMax(x))) // of a magnitude from 1/2 up to below 1
	scale := min(mxNaN-1, max(0, exponent-1-mxTop+mxBias))
	by := powers[scale]
	for i := range packed {
		packed[i] = mxfp4.Code(x[2*i], by)<<4 | mxfp4.Code(x[2*i+1], by)
	}
	return uint8(scale)
}
