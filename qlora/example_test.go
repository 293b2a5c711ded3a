package qlora_test

import (
	"bytes"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
)

func ExampleQuantize() {
	x := []float32{0.5, -2, 0, 0.3, 1.5}
	packed, absmax := make([]uint8, qlora.PackedBytes(len(x))), make([]float32, qlora.Blocks(len(x), 64))
	if err := qlora.Quantize(packed, absmax, x, qlora.NF4, 64); err != nil {
		panic(err)
	}
	y := make([]float32, len(x))
	if err := qlora.Dequantize(y, packed, absmax, qlora.NF4, 64); err != nil {
		panic(err)
	}
	fmt.Printf("%x %v\n", packed, absmax)
	fmt.Printf("%.4f\n", y)
	// Output:
	// a079e7 [2]
	// [0.4922 -2.0000 0.0000 0.3219 1.4459]
}

func ExampleWeight() {
	bf16 := make([]snug.BFloat16, 4096*4096) // a layer, 32 MiB
	for i := range bf16 {
		bf16[i] = snug.ToBFloat16(float32(i%17)/8 - 1)
	}
	w, err := qlora.NewWeight(bf16, []int{4096, 4096}, qlora.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%v of %v: %.3f bits an element\n", w.Type(), w.Shape(), 8*float64(w.Bytes())/float64(w.Len()))
	if err := w.Dequantize(snug.ViewOf(bf16)); err != nil {
		panic(err)
	}
	fmt.Println(bf16[:3])
	// Output:
	// nf4 of [4096 4096]: 4.127 bits an element
	// [-1 -1 -0.6953125]
}

func ExampleWriteWeights() {
	w, err := qlora.NewWeight([]float32{0.5, -2, 0, 0.3}, []int{2, 2}, qlora.Options{Single: true})
	if err != nil {
		panic(err)
	}
	var file bytes.Buffer
	weights := func(yield func(string, *qlora.Weight) bool) { yield("layers.0.up_proj.weight", w) }
	if _, err := qlora.WriteWeights(&file, weights, nil); err != nil {
		panic(err)
	}
	read, err := qlora.NewWeights(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		panic(err)
	}
	for _, name := range read.Names() {
		back, err := read.Load(name, snug.CPU())
		if err != nil {
			panic(err)
		}
		fmt.Println(name, back.Type(), back.Shape(), back.DType())
	}
	// Output: layers.0.up_proj.weight nf4 [2 2] f32
}
