package qlora

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/quant8"
)

// maxState is the maximum length of a description in bytes. bitsandbytes writes fewer than
// 300.
const maxState = 1 << 16

// stateSuffix is the end of the name of a weight's description.
func stateSuffix(t Type) string { return ".quant_state.bitsandbytes__" + t.String() }

// quantState is the description of a weight: the fields of bitsandbytes' QuantState
// that are not tensors.
type quantState struct {
	QuantType string `json:"quant_type"`
	Blocksize int    `json:"blocksize"`
	DType     string `json:"dtype"`
	Shape     []int  `json:"shape"`

	// With double quantization only.
	NestedBlocksize int      `json:"nested_blocksize,omitempty"`
	NestedDType     string   `json:"nested_dtype,omitempty"`
	NestedOffset    *float64 `json:"nested_offset,omitempty"`
}

// The names of torch's types.
var torchTypes = map[snug.DType]string{snug.F32: "float32", snug.F16: "float16", snug.BF16: "bfloat16"}

// describe returns the description of w.
func describe(w *Weight) quantState {
	s := quantState{QuantType: w.t.String(), Blocksize: w.block, DType: torchTypes[w.dtype], Shape: w.shape}
	if s.Shape == nil {
		s.Shape = []int{} // an empty array, not null
	}
	if w.m != nil {
		offset := float64(w.offset)
		s.NestedBlocksize, s.NestedDType, s.NestedOffset = nestedBlock, torchTypes[snug.F32], &offset
	}
	return s
}

// parseState returns the description of a weight of type t. The error wraps
// [snug.ErrCorrupt].
func parseState(text []byte, t Type) (s quantState, err error) {
	corrupt := func(format string, args ...any) (quantState, error) {
		return s, fmt.Errorf(format+": %w", append(args, snug.ErrCorrupt)...)
	}
	if err := (strictjson.Options{Open: true, MaxBytes: maxState}).Unmarshal(text, &s); err != nil {
		return corrupt("%w", err)
	}
	nested := s.NestedOffset != nil
	switch {
	case s.QuantType != t.String():
		return corrupt("quant_type is %.20q, want %q", s.QuantType, t)
	case checkFormat(t, s.Blocksize) != nil:
		return corrupt("blocksize is %d, want a power of two from %d to %d", s.Blocksize, MinBlock, MaxBlock)
	case s.Shape == nil:
		return corrupt("it has no shape")
	case !nested && (s.NestedBlocksize != 0 || s.NestedDType != ""):
		return corrupt("it has no nested_offset")
	case nested && s.NestedBlocksize != nestedBlock:
		return corrupt("nested_blocksize is %d, want %d", s.NestedBlocksize, nestedBlock)
	case nested && s.NestedDType != torchTypes[snug.F32]:
		return corrupt("nested_dtype is %.20q, want %q", s.NestedDType, torchTypes[snug.F32])
	case nested && !(math.Abs(*s.NestedOffset) <= math.MaxFloat32):
		return corrupt("nested_offset is %g, beyond float32", *s.NestedOffset)
	}
	return s, nil
}

// weight returns the weight of a description, without its data.
func (s *quantState) weight(t Type) (*Weight, error) {
	n, err := safetensors.Elements(s.Shape)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	w := &Weight{shape: s.Shape, n: n, t: t, block: s.Blocksize}
	for dt, name := range torchTypes {
		if s.DType == name {
			w.dtype = dt
		}
	}
	if w.dtype == 0 {
		return nil, fmt.Errorf("dtype is %.20q, want float32, float16 or bfloat16: %w", s.DType, snug.ErrCorrupt)
	}
	if s.NestedOffset != nil {
		w.m, w.offset = new(quant8.Map), float32(*s.NestedOffset)
	}
	return w, nil
}
