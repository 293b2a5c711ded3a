package qlora

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/octet"
)

// Type is the form of a weight: what its codes stand for, and which of them share a scale.
type Type uint8

// The formats. The zero Type is none.
const (
	// NF4 is NormalFloat: quantiles that cut the normal distribution into equal
	// parts, from -1 to 1 with 0 at code 7 (Dettmers et al. 2023, "QLoRA:
	// Efficient Finetuning of Quantized LLMs", arXiv:2305.14314).
	NF4 Type = iota + 1
	// FP4 is a floating-point number: a sign, two bits of exponent and one of
	// fraction, in units of the largest value. Codes 0 and 8 are both 0.
	FP4
	// MXFP4 is E2M1, a sign, two bits of exponent and one of fraction, from -6 to 6, times a power of two for every 32
	// elements of a row (OCP Microscaling Formats 1.0; the experts of gpt-oss). Quantizing takes the power of two by
	// which the largest magnitude lies from 4 up to below 8, and then the nearest value, ties to the even code.
	MXFP4
	// FP8 is [snug.Float8E4M3] times float32 scales: one for 128×128 elements, as in the files of DeepSeek V3, for a
	// row, or for the weight. See [Scales].
	FP8
	// FP8E5M2 is that with [snug.Float8E5M2].
	FP8E5M2
	// INT8 is integers from -127 to 127 in units of 1/127 of the largest magnitude of their row (Dettmers et al. 2022,
	// "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", arXiv:2208.07339).
	INT8
	// GGUF is blocks as the files of llama.cpp have them, each with its scales: what they are says [Weight.Blocks]. They
	// come from [NewBlocks] alone, on the CPU.
	GGUF
	// Grouped is integers of 2, 4 or 8 bits in groups of inputs, each with a scale and a zero point, as GPTQ (Frantar et al. 2023,
	// arXiv:2210.17323), AWQ (Lin et al. 2024, arXiv:2306.00978) and llm-compressor make them. They come from [Weights.Load] after
	// [Weights.SetGroups] alone, on the CPU. In memory 2 bits take 4.
	Grouped
)

// Scales says which elements of an [FP8] or [FP8E5M2] weight share a scale. One that [NewWeight] makes is their
// largest magnitude divided by the largest number of the format; files may have others.
type Scales uint8

// The zero Scales is ByBlock.
const (
	ByBlock  Scales = iota // 128×128 elements, fewer at the ends
	ByRow                  // a row: an output of the layer
	ByTensor               // all elements
)

// The values of bitsandbytes' get_4bit_type, by code.
var (
	nf4 = nibble.NewFormat([16]float32{
		-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
		-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
		0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
		0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
	})
	fp4 = nibble.NewFormat([16]float32{
		0, 0.0625 / 12., 8 / 12., 1, 4 / 12., 6 / 12., 2 / 12., 3 / 12.,
		0, -0.0625 / 12., -8 / 12., -1, -4 / 12., -6 / 12., -2 / 12., -3 / 12.,
	})
)

// nibbles returns the tables of t, or nil if it is not of 4 bits.
func (t Type) nibbles() *nibble.Format {
	switch t {
	case NF4:
		return nf4
	case FP4:
		return fp4
	case MXFP4:
		return mxfp4
	case Grouped:
		return int4
	}
	return nil
}

// octets returns the tables of t, or nil if it is not of 8 bits.
func (t Type) octets() *octet.Format {
	switch t {
	case FP8:
		return octet.E4M3
	case FP8E5M2:
		return octet.E5M2
	case INT8:
		return octet.Int8
	}
	return nil
}

// Bits returns the bits of a code, 4 or 8, and 4 for Grouped, whose weights may have 8. It returns 0 for GGUF, where they depend on the weight ([gguf.Type.Bytes] counts
// the bytes), and for a Type that is not valid.
func (t Type) Bits() int {
	switch {
	case t.octets() != nil:
		return 8
	case t.nibbles() != nil:
		return 4
	}
	return 0
}

// codeBytes returns the bytes of n codes.
func (t Type) codeBytes(n int) int {
	if t.Bits() == 8 {
		return n
	}
	return PackedBytes(n)
}

// Values returns what the codes 0 to 15 of a 4-bit type stand for, in units of a block's absmax or scale;
// all 0 for another Type.
func (t Type) Values() [16]float32 {
	if f := t.nibbles(); f != nil {
		return f.Values
	}
	return [16]float32{}
}

var typeNames = [...]string{NF4: "nf4", FP4: "fp4", MXFP4: "mxfp4", FP8: "fp8", FP8E5M2: "fp8e5m2", INT8: "int8", GGUF: "gguf", Grouped: "grouped"}

// madeNames are the names of the types to which [NewWeight] quantizes: all but GGUF and Grouped.
var madeNames = typeNames[1:GGUF]

// String returns "nf4", "fp4", "mxfp4", "fp8", "fp8e5m2", "int8", "gguf", "grouped" or "invalid".
func (t Type) String() string {
	if t == 0 || int(t) >= len(typeNames) {
		return "invalid"
	}
	return typeNames[t]
}

// ParseType returns the type of a name that [Type.String] gives, of those to which [NewWeight] quantizes: all but GGUF and
// Grouped. The error wraps [snug.ErrConfig].
func ParseType(s string) (Type, error) {
	for i, name := range madeNames {
		if s == name {
			return Type(i + 1), nil
		}
	}
	return 0, fmt.Errorf("qlora: unknown format %.20q, want one of %q: %w", s, madeNames, snug.ErrConfig)
}
