package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// This file has the matrices of the layers: which tensors they are, how they come to be quantized, and how Save writes
// them.

// isMatrix reports whether a tensor is the matrix of a linear layer: not an embedding, the head or a router.
// bitsandbytes quantizes these, and PEFT calls them "all-linear".
func (c *Config) isMatrix(t amp.Tensor) bool { return c.isMatrixIn(t, c.layout()) }

// isMatrixIn is isMatrix for a tensor of a folder with other names.
func (c *Config) isMatrixIn(t amp.Tensor, names layout) bool {
	name, inBody := strings.CutPrefix(t.Name, names.body)
	return len(t.Shape) == 2 && inBody && name != c.embedding() && name != c.positions() && t.Name != names.head && !c.isRouter(name) && !c.isPerLayer(name) && !c.isHeadNorm(name)
}

// quantizes reports whether a tensor is held in 4 or 8 bits.
func (m *Model) quantizes(t amp.Tensor) bool {
	return m.stored[t.Name] || m.options.Base != 0 && m.config.isMatrix(t)
}

// checkBase checks the options that say how matrices are held.
func (m *Model) checkBase() error {
	o, held := m.options, cmp.Or(m.options.Base, m.storedType)
	switch {
	case o.Base != 0 && o.Base.String() == "invalid":
		return fmt.Errorf("the option Base is %d, want 0 or a type of package qlora: %w", o.Base, snug.ErrConfig)
	}
	return m.checkPages(held)
}

// quantizer quantizes matrices, one after the other.
type quantizer struct {
	*Model
	whole      snug.View // room for the largest matrix; it lies on the CPU for GPT-2
	transposed snug.View // room for its transpose
	joined     snug.View // of loadSlot
	largest    int
}

func (m *Model) newQuantizer() (q *quantizer, err error) {
	q = &quantizer{Model: m}
	for i := range m.params {
		if p := &m.params[i]; q.wants(p) && !m.stored[p.Name] && !m.shared[p.Name] {
			q.largest = max(q.largest, p.Len())
		}
	}
	if q.largest == 0 {
		return q, nil
	}
	dev := m.dev
	if q.conv() {
		dev = snug.CPU()
		if q.transposed, err = m.stage(q.transposed, dev, q.largest); err != nil {
			return nil, err
		}
	}
	q.whole, err = m.stage(q.whole, dev, q.largest)
	return q, err
}

// stage returns memory of at least n elements of the model's type while it is opened or merged: what there is, or more.
func (m *Model) stage(have snug.View, dev *snug.Device, n int) (snug.View, error) {
	if have.Len() >= n {
		return have, nil
	}
	made, free, err := snug.MakeView(dev, m.dtype, n)
	if err != nil {
		return have, err
	}
	m.staging = append(m.staging, free)
	return made, nil
}

// conv reports whether matrices are [in, out].
func (m *Model) conv() bool { return m.config.names().conv }

// wants reports whether a parameter is quantized.
func (q *quantizer) wants(p *Param) bool { return q.isQuantized(p) }

// isQuantized reports whether a parameter is held in few bits, or will be.
func (m *Model) isQuantized(p *Param) bool {
	return p.Value.Len() == 0 && p.Len() > 0 && p.Pages == nil
}

// staging returns the memory from which put takes a matrix.
func (q *quantizer) staging(p *Param) snug.View { return part(q.whole, 0, p.Len()) }

// put quantizes a matrix.
func (q *quantizer) put(p *Param, v snug.View) (err error) {
	shape := p.Shape
	if q.conv() { // bitsandbytes quantizes the transposed matrix
		transposed := part(q.transposed, 0, v.Len())
		if err := transpose(transposed, v, shape[0], shape[1]); err != nil {
			return err
		}
		v, shape = transposed, []int{shape[1], shape[0]}
	}
	if v.Device() != q.dev {
		there, err := q.stage(snug.View{}, q.dev, v.Len())
		if err != nil {
			return err
		}
		if err := snug.Copy(there, v); err != nil {
			return err
		}
		v = there
	}
	if p.Quantized, err = q.quantize(v, shape, q.byModule[p.Name]); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return q.hold(p)
}

// load reads a matrix that the source has quantized.
func (q *quantizer) load(p *Param, from source) (err error) {
	if p.Quantized, err = from.quantized(q, p, q.dev); err != nil {
		return err
	}
	return q.hold(p)
}

// hold counts a quantized matrix, and moves it to the pages.
func (q *quantizer) hold(p *Param) error {
	if q.options.SaveOnly { // which closes it at once
		return nil
	}
	q.free = append(q.free, p.Quantized.Close)
	if q.options.Pages != nil {
		q.pagedBytes += p.Quantized.Bytes()
		return p.Quantized.Page(q.options.Pages, pageKey(p))
	}
	q.weightBytes += p.Quantized.Bytes()
	return nil
}

// pageKey returns the name of a matrix in Options.Pages.
func pageKey(p *Param) string { return "weights/" + p.Name }

// quantize returns a matrix in 4 bits, without the part that a fresh adapter takes over.
func (q *quantizer) quantize(v snug.View, shape []int, a *adapter) (*qlora.Weight, error) {
	o := qlora.Options{Type: q.options.Base}
	if a != nil && q.adapters.Start().Base != 0 {
		return a.StartLoftQ(v, o, 1)
	}
	if a != nil && a.first != nil {
		if err := q.startAdapter(a, v); err != nil {
			return nil, err
		}
	}
	return qlora.NewWeight(v, shape, o)
}

// freeStaging frees the memory that only loading needs.
func (m *Model) freeStaging() (err error) {
	for _, free := range m.staging {
		if e := free(); err == nil {
			err = e
		}
	}
	m.staging = nil
	return err
}

// transpose writes the transpose of src, [rows, cols] elements on the CPU, to dst. It works in
// tiles, whose cache lines stay in the first-level cache.
func transpose(dst, src snug.View, rows, cols int) error {
	switch src.DType() {
	case snug.F32:
		turn(snug.Host[float32](dst), snug.Host[float32](src), rows, cols)
	case snug.BF16:
		turn(snug.Host[snug.BFloat16](dst), snug.Host[snug.BFloat16](src), rows, cols)
	case snug.F16:
		turn(snug.Host[snug.Float16](dst), snug.Host[snug.Float16](src), rows, cols)
	default:
		return fmt.Errorf("a matrix of %s: %w", src.DType(), snug.ErrDType)
	}
	return nil
}

func turn[T any](dst, src []T, rows, cols int) {
	const tile = 32
	for i := 0; i < rows; i += tile {
		for j := 0; j < cols; j += tile {
			for r := i; r < min(i+tile, rows); r++ {
				for c := j; c < min(j+tile, cols); c++ {
					dst[c*rows+r] = src[r*cols+c]
				}
			}
		}
	}
}

// makeProducts makes the products by quantized matrices, which share a tile.
func (m *Model) makeProducts() error {
	for _, l := range m.layers {
		w := l.Weight.Quantized
		if w == nil {
			continue
		}
		var err error
		if m.tile == nil {
			l.Frozen, err = qlora.NewLinear(w, m.dtype, 0)
			m.tile = l.Frozen
		} else {
			l.Frozen, err = m.tile.Share(w)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Weight.Name, err)
		}
	}
	if m.tile != nil {
		m.free = append(m.free, m.tile.Close)
	}
	return nil
}

// merger makes the matrices of a model without adapters.
type merger struct {
	*Model
	whole   snug.View
	joined  snug.View           // of join
	members map[string][]*Param // parameters in tensors of all experts
	kept    *Param              // see keep
	lost    amp.LostUpdates     // of all adapters that were merged
}

// value returns the elements of a parameter of the base: a matrix in floats with its adapter merged.
func (g *merger) value(p *Param) (snug.View, error) {
	if l := g.matrices[p]; l != nil && (l.Adapter != nil || g.isQuantized(p)) {
		return g.matrix(l)
	}
	return g.keep(p)
}

// keep returns the elements of a parameter in floats, until the next parameter is made, or until close.
func (g *merger) keep(p *Param) (snug.View, error) {
	if err := g.close(); err != nil {
		return snug.View{}, err
	}
	w, err := p.Acquire()
	if err == nil {
		g.kept = p
	}
	return w, err
}

// close ends what keep has begun.
func (g *merger) close() error {
	p := g.kept
	if g.kept = nil; p == nil {
		return nil
	}
	return p.Release(false)
}

// matrix returns the matrix of a layer with its adapter merged, in the published layout.
func (g *merger) matrix(l *linear) (_ snug.View, err error) {
	if err := g.close(); err != nil {
		return snug.View{}, err
	}
	if l.Adapter != nil {
		if err := l.Adapter.Expand(); err != nil {
			return snug.View{}, err
		}
	}
	if _, in := l.Weight.Pages.(inFolder); in && g.options.SaveOnly { // nothing else has these elements
		w, err := g.keep(l.Weight)
		if err != nil {
			return w, err
		}
		return w, g.mergeInto(w, w, l)
	}
	n := l.In * l.Out
	dst, err := g.room(n)
	switch {
	case err != nil:
		return dst, err
	case !g.isQuantized(l.Weight):
		return dst, l.Weight.With(false, func(w snug.View) error { return g.mergeInto(dst, w, l) })
	}
	if err := g.decode(dst, l); err != nil || !l.Transposed {
		return dst, err
	}
	host, _, err := snug.MakeView(snug.CPU(), g.dtype, n)
	if err != nil {
		return dst, err
	}
	if err := snug.Copy(host, dst); err != nil {
		return dst, err
	}
	transposed, _, err := snug.MakeView(snug.CPU(), g.dtype, n)
	if err != nil {
		return dst, err
	}
	return transposed, transpose(transposed, host, l.Out, l.In)
}

// room returns memory for n elements of a matrix.
func (g *merger) room(n int) (_ snug.View, err error) {
	if g.options.SaveOnly {
		return g.folder.room(n)
	}
	if g.whole, err = g.stage(g.whole, g.dev, n); err != nil {
		return snug.View{}, err
	}
	return part(g.whole, 0, n), nil
}

// decode writes the elements of a matrix in few bits, [out, in], with its adapter merged.
func (g *merger) decode(dst snug.View, l *linear) (err error) {
	w := l.Weight.Quantized
	if w == nil {
		if w, err = g.folder.quantized(l.Weight); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
	}
	if l.Adapter == nil {
		return w.Dequantize(dst)
	}
	lost, err := qlora.Merge(dst, w, l.Adapter.LoRA, 0)
	if err != nil {
		return fmt.Errorf("merging the adapter of %s: %w", l.Weight.Name, err)
	}
	g.lost.Add(lost)
	return nil
}

// mergeInto merges the adapter of a matrix w in floats, and keeps its layout. dst may be w.
func (g *merger) mergeInto(dst, w snug.View, l *linear) error {
	d, err := qlora.NewDense(w, l.Out, l.In, l.Transposed)
	if err != nil {
		return err
	}
	lost, err := d.Merge(dst, l.Adapter.LoRA)
	if err := errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("merging the adapter of %s: %w", l.Weight.Name, err)
	}
	g.lost.Add(lost)
	return nil
}
