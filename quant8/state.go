package quant8

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/state"
)

// WriteTo writes the state of the optimizer: a header with the step count, the learning
// rate of the current step, the maps of the codes and the names of the parameters, and
// all moments, StateBytes. Between the Steps of one Advance it also writes which elements
// are updated, so that a restored run updates the others, and between calls of
// [Optimizer.FoldInBackward] what they have folded. It needs no memory beyond the
// state, and on devices other than the CPU memory for one chunk. The hyperparameters are
// not part of the state.
func (a *Optimizer) WriteTo(w io.Writer) (int64, error) {
	e := state.NewEncoder(w, state.OptimizerMagic)
	if err := a.checkSave(); err != nil {
		e.Err = err
	} else {
		e.PutOptimizer(a.header())
	}
	e.Data(a.StateBytes())
	if e.Err == nil {
		e.Err = a.eachBlob(false, func(blob []byte) error {
			e.Put(blob)
			return e.Err
		})
	}
	n, err := e.Finish()
	if err != nil {
		err = fmt.Errorf("quant8: %s: save: %w", a.label(), err)
	}
	return n, err
}

// checkSave returns an error if the state cannot be saved.
func (a *Optimizer) checkSave() error {
	if err := a.usable(); err != nil {
		return err
	}
	return a.o.method.savable(a)
}

// ReadFrom restores a state that [Optimizer.WriteTo] wrote, into an optimizer with the
// same options, to which the same parameters or the same shards of them were added, in
// any order. The saved maps replace the optimizer's. It does not read beyond the end of
// the saved state. A run with the same hyperparameters then continues bit for bit. It
// needs no memory beyond the state, and on devices other than the CPU memory for one
// chunk.
//
// The error wraps [snug.ErrCorrupt] when the bytes are damaged, cut short or of another
// version, and [snug.ErrConfig] when they are the state of another configuration or r is
// nil. An error before the moments are reached leaves the optimizer as it was. A later one
// leaves it unusable until a ReadFrom succeeds.
func (a *Optimizer) ReadFrom(r io.Reader) (int64, error) {
	d := state.NewDecoder(r, state.OptimizerMagic)
	h, err := a.readHeader(d)
	if err == nil {
		err = a.checkSame(h)
	}
	if err == nil {
		err = a.restore(d, h)
	}
	if err != nil {
		err = fmt.Errorf("quant8: %s: restore: %w", a.label(), err)
	}
	return d.Read(), err
}

// AppendBinary appends the bytes of [Optimizer.WriteTo] to b. It implements
// [encoding.BinaryAppender]. The result is a second copy of the whole state; WriteTo
// avoids it.
func (a *Optimizer) AppendBinary(b []byte) ([]byte, error) {
	if size := a.StateBytes(); size > int64(math.MaxInt-len(b)) {
		return b, fmt.Errorf("quant8: %s: save %d bytes to a slice: %w", a.label(), size, snug.ErrNoMemory)
	}
	return state.Append(slices.Grow(b, int(a.StateBytes())), a.WriteTo)
}

// UnmarshalBinary restores all of data as [Optimizer.ReadFrom] does, but verifies
// it first: damaged data leaves the optimizer as it was.
func (a *Optimizer) UnmarshalBinary(data []byte) error {
	err := a.made()
	if err == nil {
		err = state.Verify(data)
	}
	if err != nil {
		return fmt.Errorf("quant8: %s: restore: %w", a.label(), err)
	}
	_, err = a.ReadFrom(bytes.NewReader(data))
	return err
}

// eachBlob calls use for the factors of every parameter and for the state of every chunk.
func (a *Optimizer) eachBlob(dirty bool, use func(blob []byte) error) error {
	for _, name := range a.names() {
		q := a.params[name]
		first := 0
		if q.factors > 0 {
			first = factors
		}
		for chunk := first; chunk < q.chunks(a.o.Chunk); chunk++ {
			if err := a.withBlob(q, chunk, dirty, use); err != nil {
				return fmt.Errorf("parameter %q: %w", name, err)
			}
		}
	}
	return nil
}

func (a *Optimizer) names() []string { return slices.Sorted(maps.Keys(a.params)) }

// restore reads the states and verifies them.
func (a *Optimizer) restore(d *state.Decoder, h *saved) error {
	a.invalid = "a restore of its state failed"
	err := a.eachBlob(true, func(blob []byte) error {
		d.Get(blob)
		return d.Err
	})
	if err != nil {
		return err
	}
	if _, err := d.Finish(); err != nil {
		return err
	}
	a.resume(h)
	a.fold.OptimizerFold = h.fold
	for i, name := range a.names() {
		q := a.params[name]
		for c := range q.marks {
			if !h.params[i].updated(c) {
				q.marks[c] = optim.Waiting
			}
		}
	}
	return nil
}

// resume continues at a saved step whose updates are all made.
func (a *Optimizer) resume(h *saved) {
	a.t, a.lr, a.rate, a.maps, a.invalid, a.fold = h.step, h.lr, nil, h.maps, "", folding{}
	a.o.method.restore(a, h.numbers)
	a.skipped, a.known = a.skipped[:0], knownNorm{}
	for _, q := range a.params {
		q.marks.Set(0, len(q.marks), optim.Updated)
	}
}
