package qlora

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/octet"
	"github.com/snug-ml/snug/internal/safetensors"
)

// This file reads weights that are not bitsandbytes' 4 bits: MXFP4, FP8 and INT8. Each has a tensor of codes and one of
// scales, and nothing that describes them.

// The ends of the names of tensors.
const (
	mxBlocks, mxScales = "_blocks", "_scales"
	blockScale         = "_scale_inv"
	otherScale         = "_scale"
	rowScale           = "SCB" // in place of "weight"
	rowFormat          = "weight_format"
)

// kindOf returns the type of the weight whose codes a tensor has, and the name of the weight; 0 for another tensor.
func (w *Weights) kindOf(t *safetensors.Tensor) (Type, string) {
	if name, is := w.groups.codesOf(t); is {
		return Grouped, name
	}
	has := func(name string) bool { _, found := w.set.Find(name); return found }
	switch name, packed := strings.CutSuffix(t.Name, mxBlocks); {
	case packed && t.DType == "U8" && has(name+mxScales):
		return MXFP4, name
	case float8Types[t.DType] != 0 && (has(t.Name+blockScale) || has(t.Name+otherScale)):
		return float8Types[t.DType], t.Name
	case t.DType == "I8" && has(rowScaleOf(t.Name)):
		return INT8, t.Name
	}
	return 0, ""
}

var float8Types = map[string]Type{"F8_E4M3": FP8, "F8_E5M2": FP8E5M2}

// rowScaleOf returns the name of the scales of an INT8 weight, empty if there is none.
func rowScaleOf(name string) string {
	if module, found := strings.CutSuffix(name, "weight"); found {
		return module + rowScale
	}
	return ""
}

// kind returns the type of the weight that l loads, 0 if it is bitsandbytes' 4 bits or not there, and the place of its
// codes.
func (l loader) kind() (Type, safetensors.Place) {
	for _, name := range []string{l.name, l.name + mxBlocks, strings.TrimSuffix(l.name, "weight") + groupCodes, strings.TrimSuffix(l.name, "weight") + packedCodes} {
		if p, found := l.w.set.Find(name); found {
			if t, of := l.w.kindOf(p.Tensor); t != 0 && of == l.name {
				return t, p
			}
		}
	}
	return 0, safetensors.Place{}
}

// missing returns the error for a weight that the file does not have, or whose scales it does not have.
func (l loader) missing() error {
	for _, c := range []struct{ end, types, scales string }{
		{"", "F8_E4M3 F8_E5M2", l.name + blockScale}, {"", "I8", rowScaleOf(l.name)}, {mxBlocks, "U8", l.name + mxScales},
	} {
		p, found := l.w.set.Find(l.name + c.end)
		if found && strings.Contains(c.types, p.Tensor.DType) && c.scales != "" {
			return fmt.Errorf("the file has no scales for its tensor %q of %s, such as %q: %w", p.Tensor.Name, p.Tensor.DType, c.scales, snug.ErrConfig)
		}
	}
	return fmt.Errorf("the file has no quantized weight of this name: %w", snug.ErrConfig)
}

// loadKind reads a weight that is not bitsandbytes' 4 bits.
func (l loader) loadKind(t Type, codes safetensors.Place) (_ *Weight, err error) {
	w := &Weight{t: t, dtype: snug.BF16, shape: codes.Tensor.Shape}
	whole := false
	defer func() {
		if !whole { // also when the reader panics
			err = errors.Join(err, w.Close())
		}
	}()
	switch t {
	case MXFP4:
		err = l.loadMX(w)
	case Grouped:
		err = l.loadGroups(w, codes)
	default:
		err = l.loadOctets(w)
	}
	if err != nil {
		return nil, err
	}
	whole = true
	return w, nil
}

// loadMX reads MXFP4: 16 bytes for a block, the codes of even elements in their lower halves, and a byte for its scale.
func (l loader) loadMX(w *Weight) error {
	p, err := l.shapeMX(w)
	if err != nil {
		return err
	}
	scales := make([]uint8, w.n/mxBlock)
	if err := l.w.set.Read(p, scales, 0); err != nil {
		return err
	}
	if err := l.codesTurned(&w.packed, mxBlocks, w.n/2, swapHalves); err != nil {
		return err
	}
	return l.scalesMX(w, scales)
}

// shapeMX checks the tensors of an MXFP4 weight, sets its shape, and returns the place of its scales.
func (l loader) shapeMX(w *Weight) (p safetensors.Place, err error) {
	dims := len(w.shape)
	if dims < 2 || w.shape[dims-1] != mxBlock/2 {
		return p, fmt.Errorf("tensor %q is %v, want [..., in/%d, %d]: %w", l.name+mxBlocks, w.shape, mxBlock, mxBlock/2, snug.ErrCorrupt)
	}
	blocks, err := safetensors.Elements(w.shape[:dims-1])
	if err != nil || blocks > math.MaxInt/mxBlock {
		return p, fmt.Errorf("tensor %q is %v, which is too much: %w", l.name+mxBlocks, w.shape, snug.ErrCorrupt)
	}
	if err := l.want(mxScales, blocks, "U8", "F8_E8M0"); err != nil {
		return p, err
	}
	p, _ = l.w.set.Find(l.name + mxScales)
	if !slices.Equal(p.Tensor.Shape, w.shape[:dims-1]) {
		return p, fmt.Errorf("tensor %q is %v, want %v: %w", p.Tensor.Name, p.Tensor.Shape, w.shape[:dims-1], snug.ErrCorrupt)
	}
	shape := append([]int(nil), w.shape[:dims-1]...)
	shape[dims-2] *= mxBlock
	w.shape, w.n, w.block = shape, blocks*mxBlock, mxBlock
	return p, nil
}

// scalesMX sets the scales of an MXFP4 weight, whose codes are there.
func (l loader) scalesMX(w *Weight, scales []uint8) (err error) {
	if i := bytes.IndexByte(scales, mxNaN); i >= 0 {
		return fmt.Errorf("%s[%d] is %d, which is no number: %w", mxScales[1:], i, mxNaN, snug.ErrCorrupt)
	}
	if w.codes, err = put(l.dev, scales); err != nil {
		return err
	}
	return w.setMX(l.dev)
}

// swapHalves swaps the halves of bytes.
func swapHalves(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		const low = 0x0f0f0f0f0f0f0f0f
		v := binary.LittleEndian.Uint64(b)
		binary.LittleEndian.PutUint64(b, v>>4&low|v&low<<4)
	}
	for i, c := range b {
		b[i] = c>>4 | c<<4
	}
}

// loadOctets reads FP8 and INT8.
func (l loader) loadOctets(w *Weight) error {
	scales, name, err := l.shapeOctets(w)
	if err != nil {
		return err
	}
	return l.fillOctets(w, name, scales, 0, w.n, func(turn func([]byte)) error { return l.codesTurned(&w.packed, "", w.n, turn) })
}

// shapeOctets checks the tensors of a weight of 8 bits, sets its grid, and returns its scales and the name of their tensor.
func (l loader) shapeOctets(w *Weight) (scales []float32, name string, err error) {
	if len(w.shape) != 2 {
		return nil, "", fmt.Errorf("it has the shape %v, want two dimensions: %w", w.shape, snug.ErrCorrupt)
	}
	if w.n, err = safetensors.Elements(w.shape); err != nil {
		return nil, "", fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	if w.t == INT8 {
		w.dtype = snug.F16
		if err := l.checkRowFormat(); err != nil {
			return nil, "", err
		}
	}
	if w.n == 0 { // it has no scales either
		w.setGrid(gridOf(w.t, ByBlock, w.shape[0], w.shape[1]))
		return nil, "", nil
	}
	name, p, err := l.scale(w.t)
	if err != nil {
		return nil, name, err
	}
	g, err := l.w.scaleGrid(p.Tensor, w.shape[0], w.shape[1])
	if w.t == INT8 && (err != nil || g != gridOf(INT8, 0, w.shape[0], w.shape[1])) {
		err = fmt.Errorf("scales of shape %v for a weight %v, want one for each row: %w", p.Tensor.Shape, w.shape, snug.ErrCorrupt)
	}
	if err != nil {
		return nil, name, fmt.Errorf("tensor %q: %w", name, err)
	}
	w.setGrid(g)
	if scales, err = l.scales(p, w.scaleCount()); err != nil {
		return nil, name, fmt.Errorf("tensor %q: %w", name, err)
	}
	largest := w.t.octets().Largest()
	for i, s := range scales {
		if most := s * largest; most-most != 0 || s < 0 {
			return nil, name, fmt.Errorf("tensor %q: scale %d is %g, want numbers of 0 or more whose products with %g are finite: %w", name, i, s, largest, snug.ErrCorrupt)
		}
	}
	return scales, name, nil
}

// fillOctets sets the scales of a weight of 8 bits, and its codes, which read gets, n from element first of the tensor on. A scale of 0
// is an error unless all its elements are 0: it would lose them.
func (l loader) fillOctets(w *Weight, name string, scales []float32, first, n int, read func(turn func([]byte)) error) (err error) {
	if n == 0 {
		return w.setOctets(l.dev, nil, nil)
	}
	if w.absmax, err = put(l.dev, scales); err != nil {
		return err
	}
	f, in := w.t.octets(), max(1, w.shape[1])
	zeros := slices.Contains(scales, 0)
	bad, lost, at := -1, -1, 0 // elements that are no number, or have lost their scale, and how many were looked at
	err = read(func(b []byte) {
		if i := notNumber(b, f); i >= 0 && bad < 0 {
			bad = at + i
		}
		for i := 0; zeros && lost < 0 && i < len(b); i++ {
			if e := at + i; f.Values[b[i]] != 0 && w.grid.of(e/in, in, scales)[e%in/w.grid.cols] == 0 {
				lost = e
			}
		}
		at += len(b)
	})
	switch {
	case err != nil:
	case bad >= 0:
		err = fmt.Errorf("element %d is NaN or infinite: %w", first+bad, snug.ErrCorrupt)
	case lost >= 0:
		err = fmt.Errorf("tensor %q: the scale of element %d is 0, and the element is not: %w", name, first+lost, snug.ErrCorrupt)
	}
	return err
}

// notNumber returns the first code that stands for no number, or -1.
func notNumber(codes []byte, f *octet.Format) int {
	first := -1
	for c := range 256 {
		if !f.Number(uint8(c)) {
			if i := bytes.IndexByte(codes, uint8(c)); i >= 0 && (first < 0 || i < first) {
				first = i
			}
		}
	}
	return first
}

// scale returns the tensor of the scales, which kindOf has seen.
func (l loader) scale(t Type) (name string, p safetensors.Place, err error) {
	names := []string{l.name + blockScale, l.name + otherScale}
	if t == INT8 {
		names = []string{rowScaleOf(l.name)}
	}
	for _, n := range names {
		switch q, found := l.w.set.Find(n); {
		case found && name != "":
			return "", p, fmt.Errorf("it has two tensors of scales, %q and %q: %w", name, n, snug.ErrCorrupt)
		case found:
			name, p = n, q
		}
	}
	return name, p, nil
}

// scaleGrid returns which elements of a matrix share a scale, from the shape of its scales: one for all, for each row,
// or for each block. Without [Weights.SetBlock] blocks are 128×128 if that gives the shape, and else divide the matrix.
func (w *Weights) scaleGrid(t *safetensors.Tensor, out, in int) (grid, error) {
	n, err := safetensors.Elements(t.Shape)
	if err != nil {
		return grid{}, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	column := len(t.Shape) == 1 || len(t.Shape) == 2 && t.Shape[1] == 1
	block, set := w.block, w.block != grid{}
	if !set {
		block = gridOf(FP8, ByBlock, out, in)
	}
	switch {
	case column && n == out:
		return gridOf(FP8, ByRow, out, in), nil
	case n == 1:
		return gridOf(FP8, ByTensor, out, in), nil
	case len(t.Shape) == 2 && n == block.count(out, in) && t.Shape[0] == cpu.Chunks(out, block.rows):
		return block, nil
	case !set && len(t.Shape) == 2 && n > 0 && out%t.Shape[0] == 0 && in%t.Shape[1] == 0:
		return grid{out / t.Shape[0], in / t.Shape[1]}, nil
	}
	return grid{}, fmt.Errorf("scales of shape %v for a weight [%d, %d], want one for all, for each row, or for each block of %d×%d: %w",
		t.Shape, out, in, block.rows, block.cols, snug.ErrCorrupt)
}

// scales reads a tensor of n scales as float32.
func (l loader) scales(p safetensors.Place, n int) ([]float32, error) {
	x, size := make([]float32, n), map[string]int{"F32": 4, "BF16": 2, "F16": 2, "F8_E8M0": 1, "U8": 1}[p.Tensor.DType]
	if size == 0 {
		return nil, fmt.Errorf("its type is %s, want F32, BF16, F16, F8_E8M0 or U8: %w", p.Tensor.DType, snug.ErrCorrupt)
	}
	b := make([]byte, n*size)
	if err := l.w.set.Read(p, b, 0); err != nil {
		return nil, err
	}
	for i := range x {
		switch p.Tensor.DType {
		case "F32":
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case "BF16":
			x[i] = snug.BFloat16(binary.LittleEndian.Uint16(b[2*i:])).Float32()
		case "F16":
			x[i] = half.F16ToFloat32(snug.Float16(binary.LittleEndian.Uint16(b[2*i:])))
		default:
			x[i] = float32(math.NaN())
			if b[i] != mxNaN {
				x[i] = powers[b[i]]
			}
		}
	}
	return x, nil
}

// checkRowFormat returns an error if INT8 codes are not in the order of rows: bitsandbytes can save them in the order
// of a GPU's tiles.
func (l loader) checkRowFormat() error {
	p, found := l.w.set.Find(strings.TrimSuffix(l.name, "weight") + rowFormat)
	if !found {
		return nil
	}
	var b [1]byte
	if p.Tensor.DType != "U8" || p.Tensor.End-p.Tensor.Begin != 1 {
		return fmt.Errorf("tensor %q is %d bytes of %s, want 1 of U8: %w", p.Tensor.Name, p.Tensor.End-p.Tensor.Begin, p.Tensor.DType, snug.ErrCorrupt)
	}
	if err := l.w.set.Read(p, b[:], 0); err != nil {
		return err
	}
	if b[0] != 0 {
		return fmt.Errorf("tensor %q is %d, want 0, which is the order of rows: %w", p.Tensor.Name, b[0], snug.ErrCorrupt)
	}
	return nil
}
