package amp

import (
	"fmt"
	"io"
	"slices"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/state"
)

// Ranks are processes that have a shard of each parameter, for [Master.WriteShards].
type Ranks interface {
	Rank() int // of this process, from 0
	Size() int // processes
	// Range returns elements lo to hi-1 of a parameter, which a rank has. They may be none.
	Range(name string, rank int) (lo, hi int)
	// Send brings b from a rank above 0 to rank 0, where it fills a b of the same length. All ranks call Send for the
	// same rank; on those that neither send nor receive, b is empty.
	Send(from int, b []byte) error
}

// WriteShards gathers the shards of all ranks, and writes the kept data of whole parameters to w on rank 0. It writes the
// same bytes as [Master.WriteTo] of a Master that has the whole parameters. A Sharded of package accum is a Ranks. All ranks call WriteShards between the same
// updates, with the same parameters. On other ranks w is not used. It needs memory for a chunk.
//
// Each rank makes all calls of Send, whatever fails on it, so that the others need not wait; what is written after an
// error is of no use. So the caller must learn from all ranks whether they have failed.
//
// The error wraps [snug.ErrConfig] after an update that stopped half-way, and if Range differs from the shards.
// Otherwise it comes from w, the Storage or Send.
func (m *Master) WriteShards(w io.Writer, ranks Ranks) error {
	if ranks == nil {
		return fmt.Errorf("amp: save shards of masters: there are no Ranks: %w", snug.ErrConfig)
	}
	if err := m.ready(); err != nil {
		return fmt.Errorf("amp: save shards of masters: %w", err)
	}
	g := &masterGathering{m: m, ranks: ranks}
	g.fail(m.savable())
	defer m.enter()()
	if ranks.Rank() == 0 {
		g.to = state.NewEncoder(w, state.MastersMagic)
		g.to.PutMasters(m.header())
		g.to.Data(m.totalBytes())
	}
	for _, name := range m.names() {
		g.write(m.params[name])
	}
	if g.to != nil {
		_, err := g.to.Finish()
		g.fail(err)
	}
	if g.err != nil {
		return fmt.Errorf("amp: save shards of masters: %w", g.err)
	}
	return nil
}

// masterGathering brings the shards of all ranks to rank 0.
type masterGathering struct {
	m     *Master
	ranks Ranks
	to    *state.Encoder // on rank 0
	piece []float32      // memory for data of another rank
	err   error          // the first one
}

func (g *masterGathering) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// sendPiece is how many elements a call of Send moves at most.
const sendPiece = 1 << 16

// write gathers a parameter.
func (g *masterGathering) write(p *masterParam) {
	own := g.ranks.Rank()
	if lo, hi := g.ranks.Range(p.name, own); (lo != p.lo || hi != p.lo+p.n) && (lo != hi || p.n > 0) {
		g.fail(fmt.Errorf("rank %d has elements %d to %d of parameter %q, and Range says %d to %d: %w", own, p.lo, p.lo+p.n, p.name, lo, hi, snug.ErrConfig))
	}
	if g.m.form == NoMaster {
		return
	}
	covered := 0
	for rank := range g.ranks.Size() {
		lo, hi := g.ranks.Range(p.name, rank)
		if lo < hi && lo != covered {
			g.fail(fmt.Errorf("parameter %q: element %d follows element %d: %w", p.name, lo, covered, snug.ErrConfig))
		}
		for ; lo < hi; lo += sendPiece {
			g.part(p, rank, lo, min(lo+sendPiece, hi))
		}
		covered = max(covered, hi)
	}
	if covered != p.total {
		g.fail(fmt.Errorf("the ranks have %d elements of parameter %q, want %d: %w", covered, p.name, p.total, snug.ErrConfig))
	}
}

// part brings elements lo to hi-1, which a rank has, to rank 0 and writes them.
func (g *masterGathering) part(p *masterParam, rank, lo, hi int) {
	own, size := g.ranks.Rank(), g.m.form.bytes(hi-lo)
	var b []byte
	if own == 0 || own == rank {
		g.piece = slices.Grow(g.piece[:0], (size+3)/4)
		b = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(g.piece))), size)
	}
	if own == rank && lo >= p.lo && hi <= p.lo+p.n {
		g.fail(g.extract(p, b, lo-p.lo, hi-p.lo))
	}
	if rank > 0 {
		g.fail(g.ranks.Send(rank, b))
	}
	if own == 0 {
		v, err := g.m.form.viewOf(b, hi-lo)
		g.fail(err)
		g.to.Put(g.m.form.values(v))
	}
}

// extract copies the kept data of elements lo to hi-1 of a shard to b.
func (g *masterGathering) extract(p *masterParam, b []byte, lo, hi int) error {
	span := g.m.span(p)
	for at := lo; at < hi; {
		i := at / span
		end := min(hi, (i+1)*span)
		err := g.m.visit(p, i, false, func(c masterChunk) error {
			kept, err := g.m.form.part(c.kept, at-c.lo, end-c.lo)
			if err != nil {
				return err
			}
			return g.m.pieces(kept, false, func(from int, v snug.View) error {
				copy(b[g.m.form.bytes(at-lo)+from*v.DType().Size():], device.Mem(&v).Bytes())
				return nil
			})
		})
		if err != nil {
			return err
		}
		at = end
	}
	return nil
}
