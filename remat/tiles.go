package remat

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
)

// Tiles is a [Stage] that runs another stage tile by tile. It is for a stage whose rows do not depend on
// each other: an MLP, a norm, the head of a model, but not attention. With n tiles the memory of the
// other's saved set, and its transient memory in both passes, is divided by n, since a pass holds that of
// one tile at a time; a run counts the values of this tile in its peak. From the forward pass to the backward pass Tiles keeps its output alone. Backward
// computes the saved set of each tile again, which costs one more forward pass, like a plan that
// recomputes the stage.
//
// Results have the same bits as those of the other stage, if it computes a row in the same way
// in any number of rows. Gradients of parameters are sums over the tiles: the other's Backward must add
// to them. A stage that tells somebody when a gradient is complete must wait for the last tile.
//
// The idea is that of tiled MLPs in Bekman et al., "Arctic Long Sequence Training" (2025,
// arXiv:2506.13996).
//
// All functions but Grad, Release and ReleaseSaved are required.
type Tiles[A, S any] struct {
	Stage Stage[A, S]

	// Count returns the number of tiles of an input, at least 1.
	Count func(x A) int
	// Part returns tile i of x, of an output or of a gradient: a view into its memory, which is not released.
	Part func(x A, i int) A
	// Clone returns a copy of a tile.
	Clone func(part A) (A, error)
	// Output returns memory for the output for x.
	Output func(x A) (A, error)
	// Grad returns memory for the gradient with respect to x. nil: it is written over the gradient with
	// respect to the output, which has the same shape.
	Grad func(x A) (A, error)
	// Put copies part, which Stage returned, to tile i of y, an output or a gradient with respect to x.
	Put func(y A, i int, part A) error
	// Keep returns a saved set that holds the output y and nothing else.
	Keep func(y A) S

	// Release and ReleaseSaved free a value, as in [Chain].
	Release      func(A)
	ReleaseSaved func(S)
}

// TiledCost returns the cost of a stage with the given one, cut into tiles. The error wraps
// [snug.ErrConfig] for a number of tiles below 1.
func TiledCost(c Cost, tiles int) (Cost, error) {
	if tiles < 1 {
		return Cost{}, fmt.Errorf("remat: TiledCost: %d tiles, want at least 1: %w", tiles, snug.ErrConfig)
	}
	n := int64(tiles)
	part := func(bytes int64) int64 { return bytes/n + min(1, bytes%n) }
	out, forward := part(c.Output), part(c.ForwardExtra)
	c.ForwardExtra = out + forward
	c.BackwardExtra = part(c.Saved) + max(out+part(c.BackwardExtra), forward)
	c.Saved = c.Output
	c.BackwardTime += c.ForwardTime
	c.Packed, c.PackTime, c.UnpackTime = 0, 0, 0
	return c, nil
}

func (t *Tiles[A, S]) check() error {
	if t == nil || t.Stage == nil || t.Count == nil || t.Part == nil || t.Clone == nil || t.Output == nil || t.Put == nil || t.Keep == nil {
		return fmt.Errorf("remat: Tiles: want the fields Stage, Count, Part, Clone, Output, Put and Keep: %w", snug.ErrConfig)
	}
	return nil
}

// each calls f for the tiles of x.
func (t *Tiles[A, S]) each(ctx context.Context, x A, f func(i int, part A) error) error {
	n := t.Count(x)
	if n < 1 {
		return fmt.Errorf("remat: Tiles: %d tiles, want at least 1: %w", n, snug.ErrConfig)
	}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(i, t.Part(x, i)); err != nil {
			return fmt.Errorf("tile %d of %d: %w", i, n, err)
		}
	}
	return nil
}

// Forward returns the output for x and keeps nothing else.
func (t *Tiles[A, S]) Forward(ctx context.Context, x A) (y A, err error) {
	if err := t.check(); err != nil {
		return y, err
	}
	all, err := t.Output(x)
	if err != nil {
		return y, err
	}
	done := false
	defer func() {
		if !done {
			t.release(all)
		}
	}()
	run := stepOf[A, S](ctx)
	err = t.each(ctx, x, func(i int, part A) error {
		out, err := t.Stage.Forward(ctx, part)
		if err != nil {
			return err
		}
		defer t.release(out)
		bytes := run.bytes(out)
		run.hold(bytes)
		defer run.hold(-bytes)
		return t.Put(all, i, out)
	})
	if err != nil {
		return y, err
	}
	done = true
	return all, nil
}

// ForwardSave returns the output for x, and the saved set of [Tiles.Keep].
func (t *Tiles[A, S]) ForwardSave(ctx context.Context, x A) (y A, s S, err error) {
	if y, err = t.Forward(ctx, x); err == nil {
		s = t.Keep(y)
	}
	return y, s, err
}

// Resave computes nothing: Backward needs x alone.
func (t *Tiles[A, S]) Resave(_ context.Context, x A) (s S, err error) {
	if err := t.check(); err != nil {
		return s, err
	}
	y, err := t.Output(x)
	if err == nil {
		s = t.Keep(y)
	}
	return s, err
}

// Backward returns the gradient with respect to x, tile by tile.
func (t *Tiles[A, S]) Backward(ctx context.Context, x A, _ S, dy A) (dx A, err error) {
	owned := []A{dy}
	defer func() {
		for _, a := range owned {
			t.release(a)
		}
	}()
	if err := t.check(); err != nil {
		return dx, err
	}
	run, to := stepOf[A, S](ctx), dy
	if t.Grad != nil {
		if to, err = t.Grad(x); err != nil {
			return dx, err
		}
		owned = append(owned, to)
		run.hold(run.bytes(dy)) // beside the gradient with respect to x
	}
	err = t.each(ctx, x, func(i int, part A) error {
		d, err := t.tile(ctx, run, part, t.Part(dy, i))
		if err != nil {
			return err
		}
		defer t.release(d)
		return t.Put(to, i, d)
	})
	if err != nil {
		return dx, err
	}
	owned = owned[:len(owned)-1]
	return to, nil
}

// tile returns the gradient with respect to a tile x from the tile dy, within a step of run.
func (t *Tiles[A, S]) tile(ctx context.Context, run *stepContext[A, S], x, dy A) (dx A, err error) {
	s, err := t.resave(ctx, x)
	if err != nil {
		return dx, err
	}
	defer t.releaseSaved(s)
	d, err := t.Clone(dy)
	if err != nil {
		return dx, err
	}
	bytes := run.bytes(d, s)
	run.hold(bytes)
	defer run.hold(-bytes)
	return t.Stage.Backward(ctx, x, s, d)
}

// resave returns the saved set of a tile.
func (t *Tiles[A, S]) resave(ctx context.Context, x A) (s S, err error) {
	if r, ok := t.Stage.(Resaver[A, S]); ok {
		return r.Resave(ctx, x)
	}
	_, s, err = t.Stage.ForwardSave(ctx, x)
	return s, err
}

func (t *Tiles[A, S]) release(a A) {
	if t != nil && t.Release != nil {
		t.Release(a)
	}
}

func (t *Tiles[A, S]) releaseSaved(s S) {
	if t.ReleaseSaved != nil {
		t.ReleaseSaved(s)
	}
}
