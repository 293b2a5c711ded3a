package layers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Window takes the gradients of parameters; an [accum.Window] is one, and every train.Window. Into returns the float32
// accumulator of a parameter, which has the parameter's length, and how a gradient enters it. A parameter that is used twice
// has two gradients, so further calls for the same name in one micro-batch must return a Beta of 1.
//
// If a Window is an [accum.Completer], its Done is called as soon as the gradient of a parameter is complete.
type Window = interface {
	Into(name string) (acc snug.View, into snug.Into, err error)
}

// Options are the options of a [Pass].
type Options struct {
	DType   snug.DType     // of weights and activations: F32, F16 or BF16; 0: F32. Sums and statistics are always float32.
	Device  *snug.Device   // where layers compute; nil: the CPU
	Seed    uint64         // of dropout, and of the first values of parameters
	Monitor *meter.Monitor // counts the bytes of tensors and limits them, unless nil
	Tiles   int            // an MLP runs in up to so many tiles of rows; 0 and 1: all rows at once
}

// Batch is the shape of a micro-batch, with its tokens and positions.
type Batch struct {
	Rows       int
	Sequences  int
	Used       int        // rows, from the first on, that are read in the end; others may stay uncomputed; 0: all
	Longest    int        // rows of the longest sequence
	Starts     []int      // unless nil, sequence i has the rows Starts[i] to Starts[i+1]-1; nil: all have Rows/Sequences
	Tokens     []int32    // [Rows]: the input of an [Embedding]
	Positions  []int32    // [Rows]: the place of each row in its sequence, from 0
	Embeddings Embeddings // vectors in place of those of some tokens
	// Spans are rows lo to hi-1 that see each other in both directions, besides causal attention, see [Batch.Span].
	Spans    [][2]int
	Prefixes bool // a Window hides no row of the span that a row is in
	// Parts, unless nil, divides the sequences further, for an [Attention] with Parts: part i has the rows Parts[i] to Parts[i+1]-1,
	// see [Batch.Part]. Without it a sequence is one part.
	Parts []int
	// Axes are the positions of each row in three axes, for a Rope with Sections; nil: all are Positions.
	Axes [][]int32
	// Reach is more than any position in Positions and Axes; 0: Longest.
	Reach int
	Group int    // rows that [Pass.Cost] assumes for the expert with the most rows; 0: twice the mean
	Draw  uint64 // with Options.Seed it determines the random numbers of dropout; below 2^48
}

// Shape sets Rows, Sequences, Longest, Starts and Positions, and clears Used, Embeddings, Spans, Prefixes, Parts, Axes and Reach. Without starts the
// rows are so many sequences of equal length, where 0 stands for 1. With starts, the argument sequences is ignored. The error
// wraps [snug.ErrShape].
func (c *Batch) Shape(rows, sequences int, starts []int) (err error) {
	defer fault.Named(&err, "layers: Shape")
	if c == nil || rows < 1 {
		return fmt.Errorf("%d rows, want 1 or more: %w", rows, snug.ErrShape)
	}
	c.Rows, c.Used, c.Sequences, c.Starts, c.Longest = rows, 0, max(1, sequences), starts, 0
	c.Embeddings, c.Spans, c.Prefixes, c.Parts, c.Axes, c.Reach = Embeddings{}, nil, false, nil, nil, 0
	c.Positions = c.Positions[:0]
	if starts == nil {
		if rows%c.Sequences != 0 {
			return fmt.Errorf("%d rows, want a multiple of %d sequences: %w", rows, c.Sequences, snug.ErrShape)
		}
		c.Longest = rows / c.Sequences
		for i := range rows {
			c.Positions = append(c.Positions, int32(i%c.Longest))
		}
		return nil
	}
	n := len(starts) - 1
	if n < 1 || starts[0] != 0 || starts[n] != rows {
		return fmt.Errorf("the batch has Starts %v, want 0 first and the %d rows last: %w", starts[:min(len(starts), 8)], rows, snug.ErrShape)
	}
	c.Sequences = n
	for i, lo := range starts[:n] {
		hi := starts[i+1]
		if hi <= lo || hi > rows {
			return fmt.Errorf("the batch has Starts[%d] = %d after %d, want more, and %d at most: %w", i+1, hi, lo, rows, snug.ErrShape)
		}
		c.Longest = max(c.Longest, hi-lo)
		for j := range hi - lo {
			c.Positions = append(c.Positions, int32(j))
		}
	}
	return nil
}

// Place sets Positions, Axes and Reach after Shape: one list has the position of each row, three have its positions in the axes of a
// Rope with Sections. It keeps three lists. The error wraps [snug.ErrShape] for another number of lists or of
// positions, and for one that is not 0 to most-1.
func (c *Batch) Place(positions [][]int32, most int) (err error) {
	defer fault.Named(&err, "layers: Place")
	if c == nil || len(positions) != 1 && len(positions) != 3 {
		return fmt.Errorf("positions in %d axes, want 1 or 3: %w", len(positions), snug.ErrShape)
	}
	reach := int32(0)
	for axis, list := range positions {
		if len(list) != c.Rows {
			return fmt.Errorf("axis %d has %d positions, want one for each of %d rows: %w", axis, len(list), c.Rows, snug.ErrShape)
		}
		for i, at := range list {
			if at < 0 || int(at) >= most {
				return fmt.Errorf("position %d of axis %d is %d, want 0 to %d: %w", i, axis, at, most-1, snug.ErrShape)
			}
			reach = max(reach, at)
		}
	}
	c.Positions, c.Reach, c.Axes = append(c.Positions[:0], positions[0]...), int(reach)+1, nil
	if len(positions) == 3 {
		c.Axes = positions
	}
	return nil
}

// Part sets Parts after Shape, and keeps the list. The error wraps [snug.ErrShape] unless the parts ascend from 0 to Rows, and each lies
// within a sequence.
func (c *Batch) Part(parts []int) (err error) {
	defer fault.Named(&err, "layers: Part")
	if c == nil || c.Longest < 1 || len(parts) < 2 || parts[0] != 0 || parts[len(parts)-1] != c.Rows {
		return fmt.Errorf("%d boundaries of parts, want 0 first and the rows of a batch last: %w", len(parts), snug.ErrShape)
	}
	sequence := 0
	for i, hi := range parts[1:] {
		if hi <= parts[i] || hi > c.Rows || hi > c.end(sequence) {
			return fmt.Errorf("part %d is rows %d to %d, want a row or more within sequence %d: %w", i, parts[i], hi-1, sequence, snug.ErrShape)
		}
		if hi == c.end(sequence) {
			sequence++
		}
	}
	c.Parts = parts
	return nil
}

// reach returns more than any position.
func (c *Batch) reach() int { return cmp.Or(c.Reach, c.Longest) }

// Pass is what layers compute in: the batch, memory for activations, the window of gradients, and the first error. After an
// error the layers do nothing. Memory grows to the needs of the largest batch and stays, so that a batch which is not larger than
// an earlier one allocates nothing on the CPU. A Pass is not safe for concurrent use.
type Pass struct {
	pool
	Options
	Batch  Batch
	Window Window // takes the gradients; nil in evaluation
	Err    error  // the first error of an operation
	Number uint64 // version of the parameters: raise it when their values have changed

	ctx               context.Context
	recomputes        bool // a backward step computes outputs again
	tile              tile
	ws, sunk, discard scratch
	ones, plusOne     scratch // 1, and 1+w of the norm that computes
	zeros             scratch
	macs              float64 // multiply-adds that a counting pass has seen
	routed            routed
	sets              []Saved // freed sets, to use again
	kept              []*Tensor
	batches           uint64 // how many have begun
	masks             []spanMask
	owned             []*scratch // of layers, which Close frees
}

// NewPass returns a Pass. The error wraps [snug.ErrDType] or [snug.ErrConfig].
func NewPass(o Options) (*Pass, error) {
	if o.DType = cmp.Or(o.DType, snug.F32); !o.DType.IsFloat() {
		return nil, fmt.Errorf("layers: NewPass: DType is %s, want f32, f16 or bf16: %w", o.DType, snug.ErrDType)
	}
	if o.Tiles < 0 || o.Tiles > math.MaxInt32 {
		return nil, fmt.Errorf("layers: NewPass: Tiles is %d, want 0 to 2^31-1: %w", o.Tiles, snug.ErrConfig)
	}
	o.Device = cmp.Or(o.Device, snug.CPU())
	p := &Pass{Options: o, ctx: context.Background(), pool: pool{dev: o.Device, monitor: o.Monitor}}
	for _, s := range []*scratch{&p.ws, &p.sunk, &p.discard} {
		*s = scratch{dev: o.Device, dt: snug.F32}
	}
	for _, s := range []*scratch{&p.ones, &p.plusOne, &p.zeros} {
		*s = scratch{dev: o.Device, dt: o.DType}
	}
	return p, nil
}

// counting returns a Pass with the options of p for a dry run, which computes and allocates nothing but counts the bytes of tensors.
func (p *Pass) counting(b Batch) *Pass {
	c := &Pass{Options: p.Options, Batch: b, pool: pool{dev: p.dev, counts: true}, ctx: context.Background()}
	c.Monitor = nil
	c.rows = b.Rows
	return c
}

// Begin prepares for p.Batch: it clears the error and the peak of tensors in bytes.
func (p *Pass) Begin() {
	p.tile, p.Err, p.recomputes = tile{}, nil, false
	p.batches++
	p.Err = p.dropMasks()
	p.pool.begin(p.Batch.Rows)
}

// Start prepares for a step of a stage, which runs under ctx: it clears the error of the step before, and the tile.
func (p *Pass) Start(ctx context.Context) *Pass {
	p.ctx, p.Err, p.tile = ctx, nil, tile{}
	return p
}

// FirstPass is [remat.FirstPass] of the step that runs: whether a layer computes its output for the first time for the rows
// of the batch, and not again in the backward pass. A layer with running averages asks in an operation of Do, and updates
// them where Window is set.
func (p *Pass) FirstPass() bool { return !p.recomputes && remat.FirstPass(p.ctx) }

// again calls do, in which FirstPass is false.
func (p *Pass) again(do func()) {
	before := p.recomputes
	p.recomputes = true
	do()
	p.recomputes = before
}

// Failed returns the first error.
func (p *Pass) Failed() error {
	p.Err = cmp.Or(p.Err, p.pool.err)
	return p.Err
}

// Fail keeps an error that Start does not clear: the pass fails until Begin.
func (p *Pass) Fail(err error) { p.pool.err = cmp.Or(p.pool.err, err) }

// made reports whether NewPass or counting made a pass.
func (p *Pass) made() bool { return p != nil && p.pool.made() }

// Do calls call unless there was an error, and keeps its error.
func (p *Pass) Do(call func() error) {
	if p.made() && p.Failed() == nil && !p.counts {
		p.Err = call()
	}
}

// refuses reports whether a layer cannot run on x, which it then says in the error of the pass.
func (p *Pass) refuses(l Layer, x *Tensor) bool {
	if !p.made() {
		return true
	}
	if _, err := l.Width(p.width(x)); err != nil {
		p.Err = cmp.Or(p.Failed(), err)
	}
	return p.Err != nil
}

// width returns the elements of a row of an activation.
func (p *Pass) width(x *Tensor) int {
	if x == nil || p.rows == 0 {
		return 0
	}
	return int(x.Bytes() / int64(p.rows) / int64(p.DType.Size()))
}

// zero returns n elements that are 0.
func (p *Pass) zero(n int) (snug.View, error) {
	if err := p.zeros.grow(n); err != nil {
		return snug.View{}, err
	}
	v := part(p.zeros.v, 0, n)
	return v, multiply(v, n, 0)
}

// Chosen returns the experts that the last [Experts] chose, so many for each row, until the next does.
func (p *Pass) Chosen() []int32 { return p.routed.chosen }

// Rows returns the rows that layers compute now: of the batch, of a tile, or of a group.
func (p *Pass) Rows() int { return p.rows }

// Get returns an activation of so many elements a row, with arbitrary contents. It belongs to the caller until Put.
func (p *Pass) Get(width int) *Tensor { return p.pool.get(p.DType, width) }

// Stat is Get for float32 numbers.
func (p *Pass) Stat(width int) *Tensor { return p.pool.get(snug.F32, width) }

// Workspace returns float32 memory of at least n elements, which the next operation overwrites.
func (p *Pass) Workspace(n int) (snug.View, error) {
	err := p.ws.grow(n)
	return p.ws.v, err
}

// WorkspaceBytes returns the bytes of memory besides tensors.
func (p *Pass) WorkspaceBytes() int64 {
	return p.ws.bytes() + p.sunk.bytes() + p.discard.bytes() + p.ones.bytes() + p.plusOne.bytes() + p.zeros.bytes() + p.maskBytes()
}

// Close frees the memory of a device.
func (p *Pass) Close() error {
	p.PutAll()
	var err error
	for _, s := range p.owned {
		err = errors.Join(err, s.close())
	}
	p.owned = nil
	return errors.Join(err, p.dropMasks(), p.pool.close(), p.ws.close(), p.sunk.close(), p.discard.close(), p.ones.close(), p.plusOne.close(), p.zeros.close())
}

// GrowOnes makes room for norms of up to n elements that multiply by 1+w.
func (p *Pass) GrowOnes(n int) error {
	if n <= p.ones.v.Len() {
		return nil
	}
	if err := cmp.Or(p.ones.grow(n), p.plusOne.grow(n)); err != nil {
		return err
	}
	return p.set(p.ones.v, slices.Repeat([]float32{1}, n))
}

// GrowSinks makes room for the sinks of attention with so many heads.
func (p *Pass) GrowSinks(heads int) error { return p.sunk.grow(2 * heads) }

// Gradient returns the accumulator of a parameter and how the gradient of this micro-batch enters it. The accumulator
// of a frozen parameter is empty.
func (p *Pass) Gradient(w *Param) (snug.View, snug.Into, error) {
	if w == nil || !w.Trains {
		return none32, snug.Into{}, nil
	}
	if p.Window == nil {
		return none32, snug.Into{}, fmt.Errorf("the window is nil: %w", snug.ErrConfig)
	}
	acc, into, err := p.Window.Into(w.Name)
	if err != nil {
		return none32, into, err
	}
	if acc.DType() != snug.F32 || acc.Len() != w.Len() {
		return none32, into, fmt.Errorf("the window's accumulator of %s has %d %s, want %d f32: %w",
			w.Name, acc.Len(), acc.DType(), w.Len(), snug.ErrShape)
	}
	return acc, into, nil
}

// Done tells the window that the gradients of parameters are complete, once no tile follows.
func (p *Pass) Done(list ...*Param) {
	c, learns := p.Window.(accum.Completer)
	if p.tile.more || !learns {
		return
	}
	for _, w := range list {
		if w == nil || !w.Trains {
			continue
		}
		if w.used++; w.used < w.uses {
			continue
		}
		w.used = 0
		p.Do(func() error { return c.Done(w.Name) })
	}
}

// copyTo computes y = x.
func (p *Pass) copyTo(y, x *Tensor) {
	p.Do(func() error { return snug.Copy(y.View, x.View) })
}

var none32 = snug.ViewOf([]float32(nil))

func viewOf(t *Tensor) snug.View {
	if t == nil {
		return none32
	}
	return t.View
}

// scratch is a vector that grows.
type scratch struct {
	dev  *snug.Device
	dt   snug.DType
	v    snug.View
	free func() error
}

// grow makes room for n elements. Their contents are arbitrary afterwards.
func (s *scratch) grow(n int) error {
	if n <= s.v.Len() {
		return nil
	}
	if err := s.close(); err != nil {
		return err
	}
	v, free, err := snug.MakeView(s.dev, s.dt, n)
	if err != nil {
		return err
	}
	s.v, s.free = v, free
	return nil
}

func (s *scratch) bytes() int64 { return int64(s.v.Bytes()) }

func (s *scratch) close() error {
	if s.free == nil {
		return nil
	}
	err := s.free()
	s.v, s.free = snug.View{}, nil
	return err
}
