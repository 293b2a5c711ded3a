package quant8

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// grain is about how many elements one item of a parallel loop works on: 64 KiB
// of float32.
const grain = 1 << 14

// blocksPerItem returns how many whole blocks make an item.
func blocksPerItem(block int) int { return max(1, grain/block) }

var tiles cpu.Scratch

// quantizeJob is Quantize.
type quantizeJob struct {
	codes, absmax, src snug.View
	m                  *Map
	block              int
}

func (j *quantizeJob) Kernel() string { return "quant8.quantize" }

func (j *quantizeJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.codes, &j.absmax, &j.src)
}

func (j *quantizeJob) Run() {
	e := encoderOf(j.m)
	defer release(e)
	per := blocksPerItem(j.block)
	quantizeTask.Run(cpu.Chunks(j.absmax.Len(), per), quantizeArgs{
		codes: snug.Host[uint8](j.codes), absmax: j.absmax.Float32s(), src: j.src, e: e, block: j.block, per: per,
	})
}

type quantizeArgs struct {
	codes      []uint8
	absmax     []float32
	src        snug.View
	e          *blockq.Encoder
	block, per int
}

// quantizeTask finds the largest magnitude of a block before it encodes the preceding
// block, so that encoding does not wait for it.
var quantizeTask = cpu.NewTask(func(a *quantizeArgs, item int) {
	tile := tiles.Get(2 * a.block)
	defer tiles.Put(tile)
	k, all := blockq.Registry.Best(), a.src.Float32s()
	first, last := cpu.Chunk(len(a.absmax), a.per, item)
	var before []float32
	for b := first; b < last; b++ {
		lo, hi := cpu.Chunk(len(a.codes), a.block, b)
		x := (*tile)[b%2*a.block:][:hi-lo]
		if all != nil {
			x = all[lo:hi]
		} else {
			half.Load(x, a.src, lo)
		}
		a.absmax[b] = k.AbsMax(x)
		if b > first {
			a.encode(b-1, before)
		}
		before = x
	}
	a.encode(last-1, before)
})

// encode writes the codes of block b, which holds x.
func (a *quantizeArgs) encode(b int, x []float32) {
	a.e.Encode(a.codes[b*a.block:][:len(x)], x, a.absmax[b])
}

// dequantizeJob is Dequantize.
type dequantizeJob struct {
	dst, codes, absmax snug.View
	m                  *Map
	block              int
}

func (j *dequantizeJob) Kernel() string { return "quant8.dequantize" }

func (j *dequantizeJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dst, &j.codes, &j.absmax)
}

func (j *dequantizeJob) Run() {
	per := blocksPerItem(j.block)
	dequantizeTask.Run(cpu.Chunks(j.absmax.Len(), per), dequantizeArgs{
		dst: j.dst, codes: snug.Host[uint8](j.codes), absmax: j.absmax.Float32s(), m: (*[256]float32)(j.m), block: j.block, per: per,
		stream: j.dst.Bytes() >= half.StreamBytes,
	})
}

type dequantizeArgs struct {
	dst        snug.View
	codes      []uint8
	absmax     []float32
	m          *[256]float32
	block, per int
	stream     bool // the caches cannot hold dst
}

var dequantizeTask = cpu.NewTask(func(a *dequantizeArgs, item int) {
	first, last := cpu.Chunk(len(a.absmax), a.per, item)
	if x := a.dst.Float32s(); x != nil {
		k := blockq.Registry.Best()
		decode := k.Decode
		if a.stream {
			decode = k.DecodeStream
		}
		lo, hi := a.elements(first, last)
		decode(x[lo:hi], a.codes[lo:hi], a.m, a.absmax[first:last], a.block)
		return
	}
	tile := tiles.Get(MaxBlock)
	defer tiles.Put(tile)
	for each := MaxBlock / a.block; first < last; first += each {
		a.through(*tile, first, min(first+each, last))
	}
})

// elements returns the bounds of the elements of blocks first to last-1.
func (a *dequantizeArgs) elements(first, last int) (lo, hi int) {
	return first * a.block, min(last*a.block, len(a.codes))
}

// through decodes blocks first to last-1 to a tile and rounds that to the type
// of dst.
func (a *dequantizeArgs) through(tile []float32, first, last int) {
	lo, hi := a.elements(first, last)
	tile = tile[:hi-lo]
	blockq.Registry.Best().Decode(tile, a.codes[lo:hi], a.m, a.absmax[first:last], a.block)
	if a.stream {
		half.StoreStream(a.dst, lo, tile)
	} else {
		half.Store(a.dst, lo, tile)
	}
}
