package accum

import (
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/ranks"
)

// Batch is the division of a global batch: in each step every rank has Window micro-batches
// of at most Micro samples.
type Batch struct {
	Global int // samples of a step, over all ranks
	Micro  int // samples of a micro-batch at most
	Window int // micro-batches of a rank in a step
	Ranks  int
}

// NewBatch divides a global batch into micro-batches of at most micro samples. It returns
// the smallest Window with Micro·Window·Ranks ≥ Global, and then the smallest Micro.
// Neither need divide the other: [Batch.Samples] spreads the samples
// evenly, and a [Window] weights them. The error wraps [snug.ErrConfig] for
// counts below 1 and for fewer samples than ranks.
func NewBatch(global, micro, ranks int) (Batch, error) {
	if micro < 1 || ranks < 1 || global < ranks {
		return Batch{}, fmt.Errorf("accum: a batch of %d samples over %d ranks in micro-batches of %d: want 1 or more, and a sample for each rank: %w",
			global, ranks, micro, snug.ErrConfig)
	}
	share := ceilDiv(global, ranks) // of the largest rank
	return spread(global, ranks, ceilDiv(share, micro)), nil
}

// spread returns the batch in a number of micro-batches.
func spread(global, ranks, window int) Batch {
	return Batch{Global: global, Micro: ceilDiv(ceilDiv(global, ranks), window), Window: window, Ranks: ranks}
}

func ceilDiv(a, b int) int { return (a-1)/b + 1 }

// Samples returns the samples lo to hi-1 of the global batch that are
// micro-batch number micro of a rank. All sizes differ by at most one. For a micro-batch that
// b does not have, lo equals hi.
func (b Batch) Samples(rank, micro int) (lo, hi int) {
	first, last := Shard(b.Global, rank, b.Ranks)
	lo, hi = Shard(last-first, micro, b.Window)
	return first + lo, first + hi
}

// Shard returns the range lo to hi-1 of n elements that belongs to one of size ranks. The
// ranges are contiguous, in the order of the ranks, and differ in length by at most one. A
// [Reducer] cuts vectors this way. Without elements, or for a rank outside of 0 to size-1,
// lo and hi are 0.
func Shard(n, rank, size int) (lo, hi int) { return ranks.Shard(n, rank, size) }

// FindMicroBatch looks for the largest micro-batch that fits. It starts with
// micro-batches of at most start samples and calls try, which works on one
// micro-batch, or on a whole step, of b.Micro samples. When try fails with an
// error that wraps [snug.ErrNoMemory], it shrinks the micro-batch and enlarges
// the window, so that the global batch stays what it is, where
// find_executable_batch_size of Accelerate changes it: it halves until try
// succeeds and then closes in on the largest size that does. try must free what
// it has taken before it returns.
//
// Other errors of try end the search and are returned as they are, and so does a panic. When even a
// micro-batch of one sample does not fit, the error wraps ErrNoMemory. Other
// errors are the errors of [NewBatch].
func FindMicroBatch(global, ranks, start int, try func(b Batch) error) (Batch, error) {
	b, err := NewBatch(global, start, ranks)
	if err != nil {
		return Batch{}, err
	}
	if try == nil {
		return Batch{}, fmt.Errorf("accum: FindMicroBatch: the function that tries is nil: %w", snug.ErrConfig)
	}
	most := ceilDiv(global, ranks) // a window of single samples
	failed := b.Window - 1         // the largest window that is ruled out
	for {
		err := try(b)
		if err == nil {
			return refine(b, failed, try)
		}
		if !errors.Is(err, snug.ErrNoMemory) {
			return Batch{}, err
		}
		if b.Micro == 1 {
			return Batch{}, fmt.Errorf("accum: a micro-batch of one sample does not fit: %w", err)
		}
		failed = b.Window
		b = spread(global, ranks, b.Window+min(most-b.Window, b.Window))
	}
}

// refine returns the batch with the smallest window above failed that try accepts.
// The window of fits is accepted.
func refine(fits Batch, failed int, try func(b Batch) error) (Batch, error) {
	for failed+1 < fits.Window {
		mid := spread(fits.Global, fits.Ranks, failed+(fits.Window-failed)/2)
		switch mid.Micro {
		case fits.Micro: // as large, in fewer micro-batches
			fits = mid
			continue
		case spread(fits.Global, fits.Ranks, failed).Micro: // not smaller, in more
			failed = mid.Window
			continue
		}
		switch err := try(mid); {
		case err == nil:
			fits = mid
		case errors.Is(err, snug.ErrNoMemory):
			failed = mid.Window
		default:
			return Batch{}, err
		}
	}
	return fits, nil
}

// LinearLR returns the learning rate for a batch of size to, when lr is right for
// one of size from: lr·to/from (Goyal et al., "Accurate, Large Minibatch SGD",
// 2017), the rule for stochastic gradient descent. The result is NaN unless both
// sizes are above 0.
func LinearLR(lr, from, to float64) float64 { return lr * ratio(from, to) }

// SquareRootLR is [LinearLR] with lr·√(to/from) (Krizhevsky, "One weird trick
// for parallelizing convolutional neural networks", 2014), the rule for adaptive optimizers
// (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
// Algorithms", 2022).
func SquareRootLR(lr, from, to float64) float64 { return lr * math.Sqrt(ratio(from, to)) }

func ratio(from, to float64) float64 {
	if !(from > 0 && to > 0) {
		return math.NaN()
	}
	return to / from
}
