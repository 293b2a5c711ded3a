package accum

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
	"github.com/snug-ml/snug/internal/sweep"
)

// chunk is the number of elements that one worker adds at a time.
const chunk = 1 << 14

// Long vectors are read faster in longer pieces.
const (
	long      = 1 << 20
	longChunk = 1 << 15
)

// accumulateJob is acc = alpha·g + beta·acc for a float32 acc, both products
// rounded. It does not read acc for a beta of 0. An empty g is zero.
type accumulateJob struct {
	acc, g      snug.View
	alpha, beta float32
	joined      *driver.Joined[accumulateJob]
}

func (j accumulateJob) launch(dev *snug.Device) error {
	return device.Run(dev, j)
}

func (*accumulateJob) Kernel() string { return "accum.accumulate" }

func (j *accumulateJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.acc, &j.g)
	for _, o := range j.joined.Rest() {
		o.Operands(yield)
	}
}

// maxSums and maxRounded are how many vectors accum.h has in a launch at most.
const (
	maxSums    = 120
	maxRounded = 96
)

// Join implements [driver.Joiner].
func (j *accumulateJob) Join(next driver.Job) bool {
	n, ok := next.(*accumulateJob)
	return ok && n.alpha == j.alpha && n.beta == j.beta && driver.Join(&j.joined, j, n, maxSums, (*accumulateJob).memory)
}

func (j *accumulateJob) memory() [3]driver.Mem {
	return [3]driver.Mem{*device.Mem(&j.acc), *device.Mem(&j.g)}
}

func (j accumulateJob) Run() {
	accumulateTask.Run(cpu.Chunks(j.acc.Len(), j.chunk()), j)
	for _, o := range j.joined.Rest() {
		o.Run()
	}
}

// chunk returns the number of elements that one worker adds at a time.
func (j *accumulateJob) chunk() int {
	if j.acc.Len() >= long {
		return longChunk
	}
	return chunk
}

var accumulateTask = cpu.NewTask(func(j *accumulateJob, item int) {
	lo, hi := cpu.Chunk(j.acc.Len(), j.chunk(), item)
	acc := j.acc.Float32s()[lo:hi]
	switch {
	case j.g.Len() > 0:
		sweep.Accumulate(acc, j.g, lo, j.alpha, j.beta)
	case j.beta == 0:
		clear(acc)
	default:
		sweep.Scale(j.acc, lo, hi, j.beta)
	}
})

// measuredJob is accumulateJob, unless acc is empty, and measures g.
type measuredJob struct {
	acc, g      snug.View
	records     measure.Records
	alpha, beta float32
	ordinal     int64
	joined      *driver.Joined[measuredJob]
}

func (j measuredJob) launch(dev *snug.Device) error {
	return device.Run(dev, j)
}

func (*measuredJob) Kernel() string { return "accum.measured" }

func (j *measuredJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.acc, &j.g, &j.records.View)
	for _, o := range j.joined.Rest() {
		o.Operands(yield)
	}
}

// Join implements [driver.Joiner].
func (j *measuredJob) Join(next driver.Job) bool {
	n, ok := next.(*measuredJob)
	if !ok || n.alpha != j.alpha || n.beta != j.beta || !measure.Fits(&j.records, &n.records, j.g, n.g, n.ordinal, j.joined) {
		return false
	}
	if !driver.Join(&j.joined, j, n, measure.MaxVectors, (*measuredJob).memory) {
		return false
	}
	j.joined.Units += measure.Pieces(n.g)
	return true
}

func (j *measuredJob) memory() [3]driver.Mem {
	return [3]driver.Mem{*device.Mem(&j.acc), *device.Mem(&j.g)}
}

func (j *measuredJob) piece() int { return measure.Piece(j.g.Device(), j.g.Len()) }

func (j measuredJob) Run() {
	measuredTask.Run(cpu.Chunks(j.g.Len(), j.piece()), j)
	for _, o := range j.joined.Rest() {
		o.Run()
	}
}

// tile is the number of elements that are added and measured while the caches
// hold them.
const tile = 1 << 13

var measuredTask = cpu.NewTask(func(j *measuredJob, piece int) {
	lo, hi := cpu.Chunk(j.g.Len(), j.piece(), piece)
	sum := j.records.At(piece)
	for ; lo < hi; lo += tile {
		end := min(lo+tile, hi)
		if j.acc.Len() > 0 {
			sweep.Accumulate(j.acc.Float32s()[lo:end], j.g, lo, j.alpha, j.beta)
		}
		sum.Add(sweep.Squares(j.g, lo, end), j.g, lo, end, j.ordinal)
	}
})

// roundedJob is accumulateJob for a bfloat16 acc: the sum is rounded to one of
// the two neighbours at random. Element i takes the 16-bit half number i of the
// Philox stream of seed and tensor.
type roundedJob struct {
	acc, g       snug.View
	alpha, beta  float32
	seed, tensor uint64
	joined       *driver.Joined[roundedJob]
}

func (j roundedJob) launch(dev *snug.Device) error {
	return device.Run(dev, j)
}

func (*roundedJob) Kernel() string { return "accum.rounded" }

func (j *roundedJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.acc, &j.g)
	for _, o := range j.joined.Rest() {
		o.Operands(yield)
	}
}

// Join implements [driver.Joiner].
func (j *roundedJob) Join(next driver.Job) bool {
	n, ok := next.(*roundedJob)
	return ok && n.alpha == j.alpha && n.beta == j.beta && n.seed == j.seed &&
		driver.Join(&j.joined, j, n, maxRounded, (*roundedJob).memory)
}

func (j *roundedJob) memory() [3]driver.Mem {
	return [3]driver.Mem{*device.Mem(&j.acc), *device.Mem(&j.g)}
}

func (j roundedJob) Run() {
	roundedTask.Run(cpu.Chunks(j.acc.Len(), chunk), j)
	for _, o := range j.joined.Rest() {
		o.Run()
	}
}

// tiles are the scratch of running workers: sums of float32.
var tiles cpu.Scratch

var roundedTask = cpu.NewTask(func(j *roundedJob, item int) {
	lo, hi := cpu.Chunk(j.acc.Len(), chunk, item)
	if j.g.Len() == 0 && j.beta == 0 {
		clear(j.acc.BFloat16s()[lo:hi])
		return
	}
	draws := rounding.Draws{Stream: philox.Stream{Seed: j.seed, Tensor: j.tensor}}
	if j.g.Len() > 0 && j.beta != 0 {
		draws.Accumulate(j.acc.BFloat16s()[lo:hi], j.g, lo, j.alpha, j.beta)
		return
	}
	scratch := tiles.Get(half.Chunk)
	defer tiles.Put(scratch)
	for ; lo < hi; lo += half.Chunk {
		end := min(lo+half.Chunk, hi)
		sum := (*scratch)[:end-lo]
		if j.g.Len() > 0 {
			sweep.Accumulate(sum, j.g, lo, j.alpha, 0)
		} else {
			half.Load(sum, j.acc, lo)
			sweep.Registry.Best().F32.Scale(sum, j.beta)
		}
		draws.Store(j.acc, lo, sum)
	}
})
