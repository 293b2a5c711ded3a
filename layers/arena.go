package layers

import (
	"errors"
	"slices"

	"github.com/snug-ml/snug"
)

// arena is memory for blocks of any size that come and go. It is one piece where its size was known before, and else as many as were
// needed. A large block lies as low as possible, and a small one, which may stay, as high: so large blocks find room one after the
// other.
type arena struct {
	pieces []piece
	free   []block // in order, no two of which touch
}

type piece struct {
	all  snug.View // bytes
	free func() error
}

// block is bytes of a piece.
type block struct{ piece, lo, n int }

const (
	alignment  = 256      // of blocks
	smallShare = 20       // a block below such a part of the arena is small
	large      = 16 << 20 // bytes
	page       = 4 << 10
)

// blockBytes returns the bytes of the block of a tensor. A large one has a page more, so that the same places of two tensors are not
// a multiple of a power of two apart, which caches keep one of.
func blockBytes(n int64) int {
	if n >= large {
		n += page
	}
	return int((n + alignment - 1) / alignment * alignment)
}

// grow adds a piece.
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

// take returns a block for a tensor of so many bytes.
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

// drop removes a free block of which nothing is left.
func (a *arena) drop(at int) {
	if a.free[at].n == 0 {
		a.free = slices.Delete(a.free, at, at+1)
	}
}

// put frees a block, and joins it to the free ones beside it.
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
