package main

import (
	"fmt"
	"math"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// This file has the memory of processes that hold a part of a model, for merge and generate.

// threadBytes is what Go's allocator keeps for each thread that computes, about.
const threadBytes = 256 << 10

// processRoom is the memory of a process beside a model.
type processRoom struct {
	command   string
	process   plan.Process
	heap      int64 // bytes of Go's memory in process.Base
	limit     int64 // of -memory, 0 for none
	predicted int64 // most resident bytes, once take has found that they fit
}

// newProcessRoom measures this process, before there is a model.
func newProcessRoom(command string, limit int64) *processRoom {
	return &processRoom{command: command, process: plan.ThisProcess(), heap: heapBytes(), limit: limit}
}

// beside returns the bytes that the process takes beside what a model counts.
func (r *processRoom) beside() int64 {
	return r.process.Base + amp.MatMulShared + codeBytes + int64(r.process.Cores)*(amp.MatMulScratch+threadBytes)
}

// take predicts the memory of a process with so many bytes of a model, and returns an error if it is more than -memory or than the machine has.
func (r *processRoom) take(bytes int64) error {
	r.predicted = saturate.Add(r.beside(), bytes)
	host := hostMemory(os.DirFS("/"))
	switch wanted := r.wanted(bytes); {
	case r.limit > 0 && wanted-baseNoise > r.limit: // what an error has named is enough for another process
		return fmt.Errorf("%s: -memory %s: nothing fits: the process takes %s before there is a model, and the smallest plan wants -memory %dMiB: %w",
			r.command, meter.FormatBytes(r.limit), meter.FormatBytesUp(r.process.Base), (wanted+1<<20-1)>>20, snug.ErrNoMemory)
	case host > 0 && r.predicted > host:
		return fmt.Errorf("%s: it takes %s, more than the %s of memory that this machine or container has: %w",
			r.command, meter.FormatBytesUp(r.predicted), meter.FormatBytes(host), snug.ErrNoMemory)
	}
	return nil
}

// wanted returns the least -memory for so many bytes of a model.
func (r *processRoom) wanted(bytes int64) int64 {
	wanted := saturate.Add(saturate.Add(r.beside(), bytes), spareBytes)
	return saturate.Add(wanted, (wanted-r.process.Base+spare-2)/(spare-1)+baseNoise)
}

// heapLimit returns the limit of Go's memory: what -memory, or else the prediction, leaves for it.
func (r *processRoom) heapLimit() int64 {
	most := r.limit
	if most == 0 {
		most = r.predicted
	}
	if most == 0 {
		return math.MaxInt64
	}
	return max(1, most-(r.process.Base-r.heap)-codeBytes)
}
