// Package quant8 has optimizers whose state takes 8 bits an element, and the blockwise
// quantization that they use.
//
//	opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.1}, quant8.Options{}) // 2.03 bytes a parameter
//	err = opt.Add("w", len(w))                                               // every parameter, once
//	for range steps {
//		opt.Advance(3e-4)                                         // begins a step at a learning rate
//		err = opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1) // every parameter
//	}
//
// A [Rule] is the equation of an optimizer with its hyperparameters. [Traits] say what it needs and what it is for, and
// OPTIMIZERS.md compares the rules. A rule that needs losses alone is for [NewZerothOrder]. All rules have the same
// [Options]: the width of the states, their location, and what a step does with gradients that are not finite.
//
// # State
//
// A state takes 1.02 bytes a parameter in 8 bits with blocks of 256, 0.53 bytes in 4 bits with
// blocks of 128, 2 bytes in bfloat16 and 4 in float32. AdamW has two states. Parameters below
// Options.MinSize, 4096 elements by default, keep states of 32 bits, 8 bytes a parameter for
// AdamW. The rows of an embedding have rare gradients: name it in Options.Keep32, unless it is
// tied to the output layer, whose gradient is dense, so that 8 bits work. Some rules keep less of a
// matrix, see their Traits. [Optimizer.WriteTo] saves the state,
// [Optimizer.WriteBitsAndBytes] and [Optimizer.ReadBitsAndBytes] exchange it with bitsandbytes,
// and [Optimizer.AddShard] and [Optimizer.ReadShards] split it among processes. With
// Options.Storage the state lies elsewhere, such as in the pages of package offload.
//
// # Blockwise quantization
//
// [Quantize] cuts a vector into blocks; the last may be partial. Each block stores absmax, the
// largest magnitude of its elements, in float32. Each element x is stored as the index of the
// entry of a [Map] of 256 values that is nearest to x/absmax:
//
//	absmax = max |x|
//	code   = argmin_c |map[c] - x/absmax|, the lower c of two as near
//	x'     = map[code]·absmax
//
// The quotient is one float32 division. Its distances to the entries are compared exactly, as
// real numbers, so that every machine gives the same codes. Dettmers 2016, "8-Bit
// Approximations for Parallelism in Deep Learning", arXiv:1511.04561; Dettmers et al. 2022,
// "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861.
//
// # Codes of bitsandbytes
//
// The layout is the same as in bitsandbytes, and so are the maps, up to 2 units in the last place of an entry:
// bitsandbytes makes its maps with torch.linspace, which rounds by processor. Its codes can differ from the nearest codes:
//
//   - Its CUDA kernels divide approximately. Next to a midpoint they may give the
//     neighbouring code.
//   - Its CPU library looks codes up in a coarse table. Below 1e-2 of absmax it often
//     gives the neighbouring code. Below 1e-5 of absmax codes are off by up to 4 in the
//     signed map and 7 in the unsigned map: 0 in a block with other values gets code 131
//     of the signed map, 2.1e-5·absmax, or code 7 of the unsigned map, 1.6e-5·absmax. A
//     block of zeros gets code 0.
//   - Here an absmax below 1e-38 divides like any other. The torch code of bitsandbytes
//     0.50 divides by 1e-38 instead, and stores 1e-38 for a partial last block, also for
//     a block of zeros. The CPU library multiplies by the reciprocal of absmax, which is
//     infinite below 2.9e-39: only signs are left, and zeros get code 0.
//
// # Devices
//
// All operands of a call lie on one device. On the CPU a call checks its data for NaNs and
// infinities before it writes. Each function says what it does on other devices.
package quant8

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/sweep"
)

// MinBlock and MaxBlock are the smallest and the largest block size, in elements.
const (
	MinBlock = 32
	MaxBlock = 4096
)

// Blocks returns how many blocks of block elements cover n elements, the
// length of absmax. It is 0 when n or block is not positive.
func Blocks(n, block int) int {
	if n <= 0 || block <= 0 {
		return 0
	}
	return (n-1)/block + 1
}

// Quantize writes the codes of src and the absmax of its blocks. codes has the
// length of src, absmax has [Blocks](len(src), block) elements of float32, and
// block is from [MinBlock] to [MaxBlock]. No operands overlap. A block of zeros
// has absmax 0 and the code nearest to 0; the sign of a zero is lost.
//
// On the CPU a NaN or infinity in src is an error that wraps [snug.ErrNonFinite] and
// names its index, and nothing is written. Other devices do not check first: there a
// block with such an element gets absmax NaN and codes of 0, so that Dequantize gives NaN
// for the whole block.
//
// The map is read during the call only. It may come from [DynamicMap], [LinearMap],
// [QuantileMap] or a checkpoint, or be any other map. The search tables of the two maps
// of DynamicMap are kept. Another map takes a table of 192 KiB, which is kept for the
// next call and takes about 0.2 ms to fill when the map changes.
//
// Errors wrap [snug.ErrConfig] (block, map), [snug.ErrDType], [snug.ErrShape],
// [snug.ErrDevice] or [snug.ErrNonFinite].
func Quantize[C snug.Vector8, A snug.Vector32, V snug.Vector](codes C, absmax A, src V, m *Map, block int) error {
	return quantize(snug.ViewOf8(codes), snug.ViewOf(absmax), snug.ViewOf(src), m, block)
}

// Dequantize writes map[code]·absmax, computed in float32 and rounded to the type of dst,
// for every code. The lengths are the same as for [Quantize]; no operands overlap. It
// needs 16 KiB a worker when dst is not float32, and otherwise no memory.
//
// Errors wrap [snug.ErrConfig] (block, map), [snug.ErrDType], [snug.ErrShape]
// or [snug.ErrDevice], and nothing is written then.
func Dequantize[V snug.Vector, C snug.Vector8, A snug.Vector32](dst V, codes C, absmax A, m *Map, block int) error {
	return dequantize(snug.ViewOf(dst), snug.ViewOf8(codes), snug.ViewOf(absmax), m, block)
}

func quantize(codes, absmax, src snug.View, m *Map, block int) error {
	dev, err := check("quantize", "src", src, codes, absmax, m, block)
	if err != nil || src.Len() == 0 {
		return err
	}
	j := quantizeJob{codes: codes, absmax: absmax, src: src, m: m, block: block}
	if !dev.IsCPU() {
		held := *m
		j.m = &held
		return device.Queue(dev, j)
	}
	if i := sweep.First(src, 1, sweep.Infinity); i >= 0 {
		return fmt.Errorf("quant8: quantize: src[%d] is NaN or infinite: %w", i, snug.ErrNonFinite)
	}
	j.Run()
	return nil
}

func dequantize(dst, codes, absmax snug.View, m *Map, block int) error {
	dev, err := check("dequantize", "dst", dst, codes, absmax, m, block)
	if err != nil || dst.Len() == 0 {
		return err
	}
	j := dequantizeJob{dst: dst, codes: codes, absmax: absmax, m: m, block: block}
	if !dev.IsCPU() {
		held := *m
		j.m = &held
		return device.Queue(dev, j)
	}
	j.Run()
	return nil
}

// check checks the operands of both directions: x is the vector of floats and name its
// name.
func check(op, name string, x, codes, absmax snug.View, m *Map, block int) (*snug.Device, error) {
	if err := checkBlock(block); err != nil {
		return nil, fmt.Errorf("quant8: %s: %w", op, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("quant8: %s: %w", op, err)
	}
	switch {
	case !x.DType().IsFloat():
		return nil, fmt.Errorf("quant8: %s: %s holds %s, want f32, f16 or bf16: %w", op, name, x.DType(), snug.ErrDType)
	case codes.DType() != snug.U8:
		return nil, fmt.Errorf("quant8: %s: codes hold %s, want u8: %w", op, codes.DType(), snug.ErrDType)
	case absmax.DType() != snug.F32:
		return nil, fmt.Errorf("quant8: %s: absmax holds %s, want f32: %w", op, absmax.DType(), snug.ErrDType)
	case codes.Len() != x.Len():
		return nil, fmt.Errorf("quant8: %s: %d codes for %d elements of %s: %w", op, codes.Len(), x.Len(), name, snug.ErrShape)
	case absmax.Len() != Blocks(x.Len(), block):
		return nil, fmt.Errorf("quant8: %s: absmax has %d elements, want %d for %d elements in blocks of %d: %w",
			op, absmax.Len(), Blocks(x.Len(), block), x.Len(), block, snug.ErrShape)
	}
	dev, err := snug.CommonDevice(codes, absmax, x)
	return dev, fault.Of(err, "quant8", op)
}

func checkBlock(block int) error {
	if block < MinBlock || block > MaxBlock {
		return fmt.Errorf("block of %d elements, want %d to %d: %w", block, MinBlock, MaxBlock, snug.ErrConfig)
	}
	return nil
}
