package quant8

import (
	"fmt"
	"io"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

// Ranks are processes that have a shard of each parameter, for [Optimizer.WriteShards].
type Ranks interface {
	Rank() int // of this process, from 0
	Size() int // processes
	// Range returns elements lo to hi-1 of a parameter, which a rank has. They may be none.
	Range(name string, rank int) (lo, hi int)
	// Send brings b from a rank above 0 to rank 0, where it fills a b of the same length. All ranks call Send for the
	// same rank; on those that neither send nor receive, b is empty.
	Send(from int, b []byte) error
}

// WriteShards gathers the shards of all ranks, and writes the state of whole parameters to w on rank 0. It writes the same
// bytes as [Optimizer.WriteTo] of an optimizer that has the whole parameters and the same Chunk: [Optimizer.ReadShards]
// restores them with any number of ranks. An Sharded of package accum is a Ranks. All ranks call WriteShards between the same steps, with optimizers to which the same parameters
// were added. On other ranks w is not used. It needs memory for two chunks, and moves the state of each rank once.
//
// Each rank makes all calls of Send, whatever fails on it, so that the others need not wait; what is written after an
// error is of no use. So the caller must learn from all ranks whether they have failed.
//
// The error wraps [snug.ErrConfig] if a step is not complete, for a rule whose steps take whole matrices or parameters,
// and if Range differs from the shards. Otherwise it comes from w, the Storage or Send.
func (a *Optimizer) WriteShards(w io.Writer, ranks Ranks) error {
	if err := a.writeShards(w, ranks); err != nil {
		return fmt.Errorf("quant8: %s: save shards: %w", a.label(), err)
	}
	return nil
}

func (a *Optimizer) writeShards(w io.Writer, ranks Ranks) error {
	if ranks == nil {
		return fmt.Errorf("there are no Ranks: %w", snug.ErrConfig)
	}
	if a.params == nil {
		return a.made()
	}
	for _, q := range a.params {
		if q.form != (form{}) {
			return fmt.Errorf("parameter %q is not a vector: %w", q.name, snug.ErrConfig)
		}
	}
	g := &gathering{a: a, ranks: ranks}
	g.fail(a.checkSave())
	if a.midStep() {
		g.fail(fmt.Errorf("step %d is not complete: %w", a.t, snug.ErrConfig))
	}
	h, size := a.header(), int64(0)
	for i := range h.Params {
		p := &h.Params[i]
		q := a.params[p.Name]
		p.Lo, p.N, p.Bytes, p.Marks = 0, p.Total, uint64(q.stateBytes(q.layout, q.total)), ""
		size += int64(p.Bytes)
	}
	if ranks.Rank() == 0 {
		g.to = state.NewEncoder(w, state.OptimizerMagic)
		g.to.PutOptimizer(h)
		g.to.Data(size)
	}
	for _, name := range a.names() {
		g.write(a.params[name])
	}
	if g.to != nil {
		_, err := g.to.Finish()
		g.fail(err)
	}
	return g.err
}

// gathering brings the shards of all ranks to rank 0.
type gathering struct {
	a            *Optimizer
	ranks        Ranks
	to           *state.Encoder // on rank 0
	whole, piece []float32      // memory of a chunk, and of a rank's part of it
	err          error          // the first one
}

func (g *gathering) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// write gathers a parameter, chunk by chunk.
func (g *gathering) write(q *param) {
	own := g.ranks.Rank()
	if lo, hi := g.ranks.Range(q.name, own); (lo != q.lo || hi != q.lo+q.n) && (lo != hi || q.n > 0) {
		g.fail(fmt.Errorf("rank %d has elements %d to %d of parameter %q, and Range says %d to %d: %w", own, q.lo, q.lo+q.n, q.name, lo, hi, snug.ErrConfig))
	}
	for lo := 0; lo < q.total && q.states > 0; lo += g.a.o.Chunk {
		to := shardBlob{lo: lo, n: min(g.a.o.Chunk, q.total-lo)}
		if own == 0 {
			to.blob = blobIn(&g.whole, int(q.bytes(to.n)))
		}
		covered := 0
		for rank := range g.ranks.Size() {
			covered += g.part(q, rank, to)
		}
		if covered != to.n {
			g.fail(fmt.Errorf("the ranks have %d of the elements %d to %d of parameter %q: %w", covered, lo, lo+to.n, q.name, snug.ErrConfig))
		}
		if own == 0 {
			g.to.Put(to.blob)
		}
	}
}

// part brings what a rank has of a chunk to rank 0, and returns the number of its elements.
func (g *gathering) part(q *param, rank int, chunk shardBlob) int {
	lo, hi := g.ranks.Range(q.name, rank)
	lo, hi = max(lo, chunk.lo), min(hi, chunk.lo+chunk.n)
	if lo >= hi {
		return 0
	}
	from := shardBlob{lo: lo, n: hi - lo}
	own := g.ranks.Rank()
	if own == 0 || own == rank {
		from.blob = blobIn(&g.piece, int(q.bytes(from.n)))
	}
	if own == rank && lo >= q.lo && hi <= q.lo+q.n {
		g.fail(g.a.extract(q, from))
	}
	if rank > 0 {
		g.fail(g.ranks.Send(rank, from.blob))
	}
	if own == 0 {
		q.copyElements(chunk, from, lo, hi)
	}
	return hi - lo
}

// blobIn returns size bytes of memory, which grows as needed and is aligned.
func blobIn(memory *[]float32, size int) []byte {
	n := (size + 3) / 4
	*memory = slices.Grow((*memory)[:0], n)
	return bytesOfFloats((*memory)[:n])[:size]
}

// extract copies the state of elements of q from their chunks.
func (a *Optimizer) extract(q *param, to shardBlob) error {
	for lo, end := to.lo, to.lo+to.n; lo < end; {
		chunk := (lo - q.lo) / a.o.Chunk
		from := shardBlob{lo: q.lo + chunk*a.o.Chunk}
		from.n = min(a.o.Chunk, q.lo+q.n-from.lo)
		hi := min(end, from.lo+from.n)
		err := a.withBlob(q, chunk, false, func(blob []byte) error {
			from.blob = blob
			q.copyElements(to, from, lo, hi)
			return nil
		})
		if err != nil {
			return fmt.Errorf("parameter %q: %w", q.name, err)
		}
		lo = hi
	}
	return nil
}
