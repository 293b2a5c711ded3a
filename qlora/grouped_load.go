package qlora

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/sweep"
)

// The ends of the names of tensors, in place of "weight".
const groupCodes, groupZeros, groupScales, groupColumns = "qweight", "qzeros", "scales", "g_idx"

// awqOrder is which of 8 outputs each code of an element has.
var awqOrder = [8]int{0, 2, 4, 6, 1, 3, 5, 7}

// loadGroups reads a weight in groups. On the host it takes the size of the codes, and 8 bytes a scale, beside the weight.
func (l loader) loadGroups(w *Weight, codes safetensors.Place) error {
	if !l.dev.IsCPU() {
		return fmt.Errorf("a grouped weight on %s, want the CPU: %w", l.dev.Name(), snug.ErrDevice)
	}
	if l.w.groups.Layout.byRows() {
		return l.loadRowGroups(w, codes)
	}
	g, module := l.w.groups, strings.TrimSuffix(codes.Tensor.Name, groupCodes)
	per, shape := 32/g.Bits, codes.Tensor.Shape
	if codes.Tensor.DType != "I32" || len(shape) != 2 {
		return fmt.Errorf("tensor %q is %s %v, want I32 of two dimensions: %w", codes.Tensor.Name, codes.Tensor.DType, shape, snug.ErrCorrupt)
	}
	in, out := shape[0]*per, shape[1]
	if g.Layout == AWQ {
		in, out = shape[0], shape[1]*per
	}
	size := g.Size
	if size == -1 {
		size = in
	}
	n, err := safetensors.Elements([]int{out, in})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	case n == 0 || in%nibble.Step != 0 || out%per != 0:
		return fmt.Errorf("a weight of %d outputs and %d inputs, want a multiple of %d and of %d: %w", out, in, per, nibble.Step, snug.ErrCorrupt)
	}
	count := (in-1)/size + 1
	w.shape, w.n, w.groups = []int{out, in}, n, &groups{wide: g.Bits == 8}
	scales, err := l.groupScales(w, module+groupScales, count, out)
	if err != nil {
		return err
	}
	zeros, err := l.integers(module+groupZeros, count, out/per)
	if err != nil {
		return err
	}
	columns := module + groupColumns
	if _, found := l.w.set.Find(columns); g.Ordered && !found {
		return fmt.Errorf("the file has no tensor %q, and inputs are not in the order of their groups: %w", columns, snug.ErrCorrupt)
	}
	if g.Layout != AWQ || in%size != 0 {
		w.groups.columns, err = l.columns(columns, in, size, count)
	}
	if err != nil {
		return err
	}
	w.groups.sort(size, count)
	w.setGroups(scales, unpackZeros(zeros, g, count, out), size, count)
	words, err := l.integers(codes.Tensor.Name, shape...)
	if err != nil {
		return err
	}
	packed := make([]uint8, w.codeBytes())
	if g.Layout == AWQ {
		unpackAWQ(packed, words, out, in)
	} else {
		unpackGPTQ(packed, words, out, in, g.Bits)
	}
	w.packed = snug.FromSlice(packed)
	if w.groups.order != nil {
		orderTask.Run(out, orderArgs{packed, w.groups.order})
	}
	return nil
}

// sort makes columns lie in the order of their groups, if all groups have a size that the loops over blocks take.
func (g *groups) sort(size, count int) {
	if g.columns == nil || g.wide || size%nibble.Step != 0 || len(g.columns) != size*count {
		return
	}
	order, next := make([]int32, len(g.columns)), make([]int, count)
	for i, at := range g.columns {
		if next[at] == size {
			return
		}
		order[int(at)*size+next[at]] = int32(i)
		next[at]++
	}
	g.order, g.columns = order, nil
}

// orderArgs are rows of 4-bit codes whose columns are put in an order.
type orderArgs struct {
	packed []uint8
	order  []int32
}

var orderTask = cpu.NewTask(func(a *orderArgs, row int) {
	n := len(a.order)
	codes := a.packed[row*n/2:][:n/2]
	tile := tiles.Get((n + 7) / 8)
	defer tiles.Put(tile)
	old := unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(*tile))), n/2)
	copy(old, codes)
	for k := 0; k < n; k += 2 {
		i, j := a.order[k], a.order[k+1]
		codes[k/2] = old[i/2]<<(4*(i&1))&0xf0 | old[j/2]>>(4-4*(j&1))&0xf
	}
})

// groupScales reads scales, [groups, out].
func (l loader) groupScales(w *Weight, name string, shape ...int) ([]float32, error) {
	p, found := l.w.set.Find(name)
	if !found || !slices.Equal(p.Tensor.Shape, shape) {
		return nil, l.wrongShape(name, "F16, BF16 or F32", shape)
	}
	types := map[string]snug.DType{"F32": snug.F32, "F16": snug.F16, "BF16": snug.BF16}
	if w.dtype = types[p.Tensor.DType]; w.dtype == 0 {
		return nil, l.wrongShape(name, "F16, BF16 or F32", shape)
	}
	n, err := safetensors.Elements(shape)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	x, err := l.scales(p, n)
	if err != nil {
		return nil, err
	}
	if i := sweep.First(snug.SliceView(x), 1, sweep.Infinity); i >= 0 {
		return nil, fmt.Errorf("tensor %q: element %d is NaN or infinite: %w", name, i, snug.ErrCorrupt)
	}
	return x, nil
}

func (l loader) wrongShape(name, types string, shape []int) error {
	p, found := l.w.set.Find(name)
	if !found {
		return fmt.Errorf("the file has no tensor %q: %w", name, snug.ErrCorrupt)
	}
	return fmt.Errorf("tensor %q is %s %v, want %s of %v: %w", name, p.Tensor.DType, p.Tensor.Shape, types, shape, snug.ErrCorrupt)
}

// integers reads a tensor of int32.
func (l loader) integers(name string, shape ...int) ([]uint32, error) {
	p, found := l.w.set.Find(name)
	if !found || p.Tensor.DType != "I32" || !slices.Equal(p.Tensor.Shape, shape) {
		return nil, l.wrongShape(name, "I32", shape)
	}
	b := make([]byte, p.Tensor.End-p.Tensor.Begin)
	if err := l.w.set.Read(p, b, 0); err != nil {
		return nil, err
	}
	x := make([]uint32, len(b)/4)
	for i := range x {
		x[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return x, nil
}

// columns reads which group each input has. It returns nil if they follow one another in whole groups.
func (l loader) columns(name string, in, size, count int) ([]int32, error) {
	of, ordered := make([]int32, in), in%size == 0
	for i := range of {
		of[i] = int32(i / size)
	}
	if _, found := l.w.set.Find(name); found {
		read, err := l.integers(name, in)
		if err != nil {
			return nil, err
		}
		for i, at := range read {
			if at >= uint32(count) {
				return nil, fmt.Errorf("tensor %q: element %d is %d, and there are %d groups: %w", name, i, int32(at), count, snug.ErrCorrupt)
			}
			ordered = ordered && of[i] == int32(at)
			of[i] = int32(at)
		}
	}
	if ordered {
		return nil, nil
	}
	return of, nil
}

// unpackZeros returns the zero points, [groups, out].
func unpackZeros(words []uint32, g Groups, count, out int) []uint8 {
	per, mask := 32/g.Bits, uint32(1)<<g.Bits-1
	zeros := make([]uint8, count*out)
	for i, v := range words {
		for j := range per {
			at, zero := j, v>>(g.Bits*j)&mask
			switch g.Layout {
			case AWQ:
				at = awqOrder[j]
			case GPTQ:
				zero = (zero + 1) & mask
			}
			zeros[i*per+at] = uint8(zero)
		}
	}
	return zeros
}

// setGroups sets scales and zero points, which are [groups, out]. Groups that follow one another become blocks of a power of two.
func (w *Weight) setGroups(scales []float32, zeros []uint8, size, count int) {
	g, out, in := w.groups, w.shape[0], w.shape[1]
	w.block, g.across = size, count
	if g.columns == nil {
		w.block = min(size&-size, MaxBlock)
		g.across = in / w.block
	}
	s, z := make([]float32, out*g.across), make([]uint8, out*g.across)
	for o := range out {
		for i := range g.across {
			at := i
			if g.columns == nil {
				at = i * w.block / size
			}
			s[o*g.across+i], z[o*g.across+i] = scales[at*out+o], zeros[at*out+o]
		}
	}
	w.absmax = snug.FromSlice(s)
	g.zeros = g.wide || w.block < nibble.Step || slices.ContainsFunc(z, func(v uint8) bool { return v != middle })
	if g.zeros {
		w.codes = snug.FromSlice(z)
	}
}

// unpackGPTQ writes codes row by row. Elements of words are [in/per, out].
func unpackGPTQ(packed []uint8, words []uint32, out, in, bits int) {
	per, mask := 32/bits, uint32(1)<<bits-1
	const tile = 16 // a line of the cache for each output
	for lo := 0; lo < in/per; lo += tile {
		for o := range out {
			for r := lo; r < min(lo+tile, in/per); r++ {
				v, at := words[r*out+o], o*in+r*per
				switch bits {
				case 4:
					const low = 0x0f0f0f0f
					binary.LittleEndian.PutUint32(packed[at/2:], v>>4&low|v&low<<4)
				case 8:
					binary.LittleEndian.PutUint32(packed[at:], v)
				default:
					for j := 0; j < per; j += 2 {
						packed[(at+j)/2] = uint8(v>>(bits*j)&mask<<4 | v>>(bits*(j+1))&mask)
					}
				}
			}
		}
	}
}

// unpackAWQ writes codes row by row. Elements of words are [in, out/8].
func unpackAWQ(packed []uint8, words []uint32, out, in int) {
	const tile = 64
	for lo := 0; lo < in; lo += tile {
		for c := range out / 8 {
			for i := lo; i < min(lo+tile, in); i += 2 {
				a, b := words[i*(out/8)+c], words[(i+1)*(out/8)+c]
				for k, o := range awqOrder {
					packed[((8*c+o)*in+i)/2] = uint8(a>>(4*k)&15<<4 | b>>(4*k)&15)
				}
			}
		}
	}
}
