package layers

import (
	"errors"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// arena allocates blocks of any size from a few pieces of device memory: one piece where [pool.Reserve] knew the size, otherwise one
// more whenever no free block is large enough. Small blocks often live long, so they come from the high end of a piece and do not
// split the room at its low end, which the others reuse one after the other.
type arena struct {
	pieces []piece
	free   []block // by piece and offset; neighbours are merged
}

type piece struct {
	all  snug.View // bytes
	free func() error
}

// block is the n bytes of a piece from byte lo on.
type block struct{ piece, lo, n int }

const (
	alignment  = 256      // bytes; the size of every block is a multiple of it
	smallShare = 20       // a block is small if it is below 1/smallShare of the arena
	padFrom    = 16 << 20 // bytes of a tensor from which its block is padded
	padding    = 4 << 10  // bytes
)

// blockBytes returns the size of the block of a tensor of n bytes. The padding of large tensors keeps equal offsets in two
// neighbours from being a large power of two apart: such addresses share a cache set and evict each other.
func blockBytes(n int64) int {
	n = min(n, math.MaxInt-2*padding) // of what no memory holds
	if n >= padFrom {
		n += padding
	}
	return int((n + alignment - 1) / alignment * alignment)
}

// grow adds a piece with room for a tensor of so many bytes. Errors are those of [snug.MakeView].
func (a *arena) grow(dev *snug.Device, bytes int64) error {
	n := blockBytes(bytes)
	all, free, err := snug.MakeView(dev, snug.U8, n)
	if err != nil {
		return err
	}
	a.free = append(a.free, block{len(a.pieces), 0, n})
	a.pieces = append(a.pieces, piece{all, free})
	return nil
}

// take returns a block for a tensor of so many bytes, in a new piece if no free block fits: then errors are those of grow.
func (a *arena) take(dev *snug.Device, bytes int64) (block, error) {
	n := blockBytes(bytes)
	if n == 0 {
		return block{}, nil
	}
	fits := func(b block) bool { return b.n >= n }
	at := slices.IndexFunc(a.free, fits)
	if at < 0 {
		if err := a.grow(dev, bytes); err != nil {
			return block{}, err
		}
		at = len(a.free) - 1
	}
	if int64(n) < a.held()/smallShare {
		for at = len(a.free) - 1; !fits(a.free[at]); at-- {
		}
		a.free[at].n -= n
		b := block{a.free[at].piece, a.free[at].lo + a.free[at].n, n}
		a.drop(at)
		return b, nil
	}
	b := block{a.free[at].piece, a.free[at].lo, n}
	a.free[at].lo, a.free[at].n = b.lo+n, a.free[at].n-n
	a.drop(at)
	return b, nil
}

// drop removes free block number at if it is empty.
func (a *arena) drop(at int) {
	if a.free[at].n == 0 {
		a.free = slices.Delete(a.free, at, at+1)
	}
}

// put frees a block and merges it with the free neighbours.
func (a *arena) put(b block) {
	if b.n == 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(a.free, b, func(x, b block) int {
		if x.piece != b.piece {
			return x.piece - b.piece
		}
		return x.lo - b.lo
	})
	touch := func(x, y block) bool { return x.piece == y.piece && x.lo+x.n == y.lo }
	if at < len(a.free) && touch(b, a.free[at]) {
		b.n += a.free[at].n
		a.free = slices.Delete(a.free, at, at+1)
	}
	if at > 0 && touch(a.free[at-1], b) {
		a.free[at-1].n += b.n
		return
	}
	a.free = slices.Insert(a.free, at, b)
}

// view returns the first n bytes of a block.
func (a *arena) view(b block, n int) snug.View {
	if n == 0 {
		return snug.View{}
	}
	return part(a.pieces[b.piece].all, b.lo, n)
}

// held returns the bytes of all pieces.
func (a *arena) held() (sum int64) {
	for _, p := range a.pieces {
		sum += int64(p.all.Len())
	}
	return sum
}

// close frees all pieces.
func (a *arena) close() (err error) {
	for _, p := range a.pieces {
		err = errors.Join(err, p.free())
	}
	a.pieces, a.free = nil, nil
	return err
}
