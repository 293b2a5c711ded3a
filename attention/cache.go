package attention

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Cache holds the keys and values that [ForwardCached] reads: in pages, as 8-bit integers,
// or both.
type Cache struct {
	// K and V have the type of q, or U8: 8-bit integers in two's complement, see
	// [QuantizeRows]. Their shape is [Batch, KVHeads, SeqK, Dim or DimV], or with pages
	// [pages, KVHeads, PageSize, Dim or DimV]. c.K and c.V are their strides; with pages,
	// Batch is the distance between pages.
	K, V snug.View
	// KScale and VScale are the scales of U8 rows: one float32 for every row, which
	// multiplies its integers, contiguous [Batch or pages, KVHeads, SeqK or PageSize].
	KScale, VScale snug.View
	// Pages, unless nil, lists the pages of every sequence: key j of sequence b is row
	// j%PageSize of page Pages[b][j/PageSize]. Sequences may share pages. Only the CPU
	// reads Pages; other devices read Table.
	Pages    [][]int
	PageSize int // rows of a page
	// Table, unless empty, is the page table on any device: I32 of [Batch, n], where n
	// covers the longest sequence. Entry (b, i) is Pages[b][i], and Count is the number of
	// pages of K and V. The CPU checks the entries; on other devices an entry out of range
	// reads the first or the last page.
	Table snug.View
	Count int
}

// ForwardCached is [Forward] with the keys and values of a cache, for generation. c.SeqK is
// the capacity of the cache in keys; sequence b uses c.KLens[b] of them, or all if c.KLens
// is nil. Pages and integers are decoded tile by tile, in the same memory as Forward.
//
// Errors: the errors of Forward; [snug.ErrShape] for a table with too few pages, for a page
// number that K or V lacks, and for packed sequences; [snug.ErrDevice] for Pages on a
// device other than the CPU.
func ForwardCached[V snug.Vector, L snug.Vector32](out V, lse L, q V, kv *Cache, c Options) error {
	if kv == nil {
		return fmt.Errorf("attention: no cache: %w", snug.ErrConfig)
	}
	j := forwardJob{out: snug.ViewOf(out), lse: snug.ViewOf(lse), q: snug.ViewOf(q), k: kv.K, v: kv.V, c: c}
	j.c.cache.Cache = kv
	return forward(j)
}

// QuantizeRows writes rows of dim elements as 8-bit integers. The scale of a row is its
// largest magnitude divided by 127; each element becomes the integer nearest to
// element/scale, ties to even. A row of zeros has scale 0. The error of an element is at
// most half the scale. codes has the length of x, and scales one float32 for every row. x
// is f32, f16 or bf16. All operands lie on the CPU.
//
// Errors: [snug.ErrShape], [snug.ErrDType], [snug.ErrDevice], and [snug.ErrNonFinite] with
// the number of the first element that is NaN or infinite, with nothing written.
func QuantizeRows[C snug.Vector8, L snug.Vector32, V snug.Vector](codes C, scales L, x V, dim int) error {
	to, scale, from := snug.ViewOf8(codes), snug.ViewOf(scales), snug.ViewOf(x)
	switch {
	case dim < 1 || from.Len()%dim != 0 || to.Len() != from.Len() || scale.Len() != from.Len()/dim:
		return fmt.Errorf("attention: %d codes and %d scales for %d elements in rows of %d: %w", to.Len(), scale.Len(), from.Len(), dim, snug.ErrShape)
	case to.DType() != snug.U8 || scale.DType() != snug.F32 || !from.DType().IsFloat():
		return fmt.Errorf("attention: codes of %s and scales of %s for %s, want u8 and f32 for f32, f16 or bf16: %w",
			to.DType(), scale.DType(), from.DType(), snug.ErrDType)
	}
	dev, err := snug.CommonDevice(to, scale, from)
	if err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	if !dev.IsCPU() {
		return fmt.Errorf("attention: rows on %s, want the cpu: %w", dev, snug.ErrDevice)
	}
	rows := from.Len() / dim
	if rows == 0 {
		return nil // dim is any number then, also one that no memory holds
	}
	buf := scratch.Get(dim)
	defer scratch.Put(buf)
	for i := range rows {
		for k, v := range half.Floats(from, i*dim, *buf) {
			if v-v != 0 {
				return fmt.Errorf("attention: element %d is %g: %w", i*dim+k, v, snug.ErrNonFinite)
			}
		}
	}
	for i := range rows {
		scale.Float32s()[i] = quantizeRow(snug.Host[uint8](to)[i*dim:][:dim], half.Floats(from, i*dim, *buf))
	}
	return nil
}

func quantizeRow(codes []uint8, x []float32) (scale float32) {
	for _, v := range x {
		scale = max(scale, float32(math.Abs(float64(v))))
	}
	scale /= 127
	clear(codes)
	if scale == 0 {
		return 0
	}
	for i, v := range x {
		codes[i] = uint8(int8(max(-127, min(127, math.RoundToEven(float64(v)/float64(scale))))))
	}
	return scale
}

// cached is a Cache in a call.
type cached struct {
	*Cache
	batch, rows           int       // of K and V: sequences and the keys of each, or pages and their rows
	kScale, vScale, table snug.View // as in Cache
}

// cached reports whether k and v are in a cache.
func (c *Options) cached() bool { return c.cache.Cache != nil }

// paged reports whether rows lie in pages.
func (r *cached) paged() bool { return r.Pages != nil || r.table.Len() > 0 }

// resolve finds batch and rows for c, whose sequence lengths are valid.
func (r *cached) resolve(c *Options) error {
	r.batch, r.rows = c.Batch, c.SeqK
	r.kScale, r.vScale, r.table = r.KScale, r.VScale, r.Table
	switch {
	case c.packed():
		return fmt.Errorf("attention: a cache for packed sequences: %w", snug.ErrShape)
	case !r.paged():
		return nil
	case r.PageSize < 1:
		return fmt.Errorf("attention: PageSize is %d, want 1 or more: %w", r.PageSize, snug.ErrShape)
	case r.table.Len() > 0:
		return r.resolveTable(c)
	case len(r.Pages) != c.Batch:
		return fmt.Errorf("attention: pages of %d sequences, want %d: %w", len(r.Pages), c.Batch, snug.ErrShape)
	}
	r.batch, r.rows = 0, r.PageSize
	for b, pages := range r.Pages {
		n := c.sequence(b).nk
		used := cpu.Chunks(n, r.PageSize)
		if len(pages) < used {
			return fmt.Errorf("attention: sequence %d of %d keys has %d pages, want %d: %w", b, n, len(pages), used, snug.ErrShape)
		}
		for i, page := range pages[:used] {
			if page < 0 || page == math.MaxInt {
				return fmt.Errorf("attention: Pages[%d][%d] is %d: %w", b, i, page, snug.ErrShape)
			}
			r.batch = max(r.batch, page+1)
		}
	}
	return nil
}

// resolveTable is resolve with a Table.
func (r *cached) resolveTable(c *Options) error {
	n := r.table.Len()
	longest := 0
	for b := range min(c.Batch, n) { // a larger Batch is refused
		longest = max(longest, c.sequence(b).nk)
	}
	switch {
	case r.Pages != nil:
		return fmt.Errorf("attention: Pages and a Table: %w", snug.ErrConfig)
	case r.table.DType() != snug.I32:
		return fmt.Errorf("attention: Table holds %s, want i32: %w", r.table.DType(), snug.ErrDType)
	case c.Batch == 0 || n%c.Batch != 0 || n/c.Batch < cpu.Chunks(longest, r.PageSize):
		return fmt.Errorf("attention: Table holds %d pages of %d rows, want [%d, n] for %d keys: %w", n, r.PageSize, c.Batch, longest, snug.ErrShape)
	case r.Count < 1:
		return fmt.Errorf("attention: Count is %d, want 1 or more: %w", r.Count, snug.ErrShape)
	case uint64(c.SeqK) > math.MaxUint32 || uint64(r.PageSize) > math.MaxUint32:
		return fmt.Errorf("attention: Table of pages of %d rows for %d keys, want numbers below 2^32: %w", r.PageSize, c.SeqK, snug.ErrShape)
	}
	r.batch, r.rows = r.Count, r.PageSize
	if !r.table.Device().IsCPU() {
		return nil
	}
	width, table := n/c.Batch, snug.Host[int32](r.table)
	for b := range c.Batch {
		for i, page := range table[b*width:][:cpu.Chunks(c.sequence(b).nk, r.PageSize)] {
			if page < 0 || int(page) >= r.Count {
				return fmt.Errorf("attention: entry %d of sequence %d in Table is %d, want 0 to %d: %w", i, b, page, r.Count-1, snug.ErrShape)
			}
		}
	}
	return nil
}

// check checks types, scales and devices, for q of type dt.
func (r *cached) check(c *Options, dt snug.DType) error {
	for _, t := range [...]struct {
		name     string
		x, scale snug.View
	}{{"K", r.K, r.KScale}, {"V", r.V, r.VScale}} {
		n := r.batch * c.KVHeads * r.rows
		switch {
		case t.x.DType() == dt:
		case t.x.DType() != snug.U8:
			return fmt.Errorf("attention: %s holds %s, want %s as q, or u8: %w", t.name, t.x.DType(), dt, snug.ErrDType)
		case t.scale.DType() != snug.F32:
			return fmt.Errorf("attention: %sScale holds %s, want f32: %w", t.name, t.scale.DType(), snug.ErrDType)
		case t.scale.Len() < n:
			return fmt.Errorf("attention: %sScale holds %d elements, want %d: %w", t.name, t.scale.Len(), n, snug.ErrShape)
		}
	}
	if dev := r.K.Device(); r.Pages != nil && !dev.IsCPU() {
		return fmt.Errorf("attention: Pages of a cache on %s, want a Table: %w", dev, snug.ErrDevice)
	}
	return nil
}

// cacheHead is one key head of a sequence in a cache.
type cacheHead struct {
	head
	pages  []int   // of the sequence
	table  []int32 // the same on a device; without pages rows lie one after the other
	rows   int     // of a page
	step   int     // elements between pages
	scales []float32
	group  int // scales between pages
}

// head returns a key head of a sequence: of x, K or V.
func (r *cached) head(s *sequence, x, scales snug.View, st Strides, c *Options, h, dim int) cacheHead {
	k := cacheHead{head: head{x, h * st.Head, st.Row, dim}, rows: r.rows, step: st.Batch, group: c.KVHeads * r.rows}
	if x.DType() == snug.U8 {
		k.scales = scales.Float32s()[h*r.rows:]
	}
	switch {
	case r.Pages != nil:
		k.pages = r.Pages[s.b]
		return k
	case r.table.Len() > 0:
		width := r.table.Len() / c.Batch
		k.table = snug.Host[int32](r.table)[s.b*width:][:width]
		return k
	}
	k.at += s.b * k.step
	if k.scales != nil {
		k.scales = k.scales[s.b*k.group:]
	}
	return k
}

// pageOf returns the page of a row, -1 without pages.
func (k *cacheHead) pageOf(row int) int {
	switch {
	case k.pages != nil:
		return k.pages[row/k.rows]
	case k.table != nil:
		return int(k.table[row/k.rows])
	}
	return -1
}

// factor returns rows lo to hi-1 as float32: in their own memory if they are adjacent
// there, else in scratch. With asIs, adjacent rows may also be of 16 bits.
func (k *cacheHead) factor(scratch tile, lo, hi int, asIs bool) factor {
	scratch.rows = hi - lo
	for at := lo; at < hi; {
		h, n, scale := k.head, hi-at, at
		row := at
		if page := k.pageOf(at); page >= 0 {
			row = at % k.rows
			n = min(n, k.rows-row)
			h.at += page * k.step
			scale = page*k.group + row
		}
		to := scratch.from(at - lo).top(n)
		if k.scales != nil {
			h.load8(to, row, k.scales[scale:])
		} else if asIs && n == hi-lo {
			return factor{h.view, h.at + row*h.row, n, h.dim, h.row}
		} else if x := h.load(to, row, row+n); n == hi-lo {
			return x.factor()
		} else if h.view.DType() == snug.F32 {
			for i := range n {
				copy(to.row(i), x.row(i))
			}
		}
		at += n
	}
	return scratch.factor()
}

// load8 fills scratch with rows from lo on of 8-bit integers times scales.
func (h head) load8(scratch tile, lo int, scales []float32) {
	codes := snug.Host[uint8](h.view)
	for i := range scratch.rows {
		row := scratch.row(i)
		for k, c := range codes[h.at+(lo+i)*h.row:][:h.dim] {
			row[k] = float32(int8(c))
		}
		rowwise.Registry.Best().Scale(row, row, scales[i])
	}
}
