package gguf

import (
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/ggml"
)

// Type is the element type of a tensor, by ggml's number.
type Type uint32

// The types that [Type.Decode] and [Type.Encode] know.
const (
	F32    Type = 0  // float32
	F16    Type = 1  // binary16
	Q4_0   Type = 2  // 4 bits, a scale for 32
	Q4_1   Type = 3  // 4 bits, a scale and a minimum for 32
	Q5_0   Type = 6  // 5 bits, a scale for 32
	Q5_1   Type = 7  // 5 bits, a scale and a minimum for 32
	Q8_0   Type = 8  // 8 bits, a scale for 32
	Q2_K   Type = 10 // 2 bits; 256 in groups of 16, with scales and minima of 4 bits
	Q3_K   Type = 11 // 3 bits; 256 in groups of 16, with scales of 6 bits
	Q4_K   Type = 12 // 4 bits; 256 in groups of 32, with scales and minima of 6 bits
	Q5_K   Type = 13 // 5 bits; 256 in groups of 32, with scales and minima of 6 bits
	Q6_K   Type = 14 // 6 bits; 256 in groups of 16, with scales of 8 bits
	IQ4_NL Type = 20 // 4 bits of a table that is not linear, a scale for 32
	IQ4_XS Type = 23 // those; 256 in groups of 32, with scales of 6 bits
	BF16   Type = 30 // bfloat16
	MXFP4  Type = 39 // 4-bit floats, a power of two for 32 (OCP Microscaling Formats 1.0)
)

const superBlock = ggml.SuperBlock

// format is what a type is. Its functions take whole blocks of checked lengths.
type format struct {
	name            string
	elements, bytes int // of a block
	decode          func(dst []float32, src []byte)
	encode          func(dst []byte, src []float32)
	limit           float32 // the largest magnitude that encode takes, and no NaN; 0 if it takes all
}

// formats are all types of ggml, as the Python package gguf 0.19 has them.
var formats = map[Type]format{
	F32:    {"f32", 1, 4, decodeF32, encodeF32, 0},
	F16:    {"f16", 1, 2, decodeF16, encodeF16, 0},
	BF16:   {"bf16", 1, 2, decodeBF16, encodeBF16, 0},
	Q4_0:   blocks("q4_0", ggml.Q4_0, encodeQ4_0, maxScaled),
	Q4_1:   blocks("q4_1", ggml.Q4_1, encodeQ4_1, maxScaled),
	Q5_0:   blocks("q5_0", ggml.Q5_0, encodeQ5_0, maxScaled),
	Q5_1:   blocks("q5_1", ggml.Q5_1, encodeQ5_1, maxScaled),
	Q8_0:   blocks("q8_0", ggml.Q8_0, encodeQ8_0, maxScaled),
	MXFP4:  blocks("mxfp4", ggml.MXFP4, encodeMXFP4, math.MaxFloat32),
	IQ4_NL: blocks("iq4_nl", ggml.IQ4NL, encodeIQ4NL, maxScaled),
	IQ4_XS: blocks("iq4_xs", ggml.IQ4XS, encodeIQ4XS, maxScaled),
	Q2_K:   blocks("q2_k", ggml.Q2K, encodeQ2K, maxScaled),
	Q3_K:   blocks("q3_k", ggml.Q3K, encodeQ3K, maxScaled),
	Q4_K:   blocks("q4_k", ggml.Q4K, encodeQ4K, maxScaled),
	Q5_K:   blocks("q5_k", ggml.Q5K, encodeQ5K, maxScaled),
	Q6_K:   blocks("q6_k", ggml.Q6K, encodeQ6K, maxScaled),

	9:  {name: "q8_1", elements: 32, bytes: 40},
	15: {name: "q8_k", elements: superBlock, bytes: 292},
	16: {name: "iq2_xxs", elements: superBlock, bytes: 66},
	17: {name: "iq2_xs", elements: superBlock, bytes: 74},
	18: {name: "iq3_xxs", elements: superBlock, bytes: 98},
	19: {name: "iq1_s", elements: superBlock, bytes: 50},
	21: {name: "iq3_s", elements: superBlock, bytes: 110},
	22: {name: "iq2_s", elements: superBlock, bytes: 82},
	24: {name: "i8", elements: 1, bytes: 1},
	25: {name: "i16", elements: 1, bytes: 2},
	26: {name: "i32", elements: 1, bytes: 4},
	27: {name: "i64", elements: 1, bytes: 8},
	28: {name: "f64", elements: 1, bytes: 8},
	29: {name: "iq1_m", elements: superBlock, bytes: 56},
	34: {name: "tq1_0", elements: superBlock, bytes: 54},
	35: {name: "tq2_0", elements: superBlock, bytes: 66},
	40: {name: "nvfp4", elements: 64, bytes: 36},
	41: {name: "q1_0", elements: 128, bytes: 18},
}

// blocks returns the format of a type with blocks.
func blocks(name string, f ggml.Format, encode func(dst []byte, src []float32), limit float32) format {
	k := ggml.Registry.Best()
	if fast := k.Encode[f]; fast != nil {
		encode = fast
	}
	return format{name, f.Elements(), f.Bytes(), k.Decode[f], encode, limit}
}

// ParseType returns the type that a name means, in small or capital letters: those of the constants, such as "q4_k" or
// "Q4_K", and those of ggml's other types. The error wraps [snug.ErrDType].
func ParseType(s string) (Type, error) {
	for t, f := range formats {
		if strings.EqualFold(f.name, s) {
			return t, nil
		}
	}
	return 0, fmt.Errorf("gguf: %.40q is not a type of ggml, want one such as f16, q8_0 or q4_k: %w", s, snug.ErrDType)
}

// String returns the name in small letters, such as "q4_k", and "type 99" for a number that is not a type.
func (t Type) String() string {
	if f, known := formats[t]; known {
		return f.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block returns the elements and the bytes of a block, 1 and the bytes of an element for a type without blocks. It
// returns zeros for a number that is not a type.
func (t Type) Block() (elements, bytes int) {
	f := formats[t]
	return f.elements, f.bytes
}

// Bytes returns the bytes of a number of elements. Errors: [snug.ErrDType] for a number that is not a type, [snug.ErrShape]
// for elements that are negative, no whole blocks, or too many for an int64.
func (t Type) Bytes(elements int) (int64, error) {
	n, err := t.bytes(int64(elements))
	if err != nil {
		return 0, fmt.Errorf("gguf: %w", err)
	}
	return n, nil
}

func (t Type) bytes(elements int64) (int64, error) {
	f, known := formats[t]
	switch {
	case !known:
		return 0, fmt.Errorf("%s is not one of ggml's: %w", t, snug.ErrDType)
	case elements < 0 || elements%int64(f.elements) != 0:
		return 0, fmt.Errorf("%d elements of %s, want whole blocks of %d: %w", elements, t, f.elements, snug.ErrShape)
	case elements/int64(f.elements) > math.MaxInt64/int64(f.bytes):
		return 0, fmt.Errorf("%d elements of %s have too many bytes: %w", elements, t, snug.ErrShape)
	}
	return elements / int64(f.elements) * int64(f.bytes), nil
}

// Decode writes the values of the blocks in src to dst, which has an element for each: the same bits as
// gguf.quants.dequantize of the Python package, with products and sums rounded one after another. NaNs stay NaNs.
//
// It allocates nothing, calls may run at the same time, and neither slice is kept. Errors, with nothing written: [snug.ErrDType] for a type that
// is not among the package's constants, [snug.ErrShape] if src is no whole blocks or dst is not as long as they are.
func (t Type) Decode(dst []float32, src []byte) error {
	f := formats[t]
	if f.decode == nil {
		return fmt.Errorf("gguf: tensors of %s are not decoded: %w", t, snug.ErrDType)
	}
	if err := f.check(t, len(dst), len(src)); err != nil {
		return err
	}
	f.decode(dst, src)
	return nil
}

// Encode writes the elements of src to dst as blocks:
//
//   - F32, F16, BF16: rounded to nearest, ties to even. A magnitude beyond the range becomes an infinity.
//   - Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4: the same bytes as gguf.quants.quantize of the Python package.
//   - Q2_K to Q6_K, IQ4_NL, IQ4_XS: for each group the scale, and the minimum, of the least weighted error of a search around the one
//     that spans the range, as in llama.cpp without an importance matrix, and then the best of those near it in few bits.
//
// A row of a tensor has a whole number of blocks: the blocks of a whole tensor, or of some of its rows, are encoded at once.
// The bytes are the same on every machine. It allocates nothing, calls may run at the same time, and neither slice is kept.
// Errors, with nothing written: [snug.ErrDType] for other types,
// [snug.ErrShape] if src is no whole blocks or dst is not as long as they are, and for types with blocks
// [snug.ErrNonFinite] for a NaN, an infinity, or a magnitude above 65504, which scales in binary16 do not reach (MXFP4 takes any
// magnitude).
func (t Type) Encode(dst []byte, src []float32) error {
	f := formats[t]
	if f.encode == nil {
		return fmt.Errorf("gguf: tensors of %s are not encoded: %w", t, snug.ErrDType)
	}
	if err := f.check(t, len(src), len(dst)); err != nil {
		return err
	}
	if f.limit > 0 {
		if i := beyond(src, f.limit); i >= 0 {
			return fmt.Errorf("gguf: element %d of %d is %v, want a magnitude of at most %v for %s: %w", i, len(src), src[i], f.limit, t, snug.ErrNonFinite)
		}
	}
	f.encode(dst, src)
	return nil
}

// check compares the lengths of elements and of bytes.
func (f format) check(t Type, elements, bytes int) error {
	if bytes%f.bytes != 0 {
		return fmt.Errorf("gguf: %d bytes of %s, want whole blocks of %d: %w", bytes, t, f.bytes, snug.ErrShape)
	}
	if want := bytes / f.bytes; elements%f.elements != 0 || elements/f.elements != want {
		return fmt.Errorf("gguf: %d elements beside %d bytes of %s, which are %d blocks of %d: %w", elements, bytes, t, want, f.elements, snug.ErrShape)
	}
	return nil
}

// maxScaled is the largest finite binary16, in which types with blocks have their scales.
const maxScaled = 65504

// beyond returns the first index of a magnitude above a limit or of a NaN, or -1.
func beyond(x []float32, limit float32) int {
	if blockq.Registry.Best().AbsMax(x) <= limit {
		return -1
	}
	top := math.Float32bits(limit)
	for i, v := range x {
		if math.Float32bits(v)&0x7fffffff > top {
			return i
		}
	}
	return -1
}
