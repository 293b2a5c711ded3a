package accum

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/ranks"
)

const maxLocal = 1 << 16 // ranks of one process

// Local returns the ranks of data-parallel training within one process: a
// [Reducer] for each of size goroutines. Each rank adds its own part of a
// vector, over all vectors in the order of the ranks and in float32, where
// they lie, so that the result does not depend on timing. A call allocates 12 KiB
// a rank, through which vectors on devices pass.
//
// A call waits for the other ranks until ctx ends; then, and once a rank has made
// another call than the others or one with a vector of another length or type,
// every call of every rank fails. The error wraps [snug.ErrConfig], also for a
// size that is not 1 to 65,536 and a nil ctx, [snug.ErrShape], [snug.ErrDType] or ctx's.
func Local(ctx context.Context, size int) ([]Reducer, error) {
	if size < 1 || size > maxLocal {
		return nil, fmt.Errorf("accum: %d ranks, want 1 to %d: %w", size, maxLocal, snug.ErrConfig)
	}
	if ctx == nil {
		return nil, fmt.Errorf("accum: local ranks: the context is nil: %w", snug.ErrConfig)
	}
	g := &group{ctx: ctx, calls: make([]call, size), wanted: make([]ranks.Call, size), arrived: make(chan struct{})}
	list := make([]Reducer, size)
	for i := range list {
		list[i] = &localRank{group: g, rank: i}
	}
	return list, nil
}

// group is what the ranks share.
type group struct {
	ctx context.Context

	mu      sync.Mutex
	calls   []call        // by rank, of those that have arrived
	wanted  []ranks.Call  // the same, while they are compared
	met     []call        // of the last time that all had; not written again
	waiting int           // how many have
	arrived chan struct{} // closed when all are
	err     error         // the first one; it stays
}

// call is what a rank wants.
type call struct {
	ranks.Job
	err error // of what it has done
}

// meet waits until all ranks have come here with a call, and returns the calls.
// With the last of them check is called, while the others still wait.
func (g *group) meet(rank int, c call, check func() error) ([]call, error) {
	g.mu.Lock()
	if g.err != nil {
		defer g.mu.Unlock()
		return nil, g.err
	}
	g.calls[rank] = c
	arrived := g.arrived
	if g.waiting++; g.waiting == len(g.calls) {
		g.err, g.met = check(), slices.Clone(g.calls)
		g.waiting, g.arrived = 0, make(chan struct{})
		close(arrived)
	}
	g.mu.Unlock()
	select {
	case <-arrived:
	case <-g.ctx.Done():
		select {
		case <-arrived: // before that, too
		default:
			g.fail(fmt.Errorf("accum: %s: rank %d waits for others: %w", c.Op, rank, context.Cause(g.ctx)))
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.met, g.err
}

func (g *group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
}

// same returns an error unless all ranks want the same.
func (g *group) same() error {
	for i, c := range g.calls {
		g.wanted[i] = c.Call
	}
	return fault.Of(ranks.Check(g.wanted), "accum")
}

// failed returns the first error that a rank has met in its work.
func (g *group) failed() error {
	for rank, c := range g.calls {
		if c.err != nil {
			return fmt.Errorf("accum: %s: rank %d: %w", c.Op, rank, c.err)
		}
	}
	return nil
}

// localRank is one of a group.
type localRank struct {
	*group
	rank int
}

func (r *localRank) Rank() int { return r.rank }
func (r *localRank) Size() int { return len(r.calls) }

// run meets the other ranks, works on what they brought, and meets them again.
func (r *localRank) run(j ranks.Job, work func(calls []call) error) error {
	c := call{Job: j}
	calls, err := r.meet(r.rank, c, r.same)
	if err != nil {
		return err
	}
	c.err = work(calls)
	_, err = r.meet(r.rank, c, r.failed)
	return err
}

func (r *localRank) Sum(x []float64) error {
	sums := make([]float64, len(x))
	err := r.run(ranks.SumOf(x), func(calls []call) error {
		for _, c := range calls {
			for i, v := range c.X {
				sums[i] += v
			}
		}
		return nil
	})
	if err == nil {
		copy(x, sums)
	}
	return err
}

func (r *localRank) AllReduce(v snug.View) error {
	return r.run(ranks.ReduceOf(ranks.AllReduce, v), func(calls []call) error { return r.addParts(calls, calls) })
}

func (r *localRank) ReduceScatter(v snug.View) error {
	return r.run(ranks.ReduceOf(ranks.ReduceScatter, v), func(calls []call) error { return r.addParts(calls, calls[r.rank:r.rank+1]) })
}

func (r *localRank) AllGather(v snug.View) error {
	return r.run(ranks.ReduceOf(ranks.AllGather, v), func(calls []call) error {
		return r.eachTile(v, func(lo, hi int, s *staging) error {
			own, err := s.host(v, lo, hi)
			if err != nil {
				return err
			}
			for rank, c := range calls {
				if rank == r.rank {
					continue
				}
				if err := copyTo(c.V, lo, own); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// addParts adds the rank's part of all vectors and writes the sum to some of
// them.
func (r *localRank) addParts(from, to []call) error {
	return r.eachTile(from[0].V, func(lo, hi int, s *staging) error {
		sum, x := s.sum[:hi-lo], s.x[:hi-lo]
		for rank, c := range from {
			v, err := s.host(c.V, lo, hi)
			if err != nil {
				return err
			}
			if rank == 0 {
				half.Load(sum, v, 0)
				continue
			}
			half.Load(x, v, 0)
			for i := range sum {
				sum[i] += x[i]
			}
		}
		out, err := s.wide.Slice(0, hi-lo)
		if err != nil {
			return err
		}
		half.Store(out, 0, sum)
		for _, c := range to {
			if err := copyTo(c.V, lo, out); err != nil {
				return err
			}
		}
		return nil
	})
}

// staging is the host memory of a rank through which vectors pass.
type staging struct {
	sum, x []float32
	wide   snug.View // elements of the vectors' type
}

// stagingLen is the number of elements that pass at a time.
const stagingLen = half.Chunk

// eachTile calls do for the tiles of the rank's part of v.
func (r *localRank) eachTile(v snug.View, do func(lo, hi int, s *staging) error) error {
	wide, _, err := snug.MakeView(snug.CPU(), v.DType(), stagingLen)
	if err != nil {
		return err
	}
	s := &staging{make([]float32, stagingLen), make([]float32, stagingLen), wide}
	for lo, end := Shard(v.Len(), r.rank, r.Size()); lo < end; lo += stagingLen {
		if err := do(lo, min(lo+stagingLen, end), s); err != nil {
			return err
		}
	}
	return nil
}

// host returns elements lo to hi-1 of v in host memory, valid until the next
// call: their own, where v lies there.
func (s *staging) host(v snug.View, lo, hi int) (snug.View, error) {
	part, err := v.Slice(lo, hi)
	if err != nil || part.Device().IsCPU() {
		return part, err
	}
	there, err := s.wide.Slice(0, hi-lo)
	if err != nil {
		return there, err
	}
	return there, snug.Copy(there, part)
}

// copyTo copies x to the elements of v from lo on.
func copyTo(v snug.View, lo int, x snug.View) error {
	part, err := v.Slice(lo, lo+x.Len())
	if err != nil {
		return err
	}
	return snug.Copy(part, x)
}
