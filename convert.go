package snug

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/x448/float16"
)

// Float16s returns the memory of s as Float16, for programs whose binary16 numbers have
// a type of their own. It copies nothing: the elements are the same bits, which the
// caller knows to be binary16. The capacity is the length; nil stays nil.
func Float16s[T ~uint16](s []T) []Float16 { return sliceAs[Float16](s) }

// BFloat16s returns the memory of s as BFloat16, for programs whose bfloat16 numbers
// have a type of their own, such as gomlx. It copies nothing: the elements are the same
// bits, which the caller knows to be bfloat16. The capacity is the length; nil stays nil.
func BFloat16s[T ~uint16](s []T) []BFloat16 { return sliceAs[BFloat16](s) }

// Float8s returns the memory of s as Float8E4M3 or Float8E5M2, which the caller knows the bytes to be. It copies
// nothing. The capacity is the length; nil stays nil.
func Float8s[To Float8E4M3 | Float8E5M2, T ~uint8](s []T) []To {
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

func sliceAs[To, T ~uint16](s []T) []To {
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

// FromFloat64 rounds the elements of src into dst, for the matrices of gonum and other
// numbers of 64 bits:
//
//	dst[i] = src[i], rounded once, to nearest even
//
// float16 and bfloat16 are rounded from src itself, not from a float32 in between. What
// is beyond the range becomes an infinity, and NaN stays NaN.
//
// dst holds float32, float16 or bfloat16 and is as long as src. src may be reused on
// return. It allocates nothing on the CPU, and for other devices up to 64 KiB of host
// memory. Errors, with nothing written: [ErrDType], [ErrShape], [ErrDevice].
func FromFloat64[V Vector](dst V, src []float64) error {
	v := ViewOf(dst)
	if err := checkConvert("convert from", v, len(src)); err != nil || v.n == 0 {
		return err
	}
	if v.dev.IsCPU() {
		fromFloat64(v, src)
		return nil
	}
	return staged(v, func(host, part View, at int) error {
		fromFloat64(host, src[at:])
		return copyView(part, host)
	})
}

// ToFloat64 writes the elements of src to dst. It is exact.
//
// src holds float32, float16 or bfloat16 and is as long as dst. From another device than
// the CPU it waits for the work queued there, and allocates up to 64 KiB of host memory;
// on the CPU it allocates nothing. Errors, with nothing written: [ErrDType], [ErrShape],
// [ErrDevice].
func ToFloat64[V Vector](dst []float64, src V) error {
	v := ViewOf(src)
	if err := checkConvert("convert to", v, len(dst)); err != nil || v.n == 0 {
		return err
	}
	if v.dev.IsCPU() {
		toFloat64(dst, v)
		return nil
	}
	return staged(v, func(host, part View, at int) error {
		if err := copyView(host, part); err != nil {
			return err
		}
		toFloat64(dst[at:], host)
		return nil
	})
}

// checkConvert reports whether v can be converted from or to n elements of 64 bits.
func checkConvert(what string, v View, n int) error {
	switch {
	case v.n > 0 && !v.dtype.IsFloat():
		return fmt.Errorf("snug: %s float64: a vector of %s, want f32, f16 or bf16: %w", what, v.dtype, ErrDType)
	case v.n != n:
		return fmt.Errorf("snug: %s %d elements of float64: a vector of %d: %w", what, n, v.n, ErrShape)
	}
	return v.Device().check()
}

// stagedBytes is the host memory that conversions on a device go through.
const stagedBytes = 64 << 10

// staged calls do with every part of v, from element at on, and as much host memory.
func staged(v View, do func(host, part View, at int) error) error {
	each := min(v.n, stagedBytes/v.dtype.Size())
	all, _, err := MakeView(cpu, v.dtype, each)
	if err != nil {
		return err
	}
	for at := 0; at < v.n; at += each {
		n := min(each, v.n-at)
		part, err := v.Slice(at, at+n)
		if err != nil {
			return err
		}
		host, err := all.Slice(0, n)
		if err != nil {
			return err
		}
		if err := do(host, part, at); err != nil {
			return err
		}
	}
	return nil
}

// fromFloat64 fills a vector on the CPU.
func fromFloat64(v View, src []float64) {
	switch v.dtype {
	case F32:
		for i, dst := 0, v.Float32s(); i < len(dst); i++ {
			dst[i] = float32(src[i])
		}
	case F16:
		for i, dst := 0, v.Float16s(); i < len(dst); i++ {
			dst[i] = float16.Fromfloat32(oddFloat32(src[i]))
		}
	case BF16:
		for i, dst := 0, v.BFloat16s(); i < len(dst); i++ {
			dst[i] = ToBFloat16(oddFloat32(src[i]))
		}
	}
}

// toFloat64 reads a vector on the CPU.
func toFloat64(dst []float64, v View) {
	switch v.dtype {
	case F32:
		for i, x := range v.Float32s() {
			dst[i] = float64(x)
		}
	case F16:
		for i, x := range v.Float16s() {
			dst[i] = float64(x.Float32())
		}
	case BF16:
		for i, x := range v.BFloat16s() {
			dst[i] = float64(x.Float32())
		}
	}
}

// oddFloat32 rounds x to odd: where float32 does not hold x, of the two numbers around
// it to the one whose last bit is 1. Rounded to nearest from there, with two bits less or
// fewer, the result is the same as rounding x itself (Boldo and Melquiond, "Emulation of
// FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans.
// Computers 57(4), 2008).
func oddFloat32(x float64) float32 {
	y := float32(x)
	back := float64(y)
	if back == x || x != x {
		return y
	}
	b := math.Float32bits(y)
	if math.Abs(back) > math.Abs(x) {
		b-- // towards zero; from an infinity to the largest number
	}
	return math.Float32frombits(b | 1)
}
