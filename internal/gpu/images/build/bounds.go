//go:build cuda && linux && amd64

package main

import (
	"fmt"
	"strings"
)

// peaks are what a card's data sheet says: FLOP/s of float32, and of dense products of 16 bits with
// sums in float32, and bytes/s of its memory.
type peaks struct {
	name             string
	f32, f16, memory float64
}

var cards = []peaks{
	{"A100 SXM 80 GB", 19.5e12, 312e12, 2.04e12},
	{"H100 SXM", 67e12, 989e12, 3.35e12},
	{"B200", 75e12, 2250e12, 8e12},
}

// work is what a family of kernels does at one shape: operations, and bytes that have to cross
// the memory once. Comparisons, conversions and integers do not count.
type work struct {
	kernels, shape string
	flops, bytes   float64
	units          bool // products of 16 bits
}

const mega = 1 << 20

// each is work for 2^28 elements.
func each(kernels, what string, flops, bytes float64) work {
	const n = 256 * mega
	return work{kernels: kernels, shape: "2^28 elements" + what, flops: flops * n, bytes: bytes * n}
}

// product is work for the product of m×k and k×n, with bytes of an element of the latter.
func product(kernels, what string, m, k, n, bytes float64) work {
	return work{
		kernels: kernels, shape: fmt.Sprintf("%.0f×%.0f by %.0f×%.0f%s", m, k, k, n, what),
		flops: 2 * m * k * n, bytes: 2*m*k + bytes*k*n + 2*m*n, units: true,
	}
}

// attends is attention's work for 32 heads of 128 columns over s rows, causal, in bfloat16: products of
// s×s scores, of which a half is hidden, and tensors of s×128.
func attends(kernels string, s, products, tensors float64) work {
	const heads, dim = 32, 128
	return work{
		kernels: kernels, shape: fmt.Sprintf("%d heads, %.0f rows of %d, causal, bf16", heads, s, dim),
		flops: heads * products * 2 * s * s * dim / 2, bytes: heads * tensors * s * dim * 2, units: true,
	}
}

// works are families that are simple to state. Operations are those of the text of the kernels.
var works = []work{
	each("amp_cast", ", f32 to bf16", 0, 4+2),
	each("amp_sweep", ", f32: unscale, check, sum of squares", 3, 4+4),
	each("accum_accumulate", ", f32", 3, 4+4+4),
	each("accum_accumulate", ", bf16 into f32", 3, 2+4+4),
	each("quant8_step32", ", AdamW, all f32", 16, 4*(1+2+2+2)),
	each("quant8_step8", ", AdamW, f32 and states of 8 bits in blocks of 256", 16, 4*(1+2)+2*2*(1+4./256)),
	each("quant8_dequantize", ", to f32, blocks of 256", 1, 1+4+4./256),
	each("qlora_dequantize", ", to bf16, blocks of 64", 1, .5+2+4./64),
	each("qlora_octets", ", to bf16, 8 bits, a scale for 128×128", 1, 1+2),
	each("fused_add", ", bf16", 1, 3*2),
	each("fused_rmsnorm", ", bf16, rows of 4096", 4, 2*2),
	each("fused_swiglu", ", bf16", 24, 3*2),
	product("gemm_units", ", bf16", 4096, 4096, 4096, 2),
	product("qlora_few", ", 4 bits in blocks of 64", 4, 4096, 4096, .5+4./64),
	product("qlora_product", ", 4 bits in blocks of 64", 2048, 4096, 4096, .5+4./64),
	attends("attention_forward", 4096, 2, 4),
	attends("attention_backward", 4096, 7, 4+3), // 7 products: queries and keys have kernels of their own
}

// seconds returns the least time of w on a card, and what takes it.
func (c peaks) seconds(w work) (float64, string) {
	peak := c.f32
	if w.units {
		peak = c.f16
	}
	memory, arithmetic := w.bytes/c.memory, w.flops/peak
	if arithmetic > memory {
		return arithmetic, "arithmetic"
	}
	return memory, "memory"
}

func intensity(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2g", x)
}

// bounds returns the section of RESOURCES.md on what limits kernels.
func bounds() string {
	var b strings.Builder
	b.WriteString("\n## What bounds them: an estimate\n\n")
	b.WriteString("The least times that a card's data sheet allows, if every byte crosses the memory once, nothing else takes\n")
	b.WriteString("time, and arithmetic runs at its peak. Nothing here was measured. Kernels that use matrix units without\n")
	b.WriteString("warpgroups, all but those of sm_90a, do not reach the peak of an H100 or a B200. Operations are counted by hand,\n")
	b.WriteString("about: products and sums, no comparisons, conversions and integers, such as the search for codes of 8 bits.\n\n")
	b.WriteString("| card | float32, TFLOP/s | dense products of 16 bits, TFLOP/s | memory, TB/s |\n|---|---|---|---|\n")
	for _, c := range cards {
		fmt.Fprintf(&b, "| %s | %.4g | %.4g | %.3g |\n", c.name, c.f32/1e12, c.f16/1e12, c.memory/1e12)
	}
	b.WriteString("\n| family | at | FLOP a byte |")
	for _, c := range cards {
		fmt.Fprintf(&b, " %s |", strings.Fields(c.name)[0])
	}
	b.WriteString("\n|---|---|---|---|---|---|\n")
	for _, w := range works {
		fmt.Fprintf(&b, "| %s | %s | %s |", w.kernels, w.shape, intensity(w.flops/w.bytes))
		for _, c := range cards {
			seconds, by := c.seconds(w)
			fmt.Fprintf(&b, " %.3g ms, %s |", seconds*1e3, by)
		}
		b.WriteString("\n")
	}
	return b.String()
}
