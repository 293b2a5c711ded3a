package qlora

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/quant8"
)

// nestedBlock is the block of double quantization, in absmax.
const nestedBlock = 256

// signed is the map of double quantization.
var signed = quant8.DynamicMap(true)

// DoubleQuantize quantizes the absmax of [Quantize] to 8 bits. It quantizes
// absmax[i] - offset by [quant8.DynamicMap](true) in blocks of 256. It writes the codes to
// codes, which has the length of absmax, and the absmax of those blocks to nested, which
// has [Blocks](len(absmax), 256) elements. No operands overlap.
//
// It returns the offset: the mean of absmax, summed in float64 from the first to the last
// and rounded to float32. torch sums in float32 in another order, so its offset can differ
// in the last bits.
//
// Operands lie in host memory. The call needs 16 KiB more of it. Errors, with nothing written:
// [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice] for operands that are not on the CPU,
// and [snug.ErrNonFinite], which names the first absmax that is NaN, infinite or negative.
func DoubleQuantize[C snug.Vector8, N, A snug.Vector32](codes C, nested N, absmax A) (offset float32, err error) {
	c, n, a := snug.ViewOf8(codes), snug.ViewOf(nested), snug.ViewOf(absmax)
	if err := checkDouble(c, n, a); err != nil {
		return 0, fmt.Errorf("qlora: double quantize: %w", err)
	}
	if offset, err = mean(a.Float32s()); err != nil {
		return 0, fmt.Errorf("qlora: double quantize: %w", err)
	}
	return offset, nest(snug.Host[uint8](c), n.Float32s(), a.Float32s(), offset)
}

// DoubleDequantize restores the absmax that [DoubleQuantize] was given, to 8 bits: it
// writes map[code]·nested + offset to absmax, with the product and the sum rounded to
// float32. The lengths are the same as in DoubleQuantize. All operands lie in host memory,
// and it needs no other memory.
// Errors, with nothing written: [snug.ErrDType], [snug.ErrShape] or
// [snug.ErrDevice].
func DoubleDequantize[A snug.Vector32, C snug.Vector8, N snug.Vector32](absmax A, codes C, nested N, offset float32) error {
	c, n, a := snug.ViewOf8(codes), snug.ViewOf(nested), snug.ViewOf(absmax)
	if err := checkDouble(c, n, a); err != nil {
		return fmt.Errorf("qlora: double dequantize: %w", err)
	}
	unnest(a.Float32s(), snug.Host[uint8](c), n.Float32s(), offset, signed, 0)
	return nil
}

func checkDouble(codes, nested, absmax snug.View) error {
	switch {
	case absmax.DType() != snug.F32:
		return fmt.Errorf("absmax holds %s, want f32: %w", absmax.DType(), snug.ErrDType)
	case codes.DType() != snug.U8:
		return fmt.Errorf("codes hold %s, want u8: %w", codes.DType(), snug.ErrDType)
	case nested.DType() != snug.F32:
		return fmt.Errorf("nested holds %s, want f32: %w", nested.DType(), snug.ErrDType)
	case codes.Len() != absmax.Len():
		return fmt.Errorf("%d codes for %d absmax: %w", codes.Len(), absmax.Len(), snug.ErrShape)
	case nested.Len() != Blocks(absmax.Len(), nestedBlock):
		return fmt.Errorf("nested has %d elements, want %d for %d absmax in blocks of %d: %w",
			nested.Len(), Blocks(absmax.Len(), nestedBlock), absmax.Len(), nestedBlock, snug.ErrShape)
	}
	dev, err := snug.CommonDevice(codes, nested, absmax)
	if err == nil && !dev.IsCPU() {
		err = fmt.Errorf("operands on %s, want the cpu: %w", dev, snug.ErrDevice)
	}
	return err
}

// mean returns the mean of x, 0 if it is empty.
func mean(x []float32) (float32, error) {
	sum := 0.0
	for i, v := range x {
		if !(v >= 0 && v <= math.MaxFloat32) {
			return 0, fmt.Errorf("absmax[%d] is %g, want a finite number of 0 or more: %w", i, v, snug.ErrNonFinite)
		}
		sum += float64(v)
	}
	return float32(sum / float64(max(len(x), 1))), nil
}

// nest writes the codes of absmax - offset, a tile of whole blocks at a time.
func nest(codes []uint8, nested, absmax []float32, offset float32) error {
	tile := tiles.Get(MaxBlock)
	defer tiles.Put(tile)
	for i := range cpu.Chunks(len(absmax), MaxBlock) {
		lo, hi := cpu.Chunk(len(absmax), MaxBlock, i)
		x := (*tile)[:hi-lo]
		for k, a := range absmax[lo:hi] {
			x[k] = a - offset
		}
		if err := quant8.Quantize(codes[lo:hi], nested[lo/nestedBlock:Blocks(hi, nestedBlock)], x, signed, nestedBlock); err != nil {
			return fmt.Errorf("qlora: double quantize: %w", err)
		}
	}
	return nil
}
