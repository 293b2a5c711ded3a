package pack

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/mx"
)

// Int8Scales returns the scale bytes of a vector of n elements, ⌈n/32⌉, and 0 for
// n < 0.
func Int8Scales(n int) int { return max(0, n)/mx.Block + (max(0, n)%mx.Block+mx.Block-1)/mx.Block }

// Int8 keeps an activation in 8.25 bits an element: 26 % of the bytes of
// float32, 52 % of 16-bit types. It loses precision; use it for what tolerates
// that, such as the inputs of GELU and of dropout.
//
// The format is MXINT8 of the Open Compute Project's "Microscaling Formats (MX)
// Specification" 1.0 (2023): 32 elements share a power of two, and each is an
// 8-bit integer. The error of an element is at most 1/128 of the largest magnitude
// of its 32, or 1/64 where it is within 1/128 of the next power of two. Blocks
// below 2^-120 lose more. A NaN or an infinity makes its whole block NaN, so that
// it is not hidden. The bits are the same on every device.
//
// codes has a byte for each element of x and scales has Int8Scales(x) bytes;
// neither overlaps x. Errors, with nothing written: [snug.ErrDType] unless x holds
// float32, float16 or bfloat16 and the others U8, [snug.ErrShape],
// [snug.ErrDevice]. It allocates nothing on the CPU, where each worker holds a tile
// of 4 KiB.
func Int8[C snug.Vector8, V snug.Vector](codes, scales C, x V) error {
	return int8Job{snug.ViewOf(x), snug.ViewOf8(codes), snug.ViewOf8(scales), true}.launch("Int8")
}

// UnpackInt8 is the inverse of [Int8], rounded to nearest even into the type of
// dst: for float32 and bfloat16, and for float16 within its range, it is exact.
// Errors are as for Int8.
func UnpackInt8[V snug.Vector, C snug.Vector8](dst V, codes, scales C) error {
	return int8Job{snug.ViewOf(dst), snug.ViewOf8(codes), snug.ViewOf8(scales), false}.launch("UnpackInt8")
}

// int8Job packs x, or unpacks into it.
type int8Job struct {
	x, codes, scales snug.View
	pack             bool
}

func (j int8Job) launch(op string) error {
	n := j.x.Len()
	if n > 0 && !j.x.DType().IsFloat() {
		return fmt.Errorf("pack: %s: the activation holds %v, want f32, f16 or bf16: %w", op, j.x.DType(), snug.ErrDType)
	}
	if err := checkBytes(op, "codes", j.codes, n, n); err != nil {
		return err
	}
	if err := checkBytes(op, "scales", j.scales, Int8Scales(n), n); err != nil {
		return err
	}
	dev, err := snug.CommonDevice(j.x, j.codes, j.scales)
	if err != nil {
		return fmt.Errorf("pack: %s: %w", op, err)
	}
	if n == 0 {
		return nil
	}
	return device.Run(dev, j)
}

// checkBytes returns an error unless v holds as many bytes as n elements want.
func checkBytes(op, name string, v snug.View, want, n int) error {
	if v.Len() > 0 && v.DType() != snug.U8 {
		return fmt.Errorf("pack: %s: %s holds %v, want u8: %w", op, name, v.DType(), snug.ErrDType)
	}
	if v.Len() != want {
		return fmt.Errorf("pack: %s: %s has %d bytes, want %d for %d elements: %w", op, name, v.Len(), want, n, snug.ErrShape)
	}
	return nil
}

func (*int8Job) Kernel() string { return "pack.int8" }

func (j *int8Job) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.x, &j.codes, &j.scales) }

func (j int8Job) Run() { int8Task.Run(cpu.Chunks(j.x.Len(), maskChunk), j) }

var int8Task = cpu.NewTask(func(j *int8Job, item int) {
	lo, hi := cpu.Chunk(j.x.Len(), maskChunk, item)
	k := mx.Registry.Best()
	buf := tiles.Get(half.Chunk)
	defer tiles.Put(buf)
	codes, scales := device.Mem(&j.codes).Bytes(), device.Mem(&j.scales).Bytes()
	for ; lo < hi; lo += half.Chunk {
		n := min(half.Chunk, hi-lo)
		tile := half.Floats(j.x, lo, (*buf)[:n])
		c, s := codes[lo:lo+n], scales[lo/mx.Block:]
		whole := n / mx.Block * mx.Block
		if j.pack {
			k.Encode(c[:whole], s[:whole/mx.Block], tile[:whole])
		} else {
			k.Decode(tile[:whole], c[:whole], s[:whole/mx.Block])
		}
		if rest := tile[whole:]; len(rest) > 0 {
			last := s[whole/mx.Block:][:1]
			if j.pack {
				k.Pad(c[whole:], last, rest)
			} else {
				k.Unpad(rest, c[whole:], last)
			}
		}
		if !j.pack {
			half.Flush(j.x, lo, tile)
		}
	}
})
