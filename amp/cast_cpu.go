package amp

import (
	"fmt"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
)

// castChunk is the number of elements that one worker converts at a time.
const castChunk = 1 << 16

func (j *castJob) Run() { castTask.Run(cpu.Chunks(j.dst.Len(), castChunk), *j) }

var castTask = cpu.NewTask(func(j *castJob, item int) { j.chunk(item) })

// chunk converts a chunk.
func (j *castJob) chunk(item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), castChunk, item)
	switch {
	case j.plain():
		size := j.dst.DType().Size()
		copy(j.dst.Mem().Bytes()[lo*size:hi*size], j.src.Mem().Bytes()[lo*size:hi*size])
	case j.random || j.limit > 0:
		j.tiles(lo, hi)
	default:
		half.Convert(j.dst, j.src, lo, hi, j.stream)
	}
}

// castTile is the number of elements that pass through the scratch at a time: few
// enough for the first-level cache, and so many that stores around the caches,
// each of which waits at its end, pay.
const castTile = 8 << 10

// scratch is that of a worker: elements as float32, and the words of their random
// numbers with those of the block before.
type scratch struct {
	tile  [castTile]float32
	words [castTile/perWord + perBlock/perWord]uint32
}

// Words have two halves, and come in blocks of four.
const (
	perWord  = 2
	perBlock = 4 * perWord
)

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// tiles converts elements lo to hi-1 by way of float32.
func (j *castJob) tiles(lo, hi int) {
	k, s := half.Registry.Best(), scratches.Get().(*scratch)
	defer scratches.Put(s)
	for ; lo < hi; lo += castTile {
		n := min(castTile, hi-lo)
		x := s.tile[:n]
		if x = half.Floats(j.src, lo, x); j.limit > 0 {
			k.Limit(s.tile[:n], x, j.limit)
			x = s.tile[:n]
		}
		switch {
		case !j.random && j.stream:
			half.StoreStream(j.dst, lo, x)
		case !j.random:
			half.Store(j.dst, lo, x)
		case j.dst.DType() == snug.F16:
			k.F32ToF16Stochastic(j.dst.Float16s()[lo:lo+n], x, s.draw(j.draw, lo, n))
		default:
			k.F32ToBF16Stochastic(j.dst.BFloat16s()[lo:lo+n], x, s.draw(j.draw, lo, n))
		}
	}
}

// draw returns the random numbers of elements lo to lo+n-1.
func (s *scratch) draw(d Draw, lo, n int) []uint16 {
	first := d.First + uint64(lo)
	skip := int(first % perBlock) // halves of the first block that come before
	words := s.words[:cpu.Chunks(skip+n, perWord)]
	return philox.Stream{Seed: d.Seed, Tensor: d.Tensor}.Halves(words, (first-uint64(skip))/perWord)[skip:]
}

// caster is the two walks of CastAll. Casters are pooled, with the functions they
// hand to the walker, so that one allocates nothing.
type caster struct {
	o      CastOptions
	walked int
	err    error
	batch  castBatch

	check, work func(name string, p CastPair) bool
}

// castBatch is casts on the CPU whose chunks are done in one loop: those of job i
// are items ends[i-1] to ends[i]-1.
type castBatch struct {
	jobs [batchLen]castJob
	ends [batchLen]int
	n    int
}

const batchLen = 64

var casters = sync.Pool{New: func() any {
	c := new(caster)
	c.check, c.work = c.checkOne, c.workOne
	return c
}}

func (c *caster) release() {
	c.o, c.walked, c.err, c.batch = CastOptions{}, 0, nil, castBatch{}
	casters.Put(c)
}

// next returns the job of the vector that the walker has come to.
func (c *caster) next(name string, p CastPair) (castJob, *snug.Device, bool) {
	o := c.o
	o.Draw.Tensor += uint64(c.walked)
	c.walked++
	job, dev, err := newCast(p.Dst, p.Src, o)
	if err != nil {
		c.err = fmt.Errorf("amp: CastAll: %q: %w", name, err)
	}
	return job, dev, err == nil
}

func (c *caster) checkOne(name string, p CastPair) bool {
	_, _, ok := c.next(name, p)
	return ok
}

func (c *caster) workOne(name string, p CastPair) bool {
	job, dev, ok := c.next(name, p)
	switch {
	case !ok:
		return false
	case !dev.IsCPU():
		if c.err = job.launch(dev); c.err != nil {
			c.err = fmt.Errorf("amp: CastAll: %q: %w", name, c.err)
		}
		return c.err == nil
	case job.dst.Len() == 0 || job.plain() && overlap(job.dst, job.src):
		return true
	}
	if c.batch.n == batchLen {
		c.flush()
	}
	c.batch.add(job)
	return true
}

func (b *castBatch) add(job castJob) {
	b.jobs[b.n], b.ends[b.n] = job, cpu.Chunks(job.dst.Len(), castChunk)
	if b.n > 0 {
		b.ends[b.n] += b.ends[b.n-1]
	}
	b.n++
}

// flush does the casts of the batch.
func (c *caster) flush() {
	if b := &c.batch; b.n > 0 {
		batchTask.Run(b.ends[b.n-1], batchArgs{b})
		b.n = 0
	}
}

type batchArgs struct{ *castBatch }

var batchTask = cpu.NewTask(func(b *batchArgs, item int) {
	i, first := 0, 0
	for b.ends[i] <= item {
		first = b.ends[i]
		i++
	}
	b.jobs[i].chunk(item - first)
})
