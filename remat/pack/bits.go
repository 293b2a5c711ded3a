package pack

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
)

// Booleans is a vector whose elements mean true where they are not zero. A View
// given as one may hold any element type.
type Booleans interface {
	snug.Vector | ~[]bool | ~[]uint8 | snug.Array[uint8]
}

// BitsLen returns the bytes of a mask of n elements, ⌈n/8⌉, and 0 for n < 0.
func BitsLen(n int) int { return max(0, n)/8 + (max(0, n)%8+7)/8 }

// Signs keeps of an activation what the backward pass of ReLU needs,
//
//	bit i of mask = 1 if x[i] > 0, else 0
//
// which is the Binarize encoding of Gist (Jain et al. 2018, "Gist: Efficient Data
// Encoding for Deep Neural Network Training", ISCA). x is the input or the output
// of ReLU, which have the same positive elements; NaN is not one of them. The
// unused bits of the last byte become 0.
//
// Use it where no other layer needs the activation itself. Then x is dropped, and 1/32 of its
// bytes (1/16 for 16-bit types) is kept. [ApplyBits] is the backward pass.
//
// mask has BitsLen(x) bytes and does not overlap x. Errors, with nothing written:
// [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice]. It allocates nothing on the
// CPU.
func Signs[M snug.Vector8, V snug.Vector](mask M, x V) error {
	v := snug.ViewOf(x)
	if !v.DType().IsFloat() && v.Len() > 0 {
		return fmt.Errorf("pack: Signs: x holds %v, want f32, f16 or bf16: %w", v.DType(), snug.ErrDType)
	}
	return packBits("Signs", snug.ViewOf8(mask), v, positive(v.DType()))
}

// Bits keeps of each element of x whether it is not zero,
//
//	bit i of mask = 1 if x[i] ≠ 0, else 0
//
// such as a dropout mask of one byte an element, which shrinks to 1/8, or the positions of a
// sparse vector's elements. −0 is zero, NaN is not. The unused bits of the
// last byte become 0.
//
// mask has BitsLen(x) bytes and does not overlap x. Errors are as for
// [Signs]. It allocates nothing on the CPU.
func Bits[M snug.Vector8, V Booleans](mask M, x V) error {
	v := viewOf(x)
	if err := checkBooleans("Bits", "x", v); err != nil {
		return err
	}
	return packBits("Bits", snug.ViewOf8(mask), v, nonzero(v.DType()))
}

// UnpackBits is the inverse of [Bits] for vectors of zeros and ones:
//
//	dst[i] = 1 if bit i of mask is set, else 0
//
// mask has BitsLen(dst) bytes and does not overlap dst; its unused bits are
// ignored. Errors are as for [Signs]. It allocates nothing on the CPU.
func UnpackBits[V Booleans, M snug.Vector8](dst V, mask M) error {
	const op = "UnpackBits"
	job := unpackJob{viewOf(dst), snug.ViewOf8(mask)}
	if err := checkBooleans(op, "dst", job.dst); err != nil {
		return err
	}
	dev, err := checkMask(op, job.mask, "dst", job.dst, snug.View{})
	if err != nil || job.dst.Len() == 0 {
		return err
	}
	return device.Run(dev, job)
}

// ApplyBits computes the gradient dx of a layer that passes some elements, times a
// factor, and drops the others, from the gradient dy of its output:
//
//	dx[i] = scale·dy[i] if bit i of mask is set, else 0
//
// It is the backward pass of ReLU for a mask of [Signs] and scale 1, and of
// dropout with probability p for its mask and scale 1/(1−p), as torch's
// native_dropout_backward. A dropped NaN or infinity becomes 0.
//
// With scale 1 elements are copied, to the bit; else they are multiplied in
// float32 and rounded once, to nearest even. The bits are the same on every device,
// those of NaNs aside.
//
// dx and dy have one element type and length; dx may be dy. mask has BitsLen(dy)
// bytes and does not overlap dx. Errors, with nothing written: [snug.ErrConfig]
// when scale is not finite, [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice]. It
// allocates nothing on the CPU, where each worker holds a tile of 4 KiB.
func ApplyBits[V snug.Vector, M snug.Vector8](dx, dy V, mask M, scale float32) error {
	const op = "ApplyBits"
	job := applyJob{snug.ViewOf(dx), snug.ViewOf(dy), snug.ViewOf8(mask), scale}
	if math.IsInf(float64(scale), 0) || scale != scale {
		return fmt.Errorf("pack: %s: scale is %v, want a finite number: %w", op, scale, snug.ErrConfig)
	}
	if err := checkGradients(op, job.dx, job.dy); err != nil {
		return err
	}
	dev, err := checkMask(op, job.mask, "dy", job.dy, job.dx)
	if err != nil || job.dy.Len() == 0 {
		return err
	}
	return device.Run(dev, job)
}

// pack sets the bits of mask by a test of the elements of x.
func packBits(op string, mask, x snug.View, t bitTest) error {
	dev, err := checkMask(op, mask, "x", x, snug.View{})
	if err != nil || x.Len() == 0 {
		return err
	}
	job := bitsJob{mask, x, t}
	return device.Run(dev, job)
}

func checkBooleans(op, name string, v snug.View) error {
	if v.DType().Size() == 0 && v.Len() > 0 {
		return fmt.Errorf("pack: %s: %s holds %v: %w", op, name, v.DType(), snug.ErrDType)
	}
	return nil
}

func checkGradients(op string, dx, dy snug.View) error {
	switch {
	case dx.Len() == 0 && dy.Len() == 0:
		return nil
	case !dy.DType().IsFloat():
		return fmt.Errorf("pack: %s: dy holds %v, want f32, f16 or bf16: %w", op, dy.DType(), snug.ErrDType)
	case dx.DType() != dy.DType():
		return fmt.Errorf("pack: %s: dx holds %v, dy %v: %w", op, dx.DType(), dy.DType(), snug.ErrDType)
	case dx.Len() != dy.Len():
		return fmt.Errorf("pack: %s: dx has %d elements, dy %d: %w", op, dx.Len(), dy.Len(), snug.ErrShape)
	}
	return nil
}

// checkMask reports whether mask fits v, which is called name, and returns the
// device of these and of another operand, which may be empty.
func checkMask(op string, mask snug.View, name string, v, other snug.View) (*snug.Device, error) {
	if mask.DType() != snug.U8 && mask.Len() > 0 {
		return nil, fmt.Errorf("pack: %s: mask holds %v, want u8: %w", op, mask.DType(), snug.ErrDType)
	}
	if want := BitsLen(v.Len()); mask.Len() != want {
		return nil, fmt.Errorf("pack: %s: mask has %d bytes, want %d for the %d elements of %s: %w",
			op, mask.Len(), want, v.Len(), name, snug.ErrShape)
	}
	dev, err := snug.CommonDevice(mask, v, other)
	return dev, fault.Of(err, "pack", op)
}

func viewOf[V Booleans](x V) snug.View {
	switch x := any(x).(type) {
	case snug.View:
		return x
	case snug.Array[uint8]:
		return x.View()
	case snug.Array[float32]:
		return x.View()
	case snug.Array[snug.Float16]:
		return x.View()
	case snug.Array[snug.BFloat16]:
		return x.View()
	}
	slice := unsafe.Pointer(&x) // of a type that may have a name
	switch elem := reflect.TypeFor[V]().Elem(); elem.Kind() {
	case reflect.Float32:
		return snug.SliceView(*(*[]float32)(slice))
	case reflect.Uint16:
		if elem == reflect.TypeFor[snug.Float16]() {
			return snug.SliceView(*(*[]snug.Float16)(slice))
		}
		return snug.SliceView(*(*[]snug.BFloat16)(slice))
	}
	return snug.SliceView(*(*[]uint8)(slice)) // []uint8, or []bool, whose elements are a byte each, 0 or 1
}
