package quant8

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/sweep"
)

// firstAbove returns the index of the first element of scale·v, a host view,
// whose magnitude has bits of limit or more, or -1.
func firstAbove(v snug.View, scale float32, limit uint32) int {
	found := indices.Get().(*atomic.Int64)
	defer indices.Put(found)
	found.Store(math.MaxInt64)
	scanTask.Run(cpu.Chunks(v.Len(), grain), scanArgs{v, scale, limit, found})
	if i := found.Load(); i != math.MaxInt64 {
		return int(i)
	}
	return -1
}

type scanArgs struct {
	v     snug.View
	scale float32
	limit uint32
	found *atomic.Int64 // the lowest index so far
}

var indices = sync.Pool{New: func() any { return new(atomic.Int64) }}

var scanTask = cpu.NewTask(func(a *scanArgs, item int) {
	lo, hi := cpu.Chunk(a.v.Len(), grain, item)
	i := sweep.FirstNotBelow(a.v, lo, hi, a.scale, a.limit)
	if i < 0 {
		return
	}
	for i64 := int64(i); ; {
		old := a.found.Load()
		if old <= i64 || a.found.CompareAndSwap(old, i64) {
			return
		}
	}
})

// firstAboveOn is firstAbove on a device other than the CPU, which it waits
// for.
func firstAboveOn(dev *snug.Device, v snug.View, scale float32, limit uint32) (int, error) {
	index, err := snug.Make[int32](dev, 2)
	if err != nil {
		return 0, err
	}
	var words [2]int32
	if err = launch(dev, scanJob{index.View(), v, scale, limit}); err == nil {
		err = index.CopyOut(words[:])
	}
	if e := index.Close(); err == nil {
		err = e
	}
	return int(int64(words[1])<<32 | int64(uint32(words[0]))), err
}

// scanJob writes what firstAbove returns as two words, the lower first.
type scanJob struct {
	index, v snug.View
	scale    float32
	limit    uint32
}

func (j *scanJob) Kernel() string { return "quant8.scan" }

func (j *scanJob) Operands(yield func(*driver.Mem)) {
	yield(j.index.Mem())
	yield(j.v.Mem())
}

func (j *scanJob) Run() {
	i, words := int64(firstAbove(j.v, j.scale, j.limit)), snug.Host[int32](j.index)
	words[0], words[1] = int32(i), int32(i>>32)
}
