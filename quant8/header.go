package quant8

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/state"
)

// header returns the bytes that are saved before the states.
func (a *Optimizer) header() *state.Optimizer {
	h := &state.Optimizer{Rule: a.o.Title, Numbers: a.o.method.numbers(a), OptimizerFixed: state.OptimizerFixed{
		Bits: uint32(a.o.Bits), Block: uint32(a.o.Block), Chunk: uint64(a.o.Chunk), MinSize: uint64(a.o.MinSize),
		Step: uint64(a.t), LR: a.lr, Fold: a.fold.OptimizerFold, Maps: a.maps.entries(),
	}}
	mid := a.midStep()
	for _, name := range a.names() {
		q := a.params[name]
		p := state.OptimizerParam{Name: name, OptimizerParamFixed: state.OptimizerParamFixed{
			Total: uint64(q.total), Lo: uint64(q.lo), N: uint64(q.n), Bits: uint32(q.bits),
			Rows: uint64(q.rows), Cols: uint64(q.cols), Bytes: uint64(q.stateBytes(q.layout, q.n)),
		}}
		if mid {
			p.Marks = string(q.marks.Bits())
		}
		h.Params = append(h.Params, p)
	}
	return h
}

// entries returns the two maps.
func (c *codeMaps) entries() (maps [2][256]float32) {
	for i := range maps {
		maps[i] = *c.encoder(i).Map()
	}
	return maps
}

// saved is what a header holds.
type saved struct {
	optimizer                   string
	bits, block, chunk, minSize uint64
	step                        int
	lr                          float32
	fold                        state.OptimizerFold
	numbers                     []float64
	maps                        codeMaps
	params                      []savedParam // by ascending names
}

// savedParam is a shard of n elements from element lo of a parameter of total elements,
// with the width of its states. A matrix also has rows and columns.
type savedParam struct {
	name               string
	total, lo, n, bits int
	rows, cols         int
	bytes              int64
	marks              string // bits of the chunks, or empty if all are updated
}

// readHeader reads everything before the states.
func (a *Optimizer) readHeader(d *state.Decoder) (*saved, error) {
	if err := a.made(); err != nil {
		return nil, err
	}
	o := d.GetOptimizer(SavedNumbers)
	h := &saved{
		optimizer: o.Rule, bits: uint64(o.Bits), block: uint64(o.Block), chunk: o.Chunk, minSize: o.MinSize,
		step: int(o.Step), lr: o.LR, fold: o.Fold, numbers: o.Numbers,
	}
	if !validRate(h.lr) || h.chunk == 0 || h.chunk > maxChunk {
		d.Corrupt("a learning rate of %v, chunks of %d elements", h.lr, h.chunk)
	}
	for i, x := range o.Numbers {
		if o.Rule == a.o.Title && !a.o.method.valid(i, x, o.Step) {
			d.Corrupt("the number %g of %s", x, o.Rule)
		}
	}
	var total int64
	for _, p := range o.Params {
		s := savedParam{
			p.Name, int(p.Total), int(p.Lo), int(p.N), int(p.Bits), int(p.Rows), int(p.Cols), int64(p.Bytes), p.Marks,
		}
		if !knownWidth(s.bits) {
			d.Corrupt("parameter %q in %d bits", s.name, s.bits)
		}
		if d.Err == nil && s.marks != "" && !optim.ValidBits([]byte(s.marks), Blocks(s.n, int(h.chunk))) {
			d.Corrupt("parameter %q with %d bytes of marks", s.name, len(s.marks))
		}
		total += s.bytes
		h.params = append(h.params, s)
	}
	if d.Data(total); d.Err != nil {
		return nil, d.Err
	}
	first, second := Map(o.Maps[0]), Map(o.Maps[1])
	if err := checkCodeMaps(&first, &second, a.o.NearestCodes, a.o.hyper.Rule); err != nil {
		return nil, fmt.Errorf("saved maps: %w", err)
	}
	h.maps = newCodeMaps(&first, &second, a.o.NearestCodes)
	return h, nil
}

// checkOptions compares the saved options with the options of a, field by field. Shards
// may be saved in chunks of another size.
func (a *Optimizer) checkOptions(h *saved, sameChunk bool) error {
	if h.optimizer != a.o.Title {
		return fmt.Errorf("saved by %q, this optimizer is %s: %w", h.optimizer, a.o.Title, snug.ErrConfig)
	}
	options := []struct {
		name      string
		got, want uint64
	}{
		{"Bits", h.bits, uint64(a.o.Bits)},
		{"Block", h.block, uint64(a.o.Block)},
		{"MinSize", h.minSize, uint64(a.o.MinSize)},
		{"Chunk", h.chunk, uint64(a.o.Chunk)},
	}
	if !sameChunk {
		options = options[:3]
	}
	for _, o := range options {
		if o.got != o.want {
			return fmt.Errorf("saved with %s = %d, this optimizer has %d: %w", o.name, o.got, o.want, snug.ErrConfig)
		}
	}
	return nil
}

// checkSame says whether the state is one of an optimizer like a.
func (a *Optimizer) checkSame(h *saved) error {
	if err := a.checkOptions(h, true); err != nil {
		return err
	}
	if len(h.params) != len(a.params) {
		return fmt.Errorf("saved with %d parameters, this optimizer has %d: %w", len(h.params), len(a.params), snug.ErrConfig)
	}
	for i, name := range a.names() {
		q, p := a.params[name], h.params[i]
		if p.name != name || p.lo != q.lo || p.n != q.n || p.total != q.total {
			return fmt.Errorf("saved with parameter %q, %d elements from %d on of %d, this optimizer has %q, %d from %d on of %d: %w",
				p.name, p.n, p.lo, p.total, name, q.n, q.lo, q.total, snug.ErrConfig)
		}
		if err := a.checkForms(&p, q); err != nil {
			return err
		}
	}
	return nil
}

// checkForms compares the width of the states, and the rows and columns, with q. q is nil
// for a parameter that the optimizer lacks.
func (a *Optimizer) checkForms(p *savedParam, q *param) error {
	switch {
	case q != nil && p.bits != q.bits:
		return fmt.Errorf("saved with parameter %q in %d bits, this optimizer has it in %d: %w", p.name, p.bits, q.bits, snug.ErrConfig)
	case q != nil && (p.rows != q.rows || p.cols != q.cols):
		return fmt.Errorf("saved with parameter %q of %d×%d elements, this optimizer has %d×%d: %w", p.name, p.rows, p.cols, q.rows, q.cols, snug.ErrConfig)
	}
	e, err := a.o.savedEngine(p)
	if err != nil {
		return fmt.Errorf("saved with parameter %q %w", p.name, err)
	}
	f, option := e.keeps(), e.option()
	want := f.stateBytes(a.o.layoutOf(p.bits, f), p.n)
	switch {
	case f.alone && p.n != p.total:
		return fmt.Errorf("saved with %d elements of parameter %q, want all %d: %w", p.n, p.name, p.total, snug.ErrCorrupt)
	case p.bytes != want && option != "":
		return fmt.Errorf("saved with parameter %q in %d bytes, and with %s it has %d: %w", p.name, p.bytes, option, want, snug.ErrConfig)
	case p.bytes != want:
		return fmt.Errorf("saved with parameter %q in %d bytes, want %d: %w", p.name, p.bytes, want, snug.ErrCorrupt)
	case q != nil && option != q.engine.option():
		return fmt.Errorf("saved with parameter %q with %s, this optimizer has %s: %w", p.name, option, q.engine.option(), snug.ErrConfig)
	}
	return nil
}

// savedEngine returns the engine of a saved parameter.
func (o *options) savedEngine(p *savedParam) (engine, error) {
	return o.method.engine(o, added{n: p.n, rows: p.rows, cols: p.cols, bits: p.bits, saved: p.bytes})
}
