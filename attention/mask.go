package attention

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// MaskTile is the number of queries, and of keys, in a tile of a [Mask].
const MaskTile = 64

// Mask says which keys each query sees, in addition to Causal, Window and KLens of
// [Options]. It is a map of tiles of MaskTile queries by MaskTile keys. A hidden tile costs
// nothing, and a fully visible tile costs the same as without a Mask. Only a partly visible
// tile stores a bit for every query and key, 512 bytes.
//
// Build one Mask for every shape and use it for any number of calls, also concurrently.
// Calls on a device other than the CPU take the result of [Mask.On].
type Mask struct {
	batch, heads, seqQ, seqK int
	tilesK                   int
	// tiles has, for every tile, hidden, seen, or the number of its words plus partial.
	tiles []int32
	words []uint64 // MaskTile a partial tile: bit j of word i says whether query i sees key j
	// table has the words, two numbers each, and then the tiles on the device dev, if not nil.
	dev   *snug.Device
	table snug.Array[int32]
}

const (
	hidden int32 = iota
	seen
	partial
)

// NewMask returns a Mask that hides key j from query i of head h and batch element b unless
// sees(b, h, i, j). batch and heads equal those dimensions of the Options, or are 1: then
// all batch elements or heads share the Mask. sees is called once for every query and key.
// The error wraps [snug.ErrShape] for a negative dimension or more than 2^31 tiles, and
// [snug.ErrConfig] if sees is nil.
func NewMask(batch, heads, seqQ, seqK int, sees func(b, h, i, j int) bool) (*Mask, error) {
	m, err := newMask(batch, heads, seqQ, seqK, sees != nil)
	if err != nil {
		return nil, err
	}
	for n := range m.tiles {
		b, h, i0, j0 := m.place(n)
		var words [MaskTile]uint64
		for i := range min(MaskTile, seqQ-i0) {
			for j := range min(MaskTile, seqK-j0) {
				if sees(b, h, i0+i, j0+j) {
					words[i] |= 1 << j
				}
			}
		}
		m.set(n, &words)
	}
	return m, nil
}

// NewRangeMask returns a Mask of ranges: query i of head h and batch element b sees keys lo to hi-1 of what keys(b, h, i) returns,
// and none if hi is not above lo. keys is called once for every query and tile of keys. Otherwise it is [NewMask], for less time.
func NewRangeMask(batch, heads, seqQ, seqK int, keys func(b, h, i int) (lo, hi int)) (*Mask, error) {
	m, err := newMask(batch, heads, seqQ, seqK, keys != nil)
	if err != nil {
		return nil, err
	}
	for n := range m.tiles {
		b, h, i0, j0 := m.place(n)
		var words [MaskTile]uint64
		for i := range min(MaskTile, seqQ-i0) {
			lo, hi := keys(b, h, i0+i)
			if lo, hi = max(lo, j0), min(hi, j0+MaskTile, seqK); lo < hi {
				words[i] = ^uint64(0) >> (MaskTile - (hi - lo)) << (lo - j0)
			}
		}
		m.set(n, &words)
	}
	return m, nil
}

// set sets tile number n.
func (m *Mask) set(n int, words *[MaskTile]uint64) {
	_, _, i0, j0 := m.place(n)
	rows, cols := min(MaskTile, m.seqQ-i0), min(MaskTile, m.seqK-j0)
	all, any := true, false
	for _, word := range words[:rows] {
		any = any || word != 0
		all = all && bits.OnesCount64(word) == cols
	}
	switch {
	case all:
		m.tiles[n] = seen
	case any:
		m.tiles[n] = partial + int32(len(m.words)/MaskTile)
		m.words = append(m.words, words[:]...)
	}
}

// NewTileMask returns a Mask of whole tiles: sees reports whether queries MaskTile·i to
// MaskTile·(i+1)-1 see keys MaskTile·j to MaskTile·(j+1)-1. Otherwise it is [NewMask].
func NewTileMask(batch, heads, seqQ, seqK int, sees func(b, h, i, j int) bool) (*Mask, error) {
	m, err := newMask(batch, heads, seqQ, seqK, sees != nil)
	if err != nil {
		return nil, err
	}
	for n := range m.tiles {
		if b, h, i0, j0 := m.place(n); sees(b, h, i0/MaskTile, j0/MaskTile) {
			m.tiles[n] = seen
		}
	}
	return m, nil
}

func newMask(batch, heads, seqQ, seqK int, sees bool) (*Mask, error) {
	if !sees {
		return nil, fmt.Errorf("attention: mask of no function: %w", snug.ErrConfig)
	}
	m := &Mask{batch: batch, heads: heads, seqQ: seqQ, seqK: seqK}
	n, ok := 1, true
	if min(batch, heads, seqQ, seqK) < 0 {
		return nil, fmt.Errorf("attention: mask of [%d,%d,%d,%d]: %w", batch, heads, seqQ, seqK, snug.ErrShape)
	}
	m.tilesK = cpu.Chunks(seqK, MaskTile)
	for _, d := range [...]int{batch, heads, m.tilesQ(), m.tilesK} {
		if n, ok = mulAdd(0, n, d); !ok || n > min(1<<31-1-int(partial), math.MaxInt/4) {
			return nil, fmt.Errorf("attention: mask of [%d,%d,%d,%d] has too many tiles: %w", batch, heads, seqQ, seqK, snug.ErrShape)
		}
	}
	m.tiles = make([]int32, n)
	return m, nil
}

func (m *Mask) tilesQ() int { return cpu.Chunks(m.seqQ, MaskTile) }

// place returns the head and the first query and key of tile number n.
func (m *Mask) place(n int) (b, h, i, j int) {
	n, j = n/m.tilesK, n%m.tilesK*MaskTile
	n, i = n/m.tilesQ(), n%m.tilesQ()*MaskTile
	return n / m.heads, n % m.heads, i, j
}

// Tiles returns the numbers of hidden, fully visible and partly visible tiles; a nil Mask
// has none.
func (m *Mask) Tiles() (none, all, some int) {
	if m == nil {
		return 0, 0, 0
	}
	for _, t := range m.tiles {
		switch t {
		case hidden:
			none++
		case seen:
			all++
		default:
			some++
		}
	}
	return none, all, some
}

// On returns m for calls on dev. It copies the tables to dev, m.Bytes() bytes, which live
// until Close, and shares the host tables with m. For the CPU it returns m itself. A nil
// Mask hides nothing and stays nil on any device. Errors: the errors of [snug.Make], and
// [snug.ErrDevice] for a nil dev.
func (m *Mask) On(dev *snug.Device) (*Mask, error) {
	if dev == nil {
		return nil, fmt.Errorf("attention: mask on a nil device: %w", snug.ErrDevice)
	}
	if m == nil || dev.IsCPU() {
		return m, nil
	}
	words := m.wordTable()
	table, err := snug.Make[int32](dev, len(words)+len(m.tiles))
	if err != nil {
		return nil, fmt.Errorf("attention: mask: %w", err)
	}
	there := *m
	there.dev, there.table = dev, table
	for _, part := range [...]struct {
		from int
		x    []int32
	}{{0, words}, {len(words), m.tiles}} {
		to, err := table.Slice(part.from, part.from+len(part.x))
		if err == nil {
			err = to.CopyIn(part.x)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attention: mask: %w", err), table.Close())
		}
	}
	return &there, nil
}

// wordTable returns the words in their memory layout.
func (m *Mask) wordTable() []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(m.words))), 2*len(m.words))
}

// Close frees the tables that [Mask.On] allocated; m cannot be used afterwards. A nil Mask
// and a Mask of the CPU have nothing to free.
func (m *Mask) Close() error {
	if m == nil {
		return nil
	}
	return m.table.Close()
}

// view returns the tables that calls read; its device is the Mask's device.
func (m *Mask) view() snug.View {
	switch {
	case m == nil:
		return snug.View{}
	case m.dev == nil:
		return snug.SliceView(m.tiles)
	}
	return m.table.View()
}

// Bytes returns the memory of m's tables on the host. A Mask for another device takes the
// same number of bytes there.
func (m *Mask) Bytes() int64 {
	if m == nil {
		return 0
	}
	n := 4*int64(len(m.tiles)) + 8*int64(len(m.words))
	if m.dev != nil {
		n *= 2
	}
	return n
}

// check returns the error of m for c, whose starts are valid.
func (m *Mask) check(c *Options) error {
	if m == nil {
		return nil
	}
	if m.dev != nil && m.table.View().Len() == 0 && len(m.tiles) > 0 {
		return fmt.Errorf("attention: the Mask is closed: %w", snug.ErrDevice)
	}
	queries, keys := c.longest()
	fits := m.seqQ == queries && m.seqK == keys || c.packed() && m.seqQ >= queries && m.seqK >= keys
	if !fits || m.batch != 1 && m.batch != c.Batch || m.heads != 1 && m.heads != c.Heads {
		return fmt.Errorf("attention: Mask is [%d,%d,%d,%d], want [%d or 1,%d or 1,%d,%d]: %w",
			m.batch, m.heads, m.seqQ, m.seqK, c.Batch, c.Heads, queries, keys, snug.ErrShape)
	}
	return nil
}

// of returns the rows of tiles of one head.
func (m *Mask) of(b, h int) headMask {
	if m == nil {
		return headMask{}
	}
	b, h = min(b, m.batch-1), min(h, m.heads-1)
	return headMask{m, (b*m.heads + h) * m.tilesQ() * m.tilesK}
}

// headMask is the part of a Mask for one head; it has no m if there is none.
type headMask struct {
	m     *Mask
	first int // tile
}

// tile returns the tile of a query and a key.
func (m headMask) tile(i, j int) int32 { return m.m.tiles[m.first+i/MaskTile*m.m.tilesK+j/MaskTile] }

// word returns the bits of a query in a partly visible tile.
func (m headMask) word(tile int32, i int) uint64 {
	return m.m.words[int(tile-partial)*MaskTile+i%MaskTile]
}
