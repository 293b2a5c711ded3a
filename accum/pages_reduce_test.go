package accum

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// pass is a forward and a backward pass over layers of a page each, which hands on each gradient when it is complete.
func pass(p *Pages, layers int, add func(layer int) error) error {
	const size = 3000
	for i := range 2 * layers {
		layer := min(i, 2*layers-1-i)
		key := fmt.Sprint(layer)
		if err := read(p, key, size, 0); err != nil {
			return err
		}
		if i >= layers {
			if err := add(layer); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestPagesReduce: gradients are reduced while the backward pass gathers pages, on ranks with different numbers of
// micro-batches too, and have the bits of ranks without pages.
//
//check:in race
func TestPagesReduce(t *testing.T) {
	const layers, ranks, micros, length = 5, 3, 3, 700
	params := make([]Param, layers)
	for i := range params {
		params[i] = Param{fmt.Sprint(i), length}
	}
	fill := func(acc snug.View, into snug.Into, rank, micro, layer int) {
		for i, g := range gradientOf(rank, micro, layer, length) {
			acc.Float32s()[i] = into.Beta*acc.Float32s()[i] + into.Alpha*g
		}
	}
	own := func(rank int) int { return micros - rank }

	window := func(r Reducer, p *Pages) (sums [][]float32, err error) {
		w, err := New(params, Options{Schedule: Constant(own(r.Rank())), Reducer: r, Bucket: 1000})
		if err != nil {
			return nil, err
		}
		for micro := -r.Rank(); micro < own(r.Rank()); micro++ {
			if err := w.Begin(float64(max(micro, 0) + 1)); err != nil {
				return nil, err
			}
			err := pass(p, layers, func(layer int) error {
				acc, into, err := w.Into(params[layer].Name)
				if err != nil {
					return err
				}
				if fill(acc, into, r.Rank(), max(micro, 0), layer); micro < 0 {
					return nil
				}
				return w.Done(params[layer].Name)
			})
			if err != nil {
				return nil, err
			}
			if micro < 0 { // only to gather pages
				w.Reset()
				continue
			}
			if _, err := w.End(); err != nil {
				return nil, err
			}
		}
		for _, g := range w.Gradients() {
			sums = append(sums, slices.Clone(g.Float32s()))
		}
		return sums, nil
	}
	sharded := func(whole bool) func(r Reducer, p *Pages) ([][]float32, error) {
		return func(r Reducer, p *Pages) (sums [][]float32, err error) {
			chunk := func(string) int { return partAlign / 4 } // of a page of 4·700 bytes on 3 ranks
			s, err := NewSharded(params, ShardedOptions{Reducer: r, Whole: whole, Bucket: 1000, Chunk: chunk})
			if err != nil {
				return nil, err
			}
			weights := []float64{1, 2, 3}[:own(r.Rank())]
			if err := s.Start(weights); err != nil {
				return nil, err
			}
			micro := func(n int, begin func() error) error {
				if err := begin(); err != nil {
					return err
				}
				err := pass(p, layers, func(layer int) error {
					acc, into, err := s.Into(params[layer].Name)
					if err != nil {
						return err
					}
					fill(acc, into, r.Rank(), n, layer)
					return s.Done(params[layer].Name)
				})
				return errors.Join(err, s.End())
			}
			empty := func() (err error) {
				for range r.Rank() {
					err = errors.Join(err, micro(0, s.BeginEmpty))
				}
				return err
			}
			if whole {
				err = empty()
			}
			for i := range weights {
				err = errors.Join(err, micro(i, s.Begin))
			}
			if !whole {
				err = errors.Join(err, empty())
			}
			if err := errors.Join(err, s.Finish()); err != nil {
				return nil, err
			}
			for _, g := range s.Gradients() {
				sums = append(sums, slices.Clone(g.Float32s()))
			}
			return sums, s.Close()
		}
	}
	for name, run := range map[string]func(r Reducer, p *Pages) ([][]float32, error){"window": window, "whole": sharded(true), "parts": sharded(false)} {
		t.Run(name, func(t *testing.T) {
			var results [2][ranks][][]float32
			for paged := range 2 {
				require.NoError(t, errors.Join(onPages(t, ranks, PagesOptions{}, nil, func(rank int, p *Pages) (err error) {
					for layer := range layers {
						if err := write(p, fmt.Sprint(layer), 3000, 0); err != nil {
							return err
						}
					}
					if paged == 1 {
						results[1][rank], err = run(p, p)
						return err
					}
					alone, err := Local(t.Context(), 1) // pages that send nothing
					if err != nil {
						return err
					}
					whole, err := NewPages(alone[0], PagesOptions{})
					if err != nil {
						return err
					}
					for layer := range layers {
						if err := write(whole, fmt.Sprint(layer), 3000, 0); err != nil {
							return err
						}
					}
					results[0][rank], err = run(p.below(), whole)
					return err
				})...))
			}
			require.NotEmpty(t, results[0][0])
			require.Equal(t, results[0], results[1])
		})
	}
}
