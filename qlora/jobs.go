package qlora

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/quant8"
)

// grain is how many elements one item of a parallel loop works on, a multiple of
// every block: 64 KiB of float32.
const grain = 1 << 14

var tiles cpu.Scratch

// part returns elements lo to hi-1 of a view that has them.
func part(v snug.View, lo, hi int) snug.View {
	v, _ = v.Slice(lo, hi)
	return v
}

// quantizeJob is Quantize.
type quantizeJob struct {
	packed, absmax, src snug.View
	f                   *nibble.Format
	block               int
}

func (j *quantizeJob) Kernel() string { return "qlora.quantize" }

func (j *quantizeJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.packed, &j.absmax, &j.src)
}

func (j quantizeJob) Run() { quantizeTask.Run(cpu.Chunks(j.src.Len(), grain), j) }

// quantizeTask converts a tile at a time, a multiple of every block.
var quantizeTask = cpu.NewTask(func(j *quantizeJob, item int) {
	tile := tiles.Get(MaxBlock)
	defer tiles.Put(tile)
	packed, absmax := snug.Host[uint8](j.packed), j.absmax.Float32s()
	first, last := cpu.Chunk(j.src.Len(), grain, item)
	for lo := first; lo < last; lo += MaxBlock {
		hi := min(lo+MaxBlock, last)
		x := half.Floats(j.src, lo, (*tile)[:hi-lo])
		nibble.Registry.Best().Encode(packed[lo/2:(hi+1)/2], absmax[lo/j.block:cpu.Chunks(hi, j.block)], x, j.block, j.f)
	}
})

// dequantizeJob is Dequantize. With double quantization absmax holds the codes of absmax,
// and nested, offset and m decode them.
type dequantizeJob struct {
	dst, packed, absmax snug.View
	f                   *nibble.Format
	block               int
	nested              snug.View // F32, empty without double quantization
	offset              float32
	m                   *quant8.Map // nil without
}

func (j *dequantizeJob) Kernel() string { return "qlora.dequantize" }

func (j *dequantizeJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dst, &j.packed, &j.absmax, &j.nested)
}

func (j dequantizeJob) Run() { dequantizeTask.Run(cpu.Chunks(j.dst.Len(), grain), j) }

var dequantizeTask = cpu.NewTask(func(j *dequantizeJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), grain, item)
	first, last := lo/j.block, cpu.Chunks(hi, j.block)
	packed, stream := snug.Host[uint8](j.packed)[lo/2:(hi+1)/2], j.dst.Bytes() >= half.StreamBytes
	if j.m == nil {
		nibble.Decode(part(j.dst, lo, hi), packed, j.absmax.Float32s()[first:last], j.block, j.f, stream)
		return
	}
	tile := tiles.Get(grain / MinBlock)
	defer tiles.Put(tile)
	absmax := (*tile)[:last-first]
	unnest(absmax, snug.Host[uint8](j.absmax), j.nested.Float32s(), j.offset, j.m, first)
	nibble.Decode(part(j.dst, lo, hi), packed, absmax, j.block, j.f, stream)
})

// unnest writes the absmax of the blocks from first on. codes and nested belong to all
// blocks.
func unnest(absmax []float32, codes []uint8, nested []float32, offset float32, m *quant8.Map, first int) {
	const short = 64 // calls of decode take longer than they save
	for len(absmax) > 0 {
		n := min(nestedBlock-first%nestedBlock, len(absmax))
		part, scale := codes[first:first+n], nested[first/nestedBlock:][:1]
		switch {
		case n < short:
			for i, c := range part {
				absmax[i] = float32(m[c]*scale[0]) + offset
			}
		case m == powers: // with an offset of 0
			blockq.Registry.Best().Decode(absmax[:n], part, (*[256]float32)(m), scale, n)
		default:
			blockq.Registry.Best().Decode(absmax[:n], part, (*[256]float32)(m), scale, n)
			for i := range absmax[:n] {
				absmax[i] += offset
			}
		}
		absmax, first = absmax[n:], first+n
	}
}
