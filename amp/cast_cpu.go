package amp

import (
	"fmt"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// castChunk is the number of elements that one worker converts at a time. Vectors of few elements, such as a page of
// master weights, are cut into smaller pieces, which take some microseconds each, so that several workers share them.
// Two such pieces or fewer take less time than to call a worker.
const (
	castChunk = 1 << 16
	castFew   = 1 << 17
	castGrain = 1 << 14
)

// pieceOf returns the number of elements of n that one worker converts at a time.
func pieceOf(n int) int {
	if n > 2*castGrain && n <= castFew {
		return castGrain
	}
	return castChunk
}

func (j castJob) Run() { castTask.Run(j.items(), j) }

// items returns how many pieces the workers share.
func (j *castJob) items() int { return cpu.Chunks(j.dst.Len(), pieceOf(j.dst.Len())) }

var castTask = cpu.NewTask(func(j *castJob, item int) { j.chunk(item) })

// chunk converts a piece.
func (j *castJob) chunk(item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), pieceOf(j.dst.Len()), item)
	switch {
	case j.plain():
		size := j.dst.DType().Size()
		copy(device.Mem(&j.dst).Bytes()[lo*size:hi*size], device.Mem(&j.src).Bytes()[lo*size:hi*size])
	case j.narrow() || j.random || j.limit > 0:
		j.tiles(lo, hi)
	default:
		half.Convert(j.dst, j.src, lo, hi, j.stream)
	}
}

// castTile is the number of elements that pass through the scratch at a time: few
// enough for the first-level cache, and enough that stores around the caches pay,
// although each waits at its end.
const castTile = 1 << 13

// castTiles are the scratch of running workers.
var castTiles cpu.Scratch

// tiles converts elements lo to hi-1 by way of float32.
func (j *castJob) tiles(lo, hi int) {
	if x := j.src.Float32s(); x != nil && j.random && j.limit == 0 {
		j.round(lo, x[lo:hi])
		return
	}
	k, tile := half.Registry.Best(), castTiles.Get(castTile)
	defer castTiles.Put(tile)
	for ; lo < hi; lo += castTile {
		n := min(castTile, hi-lo)
		x := half.Floats(j.src, lo, (*tile)[:n])
		if j.limit > 0 {
			k.Limit((*tile)[:n], x, j.limit)
			x = (*tile)[:n]
		}
		switch {
		case j.random:
			j.round(lo, x)
		case j.stream:
			half.StoreStream(j.dst, lo, x)
		default:
			half.Store(j.dst, lo, x)
		}
	}
}

// round rounds x at random into the elements from lo on.
func (j *castJob) round(lo int, x []float32) {
	draws := rounding.Draws{Stream: philox.Stream{Seed: j.draw.Seed, Tensor: j.draw.Tensor}, First: j.draw.First}
	if j.stream {
		draws.StoreStream(j.dst, lo, x)
	} else {
		draws.Store(j.dst, lo, x)
	}
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

// castBatch is casts on the CPU whose chunks run in one loop: the chunks of job i
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
	if c.err != nil {
		return castJob{}, nil, false // to a walker that goes on though it was told to stop
	}
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
	case job.dst.Len() == 0 || job.plain() && device.Mem(&job.dst).Overlaps(*device.Mem(&job.src)):
		return true
	}
	if c.batch.n == batchLen {
		c.flush()
	}
	c.batch.add(job)
	return true
}

func (b *castBatch) add(job castJob) {
	b.jobs[b.n], b.ends[b.n] = job, job.items()
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
