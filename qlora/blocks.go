package qlora

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/ggml"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/safetensors"
)

// This file has weights in the blocks of llama.cpp's files. A block holds its scales.

// NewBlocks makes a [GGUF] weight, a row-major tensor of the given shape, of the blocks of a llama.cpp file, in one of the
// types of package gguf that have blocks: Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4. Rows, along the last
// dimension, are whole blocks; the shape is as [gguf.Tensor] has it.
//
// The weight keeps the slice, which may be memory of a mapped file, and takes no other memory. Do not change it.
// NewBlocks reads the scales of all blocks.
//
// Errors: [snug.ErrDType] for another type; [snug.ErrShape] for a shape without dimensions, rows that are no whole blocks,
// and another number of bytes; [snug.ErrCorrupt] for a scale that is NaN or infinite.
func NewBlocks(t gguf.Type, shape []int, blocks []byte) (*Weight, error) {
	w, err := newBlocks(t, shape, blocks)
	return w, fault.Of(err, "qlora: new blocks")
}

func newBlocks(t gguf.Type, shape []int, blocks []byte) (*Weight, error) {
	f, known := ggml.Of(uint32(t))
	if !known {
		return nil, fmt.Errorf("the type is %s, want one with blocks that package gguf decodes, such as q4_k: %w", t, snug.ErrDType)
	}
	elements, size := f.Elements(), f.Bytes()
	n, err := safetensors.Elements(shape)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, snug.ErrShape)
	case len(shape) == 0 || shape[len(shape)-1]%elements != 0:
		return nil, fmt.Errorf("a weight of shape %v, want rows of a multiple of %d elements for %s: %w",
			shape, elements, t, snug.ErrShape)
	case len(blocks)%size != 0 || len(blocks)/size != n/elements:
		return nil, fmt.Errorf("%d bytes for the shape %v, want %d blocks of %d bytes for %s: %w",
			len(blocks), shape, n/elements, size, t, snug.ErrShape)
	}
	if i := notFinite(f, blocks); i >= 0 {
		return nil, fmt.Errorf("the scale of block %d of %d is NaN or infinite: %w", i, n/elements, snug.ErrCorrupt)
	}
	w := &Weight{shape: slices.Clone(shape), n: n, dtype: snug.F32, t: GGUF, blocks: t, format: f, block: elements}
	w.packed = snug.FromSlice(blocks)
	return w, nil
}

// Blocks returns the type of the blocks of a [GGUF] weight, and 0 for another one.
func (w *Weight) Blocks() gguf.Type {
	if w == nil {
		return 0
	}
	return w.blocks
}

// codeBytes returns the bytes of the codes, or of the blocks.
func (w *Weight) codeBytes() int {
	if w.t == GGUF {
		return w.n / w.block * w.format.Bytes()
	}
	if w.groups != nil && w.groups.wide {
		return w.n
	}
	return w.t.codeBytes(w.n)
}

// blockPart returns the blocks of n elements from begin on.
func (w *Weight) blockPart(m memory, begin, n int) snug.View {
	size := w.format.Bytes()
	return part(m.packed, begin/w.block*size, (begin+n)/w.block*size)
}

// notFinite returns the first block with a scale that is no finite number, or -1.
func notFinite(f ggml.Format, blocks []byte) int {
	a := scalesArgs{blocks, f, new(atomic.Int64)}
	count := len(blocks) / f.Bytes()
	a.first.Store(int64(count))
	scalesTask.Run(cpu.Chunks(count, grain), a)
	if i := int(a.first.Load()); i < count {
		return i
	}
	return -1
}

// scalesArgs are blocks whose scales are looked at.
type scalesArgs struct {
	blocks []byte
	format ggml.Format
	first  *atomic.Int64 // the first block with a bad one so far
}

var scalesTask = cpu.NewTask(func(a *scalesArgs, item int) {
	size := a.format.Bytes()
	lo, hi := cpu.Chunk(len(a.blocks)/size, grain, item)
	i := a.format.NotFinite(a.blocks[lo*size : hi*size])
	if i < 0 {
		return
	}
	for first := a.first.Load(); int64(lo+i) < first && !a.first.CompareAndSwap(first, int64(lo+i)); {
		first = a.first.Load()
	}
})

// blocksJob decodes blocks to dst.
type blocksJob struct {
	dst, blocks snug.View
	format      ggml.Format
}

func (j *blocksJob) Kernel() string { return "qlora.blocks" }

func (j *blocksJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dst, &j.blocks) }

func (j blocksJob) Run() { blocksTask.Run(cpu.Chunks(j.dst.Len(), grain), j) }

// blockTile is how many elements are decoded before they are rounded, a multiple of every block.
const blockTile = 1 << 12

var blocksTask = cpu.NewTask(func(j *blocksJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), grain, item)
	src := snug.Host[uint8](j.blocks)[lo/j.format.Elements()*j.format.Bytes():]
	decode := ggml.Registry.Best().Decode[j.format]
	if x := j.dst.Float32s(); x != nil {
		decode(x[lo:hi], src)
		return
	}
	tile := tiles.Get(blockTile)
	defer tiles.Put(tile)
	for at := lo; at < hi; at += blockTile {
		x := (*tile)[:min(blockTile, hi-at)]
		decode(x, src)
		half.Store(j.dst, at, x)
		src = src[len(x)/j.format.Elements()*j.format.Bytes():]
	}
})
