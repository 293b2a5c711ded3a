package sweep

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// firstGrain is how many elements one item of First looks at.
const firstGrain = 1 << 14

// First returns the index of the first element of scale·v, a host view, whose
// magnitude has bits of limit or more, or -1. It uses all workers and allocates
// nothing.
func First(v snug.View, scale float32, limit uint32) int {
	found := indices.Get().(*atomic.Int64)
	defer indices.Put(found)
	found.Store(math.MaxInt64)
	firstTask.Run(cpu.Chunks(v.Len(), firstGrain), firstArgs{v, scale, limit, found})
	if i := found.Load(); i != math.MaxInt64 {
		return int(i)
	}
	return -1
}

type firstArgs struct {
	v     snug.View
	scale float32
	limit uint32
	found *atomic.Int64 // the lowest index so far
}

var indices = sync.Pool{New: func() any { return new(atomic.Int64) }}

var firstTask = cpu.NewTask(func(a *firstArgs, item int) {
	lo, hi := cpu.Chunk(a.v.Len(), firstGrain, item)
	i := int64(FirstNotBelow(a.v, lo, hi, a.scale, a.limit))
	for old := a.found.Load(); i >= 0 && i < old && !a.found.CompareAndSwap(old, i); {
		old = a.found.Load()
	}
})
