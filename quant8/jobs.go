package quant8

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// grain is about how many elements one item of a parallel loop works on.
const grain = 4096

// blocksPerItem returns how many whole blocks make an item.
func blocksPerItem(block int) int { return max(1, grain/block) }

var tiles cpu.Scratch

// launch queues a copy of job on dev.
func launch[J any, P interface {
	*J
	driver.Job
}](dev *snug.Device, job J) error {
	return dev.Launch(P(&job))
}

// load returns elements lo to hi-1 of a host view as float32: the view's own
// memory if it holds float32, else converted into tile.
func load(v snug.View, lo, hi int, tile []float32) []float32 {
	if x := v.Float32s(); x != nil {
		return x[lo:hi]
	}
	half.Load(tile[:hi-lo], v, lo)
	return tile[:hi-lo]
}

// target returns where elements lo to hi-1 of a host view are computed: the
// view's own memory or tile; flush then converts the tile.
func target(v snug.View, lo, hi int, tile []float32) []float32 {
	if x := v.Float32s(); x != nil {
		return x[lo:hi]
	}
	return tile[:hi-lo]
}

func flush(v snug.View, lo int, x []float32) {
	if v.DType() != snug.F32 {
		half.Store(v, lo, x)
	}
}

// quantizeJob is Quantize.
type quantizeJob struct {
	codes, absmax, src snug.View
	m                  *Map
	block              int
}

func (j *quantizeJob) Kernel() string { return "quant8.quantize" }

func (j *quantizeJob) Operands(yield func(*driver.Mem)) {
	yield(j.codes.Mem())
	yield(j.absmax.Mem())
	yield(j.src.Mem())
}

func (j *quantizeJob) Run() {
	e := encoderOf(j.m)
	defer e.release()
	per := blocksPerItem(j.block)
	quantizeTask.Run(cpu.Chunks(j.absmax.Len(), per), quantizeArgs{
		codes: snug.Host[uint8](j.codes), absmax: j.absmax.Float32s(), src: j.src, e: e, block: j.block, per: per,
	})
}

type quantizeArgs struct {
	codes      []uint8
	absmax     []float32
	src        snug.View
	e          *encoder
	block, per int
}

var quantizeTask = cpu.NewTask(func(a *quantizeArgs, item int) {
	tile := tiles.Get(a.block)
	defer tiles.Put(tile)
	first, last := cpu.Chunk(len(a.absmax), a.per, item)
	for b := first; b < last; b++ {
		lo, hi := cpu.Chunk(len(a.codes), a.block, b)
		a.absmax[b] = a.e.encode(a.codes[lo:hi], load(a.src, lo, hi, *tile))
	}
})

// dequantizeJob is Dequantize.
type dequantizeJob struct {
	dst, codes, absmax snug.View
	m                  *Map
	block              int
}

func (j *dequantizeJob) Kernel() string { return "quant8.dequantize" }

func (j *dequantizeJob) Operands(yield func(*driver.Mem)) {
	yield(j.dst.Mem())
	yield(j.codes.Mem())
	yield(j.absmax.Mem())
}

func (j *dequantizeJob) Run() {
	per := blocksPerItem(j.block)
	dequantizeTask.Run(cpu.Chunks(j.absmax.Len(), per), dequantizeArgs{
		dst: j.dst, codes: snug.Host[uint8](j.codes), absmax: j.absmax.Float32s(), m: j.m, block: j.block, per: per,
	})
}

type dequantizeArgs struct {
	dst        snug.View
	codes      []uint8
	absmax     []float32
	m          *Map
	block, per int
}

var dequantizeTask = cpu.NewTask(func(a *dequantizeArgs, item int) {
	tile := tiles.Get(a.block)
	defer tiles.Put(tile)
	first, last := cpu.Chunk(len(a.absmax), a.per, item)
	for b := first; b < last; b++ {
		lo, hi := cpu.Chunk(len(a.codes), a.block, b)
		x := target(a.dst, lo, hi, *tile)
		a.m.decode(x, a.codes[lo:hi], a.absmax[b])
		flush(a.dst, lo, x)
	}
})
