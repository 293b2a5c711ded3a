package qlora

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/safetensors"
)

// This file has the integers of compressed-tensors, whose codes lie along the inputs of an output, and whose scales are [out, groups]. A
// scale may be that of all outputs.

// The ends of the names of compressed-tensors' tensors, in place of "weight".
const packedCodes, packedShape, rowsScales, rowsZeros, rowsColumns = "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"

// byRows reports whether codes of a layout lie along the inputs of an output.
func (l Layout) byRows() bool { return l == Packed || l == Integers }

// codesOf returns the name of the weight whose codes a tensor has by a layout.
func (g Groups) codesOf(t *safetensors.Tensor) (name string, found bool) {
	module, end := t.Name, ""
	if at := strings.LastIndexByte(t.Name, '.'); at >= 0 {
		module, end = t.Name[:at+1], t.Name[at+1:]
	}
	switch g.Layout {
	case 0:
		return "", false
	case Packed:
		return module + "weight", end == packedCodes
	case Integers:
		return t.Name, end == "weight" && t.DType == "I8"
	}
	return module + "weight", end == groupCodes
}

// loadRowGroups reads a weight of these layouts.
func (l loader) loadRowGroups(w *Weight, codes safetensors.Place) error {
	g, shape := l.w.groups, codes.Tensor.Shape
	module := l.name[:len(l.name)-len("weight")]
	types := map[Layout]string{Packed: "I32", Integers: "I8"}
	if codes.Tensor.DType != types[g.Layout] || len(shape) != 2 {
		return fmt.Errorf("tensor %q is %s %v, want %s of two dimensions: %w", codes.Tensor.Name, codes.Tensor.DType, shape, types[g.Layout], snug.ErrCorrupt)
	}
	out, in := shape[0], shape[1]
	if g.Layout == Packed {
		in = shape[1] * (32 / g.Bits)
		if err := l.checkShape(module+packedShape, out, in); err != nil {
			return err
		}
	}
	size := g.Size
	if size == -1 {
		size = in
	}
	n, err := safetensors.Elements([]int{out, in})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	case n == 0 || in%nibble.Step != 0:
		return fmt.Errorf("a weight of %d outputs and %d inputs, want a multiple of %d inputs: %w", out, in, nibble.Step, snug.ErrCorrupt)
	}
	count := (in-1)/size + 1
	w.shape, w.n, w.groups = []int{out, in}, n, &groups{wide: g.Bits == 8}
	scales, err := l.rowScales(w, module+rowsScales, out, count)
	if err != nil {
		return err
	}
	zeros, err := l.rowZeros(module+rowsZeros, out, count)
	if err != nil {
		return err
	}
	columns := module + rowsColumns
	if _, found := l.w.set.Find(columns); g.Ordered && !found {
		return fmt.Errorf("the file has no tensor %q, and inputs are not in the order of their groups: %w", columns, snug.ErrCorrupt)
	}
	if w.groups.columns, err = l.columns(columns, in, size, count); err != nil {
		return err
	}
	w.groups.sort(size, count)
	w.setGroups(scales, zeros, size, count)
	packed := make([]uint8, w.codeBytes())
	if err := l.w.set.Read(codes, packed, 0); err != nil {
		return err
	}
	for i, b := range packed {
		if g.Layout == Integers {
			packed[i] = b + 128
		} else if g.Bits == 4 {
			packed[i] = b>>4 | b<<4
		}
	}
	w.packed = snug.FromSlice(packed)
	if w.groups.order != nil {
		orderTask.Run(out, orderArgs{packed, w.groups.order})
	}
	return nil
}

// checkShape compares weight_shape, if the file has it, with a shape.
func (l loader) checkShape(name string, out, in int) error {
	p, found := l.w.set.Find(name)
	if !found {
		return nil
	}
	width := map[string]int{"I64": 8, "I32": 4}[p.Tensor.DType]
	if width == 0 || !slices.Equal(p.Tensor.Shape, []int{2}) {
		return l.wrongShape(name, "I64", []int{2})
	}
	b := make([]byte, 2*width)
	if err := l.w.set.Read(p, b, 0); err != nil {
		return err
	}
	said := [2]uint64{}
	for i := range said {
		if said[i] = uint64(binary.LittleEndian.Uint32(b[width*i:])); width == 8 {
			said[i] = binary.LittleEndian.Uint64(b[width*i:])
		}
	}
	if said != [2]uint64{uint64(out), uint64(in)} {
		return fmt.Errorf("tensor %q says %d outputs and %d inputs, and the codes are of %d and %d: %w", name, said[0], said[1], out, in, snug.ErrCorrupt)
	}
	return nil
}

// rowScales reads scales, [out, groups], [out] for one group, or one for all, and returns them as [groups, out].
func (l loader) rowScales(w *Weight, name string, out, count int) ([]float32, error) {
	shape, err := l.rowShape(name, "F16, BF16 or F32", out, count)
	if err != nil {
		return nil, err
	}
	x, err := l.groupScales(w, name, shape...)
	if err != nil {
		return nil, err
	}
	return transposed(x, out, count), nil
}

// rowShape returns the shape of a tensor that has an element for each group of an output, or one for all where an output has one group.
func (l loader) rowShape(name, types string, out, count int) ([]int, error) {
	p, found := l.w.set.Find(name)
	if found {
		for _, shape := range [][]int{{out, count}, {1}, {1, 1}, {}} {
			if slices.Equal(p.Tensor.Shape, shape) && (len(shape) == 2 && shape[0] == out || count == 1) {
				return shape, nil
			}
		}
		if count == 1 && slices.Equal(p.Tensor.Shape, []int{out}) {
			return []int{out}, nil
		}
	}
	return nil, l.wrongShape(name, types, []int{out, count})
}

// transposed returns [out, groups], or one element for all, as [groups, out].
func transposed[T any](x []T, out, count int) []T {
	y := make([]T, out*count)
	for o := range out {
		for k := range count {
			if y[k*out+o] = x[0]; len(x) > 1 {
				y[k*out+o] = x[o*count+k]
			}
		}
	}
	return y
}

// rowZeros reads zero points as codes, [groups, out]. Without the tensor they are in the middle.
func (l loader) rowZeros(name string, out, count int) ([]uint8, error) {
	g := l.w.groups
	p, found := l.w.set.Find(name)
	if !found && g.Zeroed {
		return nil, fmt.Errorf("the file has no tensor %q, and codes are not symmetric: %w", name, snug.ErrCorrupt)
	}
	if !found {
		return slices.Repeat([]uint8{1 << (g.Bits - 1)}, out*count), nil
	}
	if g.Layout == Packed {
		per := 32 / g.Bits
		words, err := l.integers(name, (out+per-1)/per, count)
		if err != nil {
			return nil, err
		}
		zeros := make([]uint8, out*count)
		for o := range out {
			for k := range count {
				zeros[k*out+o] = uint8(words[o/per*count+k] >> (g.Bits * (o % per)) & (1<<g.Bits - 1))
			}
		}
		return zeros, nil
	}
	shape, err := l.rowShape(name, "I8", out, count)
	if err != nil || p.Tensor.DType != "I8" {
		return nil, l.wrongShape(name, "I8", []int{out, count})
	}
	n, err := safetensors.Elements(shape)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	b := make([]byte, n)
	if err := l.w.set.Read(p, b, 0); err != nil {
		return nil, err
	}
	for i := range b {
		b[i] += 128
	}
	return transposed(b, out, count), nil
}
