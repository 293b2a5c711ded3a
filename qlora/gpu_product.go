//go:build cuda || hip || metal || emu

package qlora

import (
	"math/bits"

	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/quant8"
)

// productNames are the kernels by form and by the type of a.
var productNames = [...]gpu.Floats{
	gemm.Plain:    {"qlora_product_plain", "qlora_product_plain", "qlora_product_plain"},
	gemm.Thin:     {"qlora_product_thin", "qlora_product_thin", "qlora_product_thin"},
	gemm.Units64:  gpu.ForFloats("qlora_product64"), // no f32
	gemm.Units128: gpu.ForFloats("qlora_product128"),
}

func (j *productJob) Grids(q gpu.Launcher) error {
	a, b, _ := j.matrices()
	n, _ := j.shape()
	return j.launch(q, gemm.Choose(q, j.rows, n, a, b))
}

// matrices returns the operands of the product. The matrix of W has no memory.
func (j *productJob) matrices() (a, b, c gpu.Matrix) {
	n, k := j.shape()
	a, c = gemm.Matrix{Data: j.a, Stride: k}.GPU(), gemm.Matrix{Data: j.c, Stride: n}.GPU()
	return a, gpu.Matrix{Type: a.Type, Stride: j.w.shape[1], Trans: !j.back}, c
}

func (j *productJob) launch(q gpu.Launcher, form gemm.Form) error {
	a, b, c := j.matrices()
	n, k := j.shape()
	packed := *device.Mem(&j.packed)
	params := struct {
		gemm.Params
		shift, wide uint32
		twice       uint32
		offset      float32
		values      [16]float32
		m           quant8.Map
	}{
		Params: gemm.NewParams(j.rows, n, k, 1, a, b, j.beta, c), shift: uint32(bits.TrailingZeros(uint(j.w.block))), wide: gpu.Aligned(packed.Addr),
		offset: j.w.offset, values: j.w.t.Values(),
	}
	if j.w.m != nil {
		params.twice, params.m = 1, *j.w.m
	}
	return kernels.Launch(q, productNames[form].Of(uint8(j.a.DType())),
		[3]int{form.Blocks(j.rows, n), 1, 1}, gemm.Threads, gpu.Params(&params), c.Mem, a.Mem, packed, *device.Mem(&j.scales), *device.Mem(&j.codes))
}
