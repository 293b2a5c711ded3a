package accum

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/ranks"
)

// These are what ranks do beyond the reduction of gradients. [Local] has all three, and so have the packages of
// dist. As with a Reducer, all ranks make the same calls in the same order, and every call waits for the others.
// They move elements of any type, whose bits do not change.

// Broadcaster is a [Reducer] that copies a vector of one rank to all.
type Broadcaster interface {
	// Broadcast replaces v by the v of rank root. Its length and type are the same everywhere.
	Broadcast(root int, v snug.View) error
}

// AllToAller is a [Reducer] whose ranks each send a part of a vector to each other rank.
type AllToAller interface {
	// AllToAll sends part i of src to rank i, where it becomes the part of dst that has the number of the sender. Parts
	// are of equal length: the common length of dst and src, which do not overlap, is a multiple of Size.
	AllToAll(dst, src snug.View) error
}

// SendReceiver is a [Reducer] whose ranks send a vector each, as around a ring.
type SendReceiver interface {
	// SendReceive sends src to rank to, and replaces dst by what rank from sends. Each rank receives from the rank that
	// sends to it, as many elements of one type as are sent. Lengths may differ from rank to rank. dst and src do not
	// overlap.
	SendReceive(dst snug.View, from int, src snug.View, to int) error
}

// Broadcast implements [Broadcaster].
func (r *localRank) Broadcast(root int, v snug.View) error {
	return r.run(ranks.BroadcastOf(root, v), func(calls []call) error {
		if r.rank == root {
			return nil
		}
		return snug.Copy(v, calls[root].V)
	})
}

// AllToAll implements [AllToAller].
func (r *localRank) AllToAll(dst, src snug.View) error {
	return r.run(ranks.AllToAllOf(dst, src), func(calls []call) error {
		n := src.Len() / len(calls)
		for rank, c := range calls {
			to, err := dst.Slice(rank*n, (rank+1)*n)
			if err != nil {
				return err
			}
			from, err := c.V.Slice(r.rank*n, (r.rank+1)*n)
			if err != nil {
				return err
			}
			if err := snug.Copy(to, from); err != nil {
				return err
			}
		}
		return nil
	})
}

// SendReceive implements [SendReceiver].
func (r *localRank) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	return r.run(ranks.SendReceiveOf(dst, from, src, to), func(calls []call) error {
		return snug.Copy(dst, calls[from].V)
	})
}
