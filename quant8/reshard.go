package quant8

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/state"
)

// ReadShards restores the state from states that [Optimizer.WriteTo] has written for
// other shards of the same parameters. The optimizers that wrote them have the same Bits,
// Block and MinSize and are at the same step. ReadShards reads all of them and takes the
// elements of its own shards. A run therefore continues bit for bit with more or fewer
// processes, from shards to whole parameters, or the reverse. Parameters that were not
// added to this optimizer are ignored. It needs memory for one saved chunk.
//
// The error wraps [snug.ErrCorrupt] and [snug.ErrConfig] as with [Optimizer.ReadFrom]; it
// wraps ErrConfig too when an element of this optimizer is in none of the saved states,
// or in two. All headers are read and checked before anything changes. A later error
// leaves the optimizer unusable until a restore succeeds.
func (a *Optimizer) ReadShards(states ...io.Reader) error {
	if err := a.readShards(states); err != nil {
		return fmt.Errorf("quant8: %s: restore from %d states: %w", a.label(), len(states), err)
	}
	return nil
}

// source is a saved state whose header has been read.
type source struct {
	d *state.Decoder
	h *saved
}

func (a *Optimizer) readShards(states []io.Reader) error {
	if len(states) == 0 {
		return fmt.Errorf("want one or more: %w", snug.ErrConfig)
	}
	var sources []source
	for i, r := range states {
		s := source{d: state.NewDecoder(r, state.OptimizerMagic)}
		var err error
		if s.h, err = a.readHeader(s.d); err == nil {
			err = a.checkSource(s.h)
		}
		if err == nil && i > 0 {
			err = s.h.checkRun(sources[0].h)
		}
		if err != nil {
			return fmt.Errorf("state %d: %w", i, err)
		}
		sources = append(sources, s)
	}
	for _, name := range a.names() {
		if err := checkCover(a.params[name], sources); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	marks := map[*param]optim.Marks{}
	for _, name := range a.names() {
		var err error
		if marks[a.params[name]], err = a.marksOf(a.params[name], sources); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	a.invalid = "a restore of its state failed"
	for i, s := range sources {
		if err := a.takeShards(s); err != nil {
			return fmt.Errorf("state %d: %w", i, err)
		}
	}
	first := sources[0].h
	a.resume(first)
	a.fold.OptimizerFold = foldOf(sources)
	for q, m := range marks {
		q.marks = m
	}
	return nil
}

// checkSource says whether a state has the same parameters.
func (a *Optimizer) checkSource(h *saved) error {
	if err := a.checkOptions(h, false); err != nil {
		return err
	}
	if h.chunk%uint64(a.o.chunkUnit(fewestStates(a.o.hyper.Rule))) != 0 {
		return fmt.Errorf("chunks of %d elements: %w", h.chunk, snug.ErrCorrupt)
	}
	for _, p := range h.params {
		q := a.params[p.name]
		if q != nil && q.total != p.total {
			return fmt.Errorf("saved with parameter %q of %d elements, this optimizer has %d: %w", p.name, p.total, q.total, snug.ErrConfig)
		}
		if err := a.checkForms(&p, q); err != nil {
			return err
		}
		if !a.o.aligned(p.lo, p.total) || !a.o.aligned(p.lo+p.n, p.total) {
			return fmt.Errorf("parameter %q: %d elements from %d on are not whole blocks: %w", p.name, p.n, p.lo, snug.ErrCorrupt)
		}
	}
	return nil
}

// checkRun says whether two states were saved at the same step of a run.
func (h *saved) checkRun(first *saved) error {
	if h.step != first.step {
		return fmt.Errorf("saved at step %d, the first at %d: %w", h.step, first.step, snug.ErrConfig)
	}
	if h.fold.Micros != first.fold.Micros || h.fold.Weight != first.fold.Weight || h.fold.Total != first.fold.Total {
		return fmt.Errorf("saved after %d micro-batches of weight %g of %g, the first after %d of %g of %g: %w", h.fold.Micros, h.fold.Weight,
			h.fold.Total, first.fold.Micros, first.fold.Weight, first.fold.Total, snug.ErrConfig)
	}
	if !slices.Equal(h.numbers, first.numbers) {
		return fmt.Errorf("saved with the numbers %v of all parameters, the first state has %v: %w", h.numbers, first.numbers, snug.ErrConfig)
	}
	if h.maps.entries() != first.maps.entries() {
		return fmt.Errorf("saved with other maps than the first state: %w", snug.ErrConfig)
	}
	return nil
}

// foldOf returns the step of several micro-batches that the sources are in. The squares of norms add up.
func foldOf(sources []source) (f state.OptimizerFold) {
	squares := 0.0
	for _, s := range sources {
		f.Squares += s.h.fold.Squares
		squares += s.h.fold.Norm * s.h.fold.Norm
	}
	first := sources[0].h.fold
	f.Micros, f.Weight, f.Total, f.Norm = first.Micros, first.Weight, first.Total, math.Sqrt(squares)
	return f
}

// checkCover says whether each element of q is in one of the sources.
func checkCover(q *param, sources []source) error {
	var parts []savedParam
	for _, s := range sources {
		for _, p := range s.h.params {
			if p.name == q.name && p.n > 0 {
				parts = append(parts, p)
			}
		}
	}
	slices.SortFunc(parts, func(a, b savedParam) int { return cmp.Compare(a.lo, b.lo) })
	next, end := q.lo, q.lo+q.n
	for _, p := range parts {
		lo, hi := max(p.lo, q.lo), min(p.lo+p.n, end)
		switch {
		case lo >= hi:
			continue
		case lo < next:
			return fmt.Errorf("element %d is in two states: %w", lo, snug.ErrConfig)
		case lo > next:
			return fmt.Errorf("element %d is in no state: %w", next, snug.ErrConfig)
		}
		next = hi
	}
	if next < end {
		return fmt.Errorf("element %d is in no state: %w", next, snug.ErrConfig)
	}
	return nil
}

// marksOf returns which chunks of q were updated in the saved step.
func (a *Optimizer) marksOf(q *param, sources []source) (optim.Marks, error) {
	marks := a.o.newMarks(q.n)
	known := make([]bool, len(marks))
	for _, s := range sources {
		chunk := int(s.h.chunk)
		for _, p := range s.h.params {
			for i := 0; p.name == q.name && i < max(1, Blocks(p.n, chunk)); i++ {
				m := optim.Waiting
				if p.updated(i) {
					m = optim.Updated
				}
				if q.n == 0 {
					marks[0] = m
				}
				lo, hi := max(p.lo+i*chunk-q.lo, 0), min(p.lo+min(p.n, (i+1)*chunk)-q.lo, q.n)
				for c := lo / a.o.Chunk; c*a.o.Chunk < hi && lo < hi; c++ {
					if known[c] && marks[c] != m {
						return nil, fmt.Errorf("the state was saved in the middle of step %d, with elements %d to %d partly updated: restore it with a Chunk of %d: %w",
							s.h.step, c*a.o.Chunk, min((c+1)*a.o.Chunk, q.n)-1, chunk, snug.ErrConfig)
					}
					known[c], marks[c] = true, m
				}
			}
		}
	}
	return marks, nil
}

// takeShards reads a whole state and copies the elements that this optimizer has.
func (a *Optimizer) takeShards(s source) error {
	var buf []float32 // so that blobs are aligned
	for _, p := range s.h.params {
		q, chunk := a.params[p.name], int(s.h.chunk)
		e, err := a.o.savedEngine(&p)
		if err != nil {
			return err
		}
		of := e.keeps()
		from, held := a.o.layoutOf(p.bits, of), of.held(p.n)
		if err := a.takeFactors(s.d, of.factors, q); err != nil {
			return err
		}
		for lo := 0; lo < held && from.states > 0; lo += chunk {
			part := shardBlob{lo: p.lo + lo, n: min(chunk, held-lo)}
			size := from.bytes(part.n)
			if q == nil || !part.overlaps(q) {
				s.d.Skip(size)
				continue
			}
			part.blob = blobIn(&buf, int(size))
			if s.d.Get(part.blob); s.d.Err != nil {
				return s.d.Err
			}
			if err := a.spread(q, part); err != nil {
				return fmt.Errorf("parameter %q: %w", q.name, err)
			}
		}
	}
	_, err := s.d.Finish()
	return err
}

// takeFactors reads the factors of a matrix, if it has them, and copies them if this
// optimizer has the matrix.
func (a *Optimizer) takeFactors(d *state.Decoder, size int64, q *param) error {
	switch {
	case size == 0:
		return nil
	case q == nil:
		d.Skip(size)
		return d.Err
	}
	return a.withBlob(q, factors, true, func(blob []byte) error {
		d.Get(blob)
		return d.Err
	})
}

// shardBlob is the state of n elements of a parameter from element lo.
type shardBlob struct {
	lo, n int
	blob  []byte
}

func (b *shardBlob) overlaps(q *param) bool { return b.lo < q.lo+q.held(q.n) && q.lo < b.lo+b.n }

// spread copies the elements of b that q has to their chunks.
func (a *Optimizer) spread(q *param, b shardBlob) error {
	end := q.lo + q.held(q.n)
	lo, last := max(b.lo, q.lo), min(b.lo+b.n, end)
	for lo < last {
		chunk := (lo - q.lo) / a.o.Chunk
		begin := q.lo + chunk*a.o.Chunk
		to := shardBlob{lo: begin, n: min(a.o.Chunk, end-begin)}
		hi := min(last, begin+to.n)
		err := a.withBlob(q, chunk, true, func(blob []byte) error {
			to.blob = blob
			q.copyElements(to, b, lo, hi)
			return nil
		})
		if err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// copyElements copies the state of elements lo to hi-1 of a parameter, which are
// whole blocks.
func (l layout) copyElements(dst, src shardBlob, lo, hi int) {
	d, s, n := lo-dst.lo, lo-src.lo, hi-lo
	switch l.bits {
	case 32:
		to, from := l.split32(dst.blob, dst.n), l.split32(src.blob, src.n)
		for i := range l.states {
			copy(to[i][d:d+n], from[i][s:])
		}
		return
	case 16:
		to, from := l.split16(dst.blob, dst.n), l.split16(src.blob, src.n)
		for i := range l.states {
			copy(to[i][d:d+n], from[i][s:])
		}
		return
	}
	to, from := l.split8(dst.blob, dst.n), l.split8(src.blob, src.n)
	for i := range l.states {
		copy(to.codes[i][l.codes(d):][:l.codes(n)], from.codes[i][l.codes(s):])
		copy(to.absmax[i][d/l.block:][:Blocks(n, l.block)], from.absmax[i][s/l.block:])
	}
}
