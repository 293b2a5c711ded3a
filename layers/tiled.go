package layers

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// Tiled runs a layer on so many rows at a time, such as the frames of one clip, and keeps its output alone: the backward step
// computes what the layer saves again, tile by tile, so that the saved set of one tile exists at a time. Each row must not depend on
// rows of other tiles. An attention does not if Rows is a multiple of a sequence's, which all have one length then, or if one tile has
// all rows; for other batches a Tiled of an attention is an error that wraps [snug.ErrShape]. Gradients
// of parameters are sums of tiles: their last bits depend on Rows.
//
// Layers within it must not draw random numbers, as [Dropout] does, nor measure all rows, as a [BatchNorm] does that is not Frozen, nor
// see a [Source].
// [Options.Tiles] does not hold for them.
type Tiled struct {
	Layer
	Rows int
}

func (l Tiled) inside() []Layer { return []Layer{l.Layer} }

// Width implements [Layer].
func (l Tiled) Width(in int) (int, error) {
	if l.Layer == nil || l.Rows < 1 {
		return 0, fmt.Errorf("layers: a Tiled without a layer, or of %d rows: %w", l.Rows, snug.ErrConfig)
	}
	if why := untiledIn(l.Layer); why != "" {
		return 0, fmt.Errorf("layers: a Tiled of %s: %w", why, snug.ErrConfig)
	}
	return l.Layer.Width(in)
}

// untiled is a layer that computes something else for a tile. It says which and why, or nothing if it does not.
type untiled interface{ untiled() string }

// untiledIn returns what an untiled layer says that is l or in it.
func untiledIn(l Layer) (why string) {
	switch l := l.(type) {
	case untiled:
		return l.untiled()
	case interface{ inside() []Layer }:
		for _, l := range l.inside() {
			why = cmp.Or(why, untiledIn(l))
		}
	}
	return why
}

// attends reports whether rows of a sequence depend on each other in a layer.
func attends(l Layer) bool {
	switch l := l.(type) {
	case *Attention, *ShortConv, *DeltaNet, *Mamba2, *Latent:
		return true
	case interface{ inside() []Layer }:
		return slices.ContainsFunc(l.inside(), attends)
	}
	return false
}

// fits returns an error if tiles of a batch would cut sequences in which rows see each other.
func (l Tiled) fits(c Batch) error {
	if (len(c.Spans) > 0 || c.Parts != nil) && l.Rows < c.Rows && attends(l.Layer) {
		return fmt.Errorf("layers: a Tiled with an Attention, and spans or parts, which it does not cut: %w", snug.ErrConfig)
	}
	if l.Rows >= c.Rows || c.Longest == 1 || c.Starts == nil && l.Rows%c.Longest == 0 || !attends(l.Layer) {
		return nil
	}
	return fmt.Errorf("layers: a Tiled of %d rows with an Attention, want a multiple of sequences that all have one length, of up to %d rows: %w", l.Rows, c.Longest, snug.ErrShape)
}

// Params implements [Layer].
func (l Tiled) Params(yield func(*Param) bool) {
	if l.Layer != nil {
		l.Layer.Params(yield)
	}
}

// each calls do for each tile, whose rows are the batch of the pass meanwhile.
func (l Tiled) each(p *Pass, do func(lo int)) {
	batch, tiles := p.Batch, p.Options.Tiles
	p.Options.Tiles = 0
	p.Do(func() error { return l.fits(batch) })
	for lo := 0; lo < batch.Rows; lo += l.Rows {
		if p.Err = cmp.Or(p.Failed(), p.ctx.Err()); p.Err != nil {
			break
		}
		n := min(l.Rows, batch.Rows-lo)
		p.Batch = batch.rows(lo, n)
		p.tile.more = lo+n < batch.Rows
		p.rows = n
		do(lo)
	}
	p.Batch, p.Options.Tiles, p.tile = batch, tiles, tile{}
	p.rows = batch.Rows
}

// rows returns the batch of n rows from lo on: of whole sequences, if it is that, or else of as many sequences as rows.
func (c Batch) rows(lo, n int) Batch {
	if n == c.Rows {
		return c
	}
	part := Batch{Rows: n, Sequences: n, Longest: 1, Group: c.Group, Draw: c.Draw}
	if c.Starts == nil && n%c.Longest == 0 && lo%c.Longest == 0 {
		part.Sequences, part.Longest = n/c.Longest, c.Longest
	}
	if len(c.Tokens) == c.Rows {
		part.Tokens = c.Tokens[lo:][:n]
	}
	part.Embeddings = c.Embeddings.Part(lo, n)
	if len(c.Positions) == c.Rows {
		part.Positions = c.Positions[lo:][:n]
	}
	part.Reach = c.Reach
	for _, list := range c.Axes {
		part.Axes = append(part.Axes, list[lo:][:n])
	}
	return part
}

// rowsAt returns the rows of the tile from lo on of a tensor of all rows, whose memory it borrows.
func (Tiled) rowsAt(p *Pass, whole *Tensor, width, lo int) *Tensor {
	if p.counts {
		return &Tensor{buffer: &buffer{bytes: int64(p.DType.Size()) * int64(p.rows) * int64(width)}}
	}
	return &Tensor{View: part(whole.View, lo*width, p.rows*width)}
}

// Forward implements [Layer].
func (l Tiled) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	in := p.width(x)
	out, _ := l.Width(in)
	y := p.Get(out)
	l.each(p, func(lo int) {
		part := l.Layer.Forward(p, l.rowsAt(p, x, in, lo))
		p.copyTo(l.rowsAt(p, y, out, lo), part)
		p.Put(part)
	})
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (l Tiled) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, l, x) }

// Backward implements [Layer].
func (l Tiled) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	in := p.width(x)
	out, _ := l.Width(in)
	dx := p.Get(in)
	l.each(p, func(lo int) {
		rows := l.rowsAt(p, x, in, lo)
		var saved Saved
		p.again(func() { _, saved = l.Layer.ForwardSave(p, rows) })
		d := p.Get(out)
		p.copyTo(d, l.rowsAt(p, dy, out, lo))
		d = l.Layer.Backward(p, rows, saved, d)
		p.copyTo(l.rowsAt(p, dx, in, lo), d)
		p.Put(d)
		p.ReleaseSaved(saved)
	})
	p.Put(dy)
	return dx
}
