package quant8

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/safetensors"
)

// WriteBitsAndBytes writes the state as a safetensors file with the tensors of
// bitsandbytes' optimizer (version 0.50), such as AdamW8bit, and returns the
// number of bytes written. For every parameter it writes step, as an I64 scalar, state1
// and state2, and with 8-bit state qmap1, qmap2, absmax1 and absmax2; a rule of one state
// has only the first of each pair. bitsandbytes has blocks of 256; a larger
// block is written as several with the same absmax, which stand for the same values. Call
// it after all Steps of an Advance. A program that loads the file into a state dict turns
// step into a number, as torch's item does.
//
// Traits.BitsAndBytes names the optimizers of bitsandbytes that can continue from the state of a rule. Rules without such a
// name are errors, and so is weight decay that the rule adds to the gradient: bitsandbytes decays the weights themselves.
//
// It needs memory for one chunk, and waits for devices. Errors, with nothing written:
// [snug.ErrConfig] (w is nil, the optimizer is not in the list above, the optimizer
// cannot be used, Block is not a multiple of 256 while a parameter has 8-bit state, a
// parameter has state of 4 or 16 bits, which bitsandbytes lacks, the optimizer holds only
// a shard of a parameter, a parameter is updated in part, or the names are not UTF-8) or
// [snug.ErrShape] (a shape does not have the parameter's elements). Other errors come
// from w, a device or the [Storage].
func (a *Optimizer) WriteBitsAndBytes(w io.Writer, f BitsAndBytesFormat) (int64, error) {
	n, err := a.exportState(w, &f)
	if err != nil {
		err = fmt.Errorf("quant8: %s: write the state of bitsandbytes: %w", a.label(), err)
	}
	return n, err
}

// exported is a tensor to write.
type exported struct {
	tensor safetensors.Tensor
	data   producer
}

// producer hands the data of a tensor to use, piece by piece.
type producer func(use func(b []byte) error) error

func (a *Optimizer) exportState(w io.Writer, f *BitsAndBytesFormat) (int64, error) {
	if err := a.usable(); err != nil {
		return 0, err
	}
	if w == nil {
		return 0, fmt.Errorf("the writer is nil: %w", snug.ErrConfig)
	}
	if err := a.o.checkForm(); err != nil {
		return 0, err
	}
	var tensors []safetensors.Tensor
	data := map[string]producer{}
	for _, name := range a.names() {
		list, err := a.exportParam(a.params[name], f)
		if err != nil {
			return 0, fmt.Errorf("parameter %q: %w", name, err)
		}
		for _, e := range list {
			tensors = append(tensors, e.tensor)
			data[e.tensor.Name] = e.data
		}
	}
	h, err := safetensors.New(tensors, nil)
	if err != nil {
		return 0, err
	}
	return h.Write(w, func(t *safetensors.Tensor, write func(b []byte) error) error {
		return data[t.Name](write)
	})
}

// exportParam returns the tensors of a parameter.
func (a *Optimizer) exportParam(q *param, f *BitsAndBytesFormat) ([]exported, error) {
	if err := cmp.Or(q.checkWidth(), q.checkDecay(&a.o)); err != nil {
		return nil, err
	}
	if a.t > 0 && !q.marks.All(optim.Updated) && !q.marks.All(optim.Waiting) {
		return nil, fmt.Errorf("some elements are updated in step %d and others not yet: %w", a.t, snug.ErrConfig)
	}
	shape, given := f.Shapes[q.name]
	if !given {
		shape = []int{q.n}
	}
	if q.n != q.total {
		return nil, fmt.Errorf("the optimizer holds %d elements of %d, want all: %w", q.n, q.total, snug.ErrConfig)
	}
	if n, err := safetensors.Elements(shape); err != nil || n != q.n {
		return nil, fmt.Errorf("shape %v, want one of %d elements: %w", shape, q.n, snug.ErrShape)
	}
	list := []exported{{
		safetensors.Tensor{Name: f.name(q.name, "step"), DType: "I64", Shape: []int{}},
		func(use func(b []byte) error) error {
			return use(binary.LittleEndian.AppendUint64(nil, uint64(a.t)))
		},
	}}
	add := func(key, dtype string, shape []int, data producer) {
		list = append(list, exported{safetensors.Tensor{Name: f.name(q.name, key), DType: dtype, Shape: shape}, data})
	}
	if q.bits == 32 {
		for i, keys := range stateKeys[:q.states] {
			add(keys.state, "F32", shape, a.ofChunks(q, func(blob []byte, n int) []byte {
				s := q.split32(blob, n)
				return appendFloats(nil, s[i])
			}))
		}
		return list, nil
	}
	if a.o.Block%bitsandbytesBlock != 0 {
		return nil, fmt.Errorf("blocks of %d elements, bitsandbytes has %d: %w", a.o.Block, bitsandbytesBlock, snug.ErrConfig)
	}
	for i, keys := range stateKeys[:q.states] {
		add(keys.state, "U8", shape, a.ofChunks(q, func(blob []byte, n int) []byte {
			s := q.split8(blob, n)
			return s.codes[i]
		}))
		add(keys.absmax, "F32", []int{Blocks(q.n, bitsandbytesBlock)}, a.ofChunks(q, func(blob []byte, n int) []byte {
			s := q.split8(blob, n)
			return a.appendAbsmax(nil, s.absmax[i], n)
		}))
		add(keys.qmap, "F32", []int{len(Map{})}, func(use func(b []byte) error) error {
			return use(appendFloats(nil, a.maps.encoder(i).Map()[:]))
		})
	}
	return list, nil
}

// ofChunks produces one part of the state of every chunk. A chunk has n elements.
func (a *Optimizer) ofChunks(q *param, part func(blob []byte, n int) []byte) producer {
	return func(use func(b []byte) error) error {
		for chunk := range Blocks(q.n, a.o.Chunk) {
			n := min(a.o.Chunk, q.n-chunk*a.o.Chunk)
			if err := a.withBlob(q, chunk, false, func(blob []byte) error { return use(part(blob, n)) }); err != nil {
				return err
			}
		}
		return nil
	}
}

// appendAbsmax appends the absmax of n elements, in blocks of bitsandbytes.
func (a *Optimizer) appendAbsmax(b []byte, absmax []float32, n int) []byte {
	for i := range Blocks(n, bitsandbytesBlock) {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(absmax[i*bitsandbytesBlock/a.o.Block]))
	}
	return b
}

func appendFloats(b []byte, x []float32) []byte {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
