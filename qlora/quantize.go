package qlora

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/sweep"
	"github.com/snug-ml/snug/quant8"
)

// The block sizes that this package takes are the powers of two from MinBlock to
// MaxBlock elements.
const (
	MinBlock = 32
	MaxBlock = 4096
)

// Blocks returns how many blocks of block elements cover n elements, the
// length of absmax. It is 0 when n or block is not positive.
func Blocks(n, block int) int { return quant8.Blocks(n, block) }

// PackedBytes returns the bytes of n codes, two in each. It is 0 when n is not
// positive.
func PackedBytes(n int) int { return quant8.Blocks(n, 2) }

// Quantize writes the codes of src and the absmax of its blocks. packed has
// [PackedBytes](len(src)) elements of uint8, and absmax has [Blocks](len(src), block)
// elements of float32. block is a power of two from [MinBlock] to [MaxBlock]. No operands
// overlap. A block of zeros has absmax 0 and the code of 0. Quantize needs 16 KiB a worker.
//
// On the CPU a NaN or infinity in src is an error that wraps [snug.ErrNonFinite] and names
// its index, and nothing is written. Other devices do not look ahead: a block with such an
// element gets absmax NaN and the code of 0, so every element of it decodes to NaN.
//
// Errors wrap [snug.ErrConfig] (format, block), [snug.ErrDType],
// [snug.ErrShape], [snug.ErrDevice] or [snug.ErrNonFinite].
func Quantize[C snug.Vector8, A snug.Vector32, V snug.Vector](packed C, absmax A, src V, t Type, block int) error {
	return quantize(snug.ViewOf8(packed), snug.ViewOf(absmax), snug.ViewOf(src), t, block)
}

// Dequantize writes value[code]·absmax for every code, computed in float32 and rounded to
// the type of dst. The lengths are the same as in [Quantize]. No operands overlap. It needs
// no memory.
//
// Errors wrap [snug.ErrConfig] (format, block), [snug.ErrDType],
// [snug.ErrShape] or [snug.ErrDevice], and nothing is written then.
func Dequantize[V snug.Vector, C snug.Vector8, A snug.Vector32](dst V, packed C, absmax A, t Type, block int) error {
	return dequantize(snug.ViewOf(dst), snug.ViewOf8(packed), snug.ViewOf(absmax), t, block)
}

func quantize(packed, absmax, src snug.View, t Type, block int) error {
	dev, err := check("quantize", "src", src, packed, absmax, t, block)
	if err != nil || src.Len() == 0 {
		return err
	}
	j := quantizeJob{packed: packed, absmax: absmax, src: src, f: t.nibbles(), block: block}
	if dev.IsCPU() {
		if i := sweep.First(src, 1, sweep.Infinity); i >= 0 {
			return fmt.Errorf("qlora: quantize: src[%d] is NaN or infinite: %w", i, snug.ErrNonFinite)
		}
	}
	return device.Run(dev, j)
}

func dequantize(dst, packed, absmax snug.View, t Type, block int) error {
	dev, err := check("dequantize", "dst", dst, packed, absmax, t, block)
	if err != nil || dst.Len() == 0 {
		return err
	}
	return device.Run(dev, dequantizeJob{dst: dst, packed: packed, absmax: absmax, f: t.nibbles(), block: block})
}

// check checks the operands of Quantize and Dequantize: x is the vector of floats, and name
// its name in errors.
func check(op, name string, x, packed, absmax snug.View, t Type, block int) (*snug.Device, error) {
	if err := checkFormat(t, block); err != nil {
		return nil, fmt.Errorf("qlora: %s: %w", op, err)
	}
	switch {
	case !x.DType().IsFloat():
		return nil, fmt.Errorf("qlora: %s: %s holds %s, want f32, f16 or bf16: %w", op, name, x.DType(), snug.ErrDType)
	case packed.DType() != snug.U8:
		return nil, fmt.Errorf("qlora: %s: packed holds %s, want u8: %w", op, packed.DType(), snug.ErrDType)
	case absmax.DType() != snug.F32:
		return nil, fmt.Errorf("qlora: %s: absmax holds %s, want f32: %w", op, absmax.DType(), snug.ErrDType)
	case packed.Len() != PackedBytes(x.Len()):
		return nil, fmt.Errorf("qlora: %s: packed has %d bytes, want %d for %d elements of %s: %w",
			op, packed.Len(), PackedBytes(x.Len()), x.Len(), name, snug.ErrShape)
	case absmax.Len() != Blocks(x.Len(), block):
		return nil, fmt.Errorf("qlora: %s: absmax has %d elements, want %d for %d elements in blocks of %d: %w",
			op, absmax.Len(), Blocks(x.Len(), block), x.Len(), block, snug.ErrShape)
	}
	dev, err := snug.CommonDevice(packed, absmax, x)
	return dev, fault.Of(err, "qlora", op)
}

func checkFormat(t Type, block int) error {
	if t != NF4 && t != FP4 {
		return fmt.Errorf("format %d, want NF4 or FP4: %w", t, snug.ErrConfig)
	}
	if block < MinBlock || block > MaxBlock || block&(block-1) != 0 {
		return fmt.Errorf("block of %d elements, want a power of two from %d to %d: %w", block, MinBlock, MaxBlock, snug.ErrConfig)
	}
	return nil
}
