package pack_test

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug/remat/pack"
)

// The layers y = relu(relu(x·a)·b) with weights that are not trained: the backward
// step needs to know where the inner activation h is positive, and not h.
func ExampleSigns() {
	const n = 4096
	h := make([]float32, n) // relu of x·a
	for i := range h {
		h[i] = float32(max(0, i%5-2))
	}
	mask := make([]uint8, pack.BitsLen(n))
	if err := pack.Signs(mask, h); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("kept %d bytes of %d\n", len(mask), 4*len(h))

	dh := make([]float32, n) // the gradient of h, which comes with dy·bᵀ
	for i := range dh {
		dh[i] = float32(i)
	}
	if err := pack.ApplyBits(dh, dh, mask, 1); err != nil { // now that of x·a
		fmt.Println(err)
		return
	}
	fmt.Println(dh[:10])
	// Output:
	// kept 512 bytes of 16384
	// [0 0 0 3 4 0 0 0 8 9]
}

// A dropout mask of one byte an element shrinks to one bit.
func ExampleBits() {
	kept := []bool{true, true, false, true, true, true, true, false, true, true}
	mask := make([]uint8, pack.BitsLen(len(kept)))
	if err := pack.Bits(mask, kept); err != nil {
		fmt.Println(err)
		return
	}
	dx, dy := make([]float32, len(kept)), []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	err := pack.ApplyBits(dx, dy, mask, 1/(1-0.2)) // of the elements that were kept
	fmt.Printf("%08b %v %v\n", mask, dx, err)
	back := make([]bool, len(kept))
	err = pack.UnpackBits(back, mask)
	fmt.Println(slices.Equal(back, kept), err)
	// Output:
	// [01111011 00000011] [1.25 2.5 0 5 6.25 7.5 8.75 0 11.25 12.5] <nil>
	// true <nil>
}

// An activation in a fourth of its bytes, with its error.
func ExampleInt8() {
	x := []float32{0.5, -1.5, 100, 0.01}
	codes, scales := make([]uint8, len(x)), make([]uint8, pack.Int8Scales(len(x)))
	if err := pack.Int8(codes, scales, x); err != nil {
		panic(err)
	}
	err := pack.UnpackInt8(x, codes, scales)
	fmt.Println(x, err)
	// Output: [0 -2 100 0] <nil>
}
