package fused

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Image is the shape of what lies between convolutions of any dimension. Channels and Positions are at least 1. Kernels of other
// devices than the CPU count its elements in 32 bits: they refuse more than 2^32 − 2^24 with [snug.ErrNotBuilt].
type Image struct {
	Batch     int
	Channels  int
	Positions int // height times width, or the product of as many sizes as there are
	// ChannelsLast says that elements lie as [Batch, Positions, Channels], else as [Batch, Channels, Positions].
	ChannelsLast bool
}

// Len returns the number of elements, 0 if a field is out of range.
func (s Image) Len() int {
	if s.Batch < 0 || s.Channels < 1 || s.Positions < 1 {
		return 0
	}
	n := product(product(s.Batch, s.Channels), s.Positions)
	if n == math.MaxInt {
		return 0
	}
	return n
}

// check wants a shape of s.Len elements, which the operands have.
func (s Image) check(c *checks, operands ...operand) {
	if s.Batch < 0 || s.Channels < 1 || s.Positions < 1 || s.Batch > 0 && s.Len() == 0 {
		c.failf(snug.ErrShape, "Image is %+v, want at least 1 channel and 1 position, and no more elements than memory holds", s)
	}
	c.len(s.Len(), operands...)
}

// whole returns s with all rows of channels in one image where the channels are last. Without positions they are.
func (s Image) whole() Image {
	if s = s.rows(); s.ChannelsLast {
		s.Batch, s.Positions = 1, s.Batch*s.Positions
	}
	return s
}

// rows returns s with the channels last where images have one position, for which both layouts are the same.
func (s Image) rows() Image {
	s.ChannelsLast = s.ChannelsLast || s.Positions == 1
	return s
}

// Sums over the positions of an image with the channels last run in parts of its rows, as in [partRows].
func (s *Image) partRows() int {
	return max(tileRows, itemRows(s.Channels), cpu.Chunks(s.Positions, maxParts))
}

// parts returns the number of parts, 1 where the channels are first.
func (s *Image) parts() int {
	if !s.ChannelsLast {
		return 1
	}
	return cpu.Chunks(s.Positions, s.partRows())
}

// part returns rows lo to hi-1 of a part.
func (s *Image) part(part int) (lo, hi int) {
	if !s.ChannelsLast {
		return 0, s.Positions
	}
	return cpu.Chunk(s.Positions, s.partRows(), part)
}

// columns returns a part's vector number i of n that have an element for each channel, in a workspace.
func (s *Image) columns(ws []float32, b, part, i, n int) []float32 {
	return ws[((b*s.parts()+part)*n+i)*s.Channels:][:s.Channels]
}

// columnsLen returns the length of that workspace for n vectors.
func (s Image) columnsLen(n int) int {
	if s.Len() == 0 {
		return 0
	}
	return product(product(n, product(s.parts(), s.Batch)), s.Channels)
}

// joinedLen is about how many elements a loop over rows of channels does at a time: short rows join, since what is different for
// each channel repeats.
const joinedLen = 512

// joined returns how many rows of channels are one row of loops.
func (s *Image) joined() int { return max(1, joinedLen/s.Channels) }

// repeat fills v, whose first n elements are set, with them.
func repeat(v []float32, n int) {
	for ; n < len(v); n *= 2 {
		copy(v[n:], v[:n])
	}
}

// An item of a loop over planes, where the channels are first, has some of them, or a piece of a long one.

// planeItems returns the number of items of a loop over planes, which cuts long ones if asked.
func (s *Image) planeItems(cut bool) int {
	planes := s.Batch * s.Channels
	if cut && s.Positions > itemLen {
		return planes * cpu.Chunks(s.Positions, itemLen)
	}
	return cpu.Chunks(planes, itemRows(s.Positions))
}

// piece is elements of channel c of image b.
type piece struct{ b, c, at, n int }

// piece returns piece number i of an item, if there is one.
func (s *Image) piece(item, i int, cut bool) (p piece, ok bool) {
	if cut && s.Positions > itemLen {
		pieces := cpu.Chunks(s.Positions, itemLen)
		plane := item / pieces
		lo, hi := cpu.Chunk(s.Positions, itemLen, item%pieces)
		return piece{plane / s.Channels, plane % s.Channels, plane*s.Positions + lo, hi - lo}, i == 0
	}
	lo, hi := cpu.Chunk(s.Batch*s.Channels, itemRows(s.Positions), item)
	plane := lo + i
	return piece{plane / s.Channels, plane % s.Channels, plane * s.Positions, s.Positions}, plane < hi
}

// rowItems returns the number of items of a loop over the rows of each image, where the channels are last.
func (s *Image) rowItems() int { return s.Batch * cpu.Chunks(s.Positions, s.itemRows()) }

func (s *Image) itemRows() int { return cpu.Chunks(itemRows(s.Channels), s.joined()) * s.joined() }

// rowItem returns rows lo to hi-1 of image b.
func (s *Image) rowItem(item int) (b, lo, hi int) {
	items := cpu.Chunks(s.Positions, s.itemRows())
	lo, hi = cpu.Chunk(s.Positions, s.itemRows(), item%items)
	return item / items, lo, hi
}

// moments are the number of some elements, their mean, and the sum of the squares of their distances from it.
type moments struct{ n, mean, m2 float64 }

// merge adds elements (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
// 1979).
func (m *moments) merge(o moments) {
	if o.n == 0 {
		return
	}
	n := m.n + o.n
	d := o.mean - m.mean
	m.mean += d * (o.n / n)
	m.m2 += o.m2 + d*d*(m.n*o.n/n)
	m.n = n
}

// rstd returns 1/√(variance + eps).
func (m moments) rstd(eps float32) float32 { return float32(1 / math.Sqrt(m.m2/m.n+float64(eps))) }

// momentsOf returns the moments of n elements by two passes: the second is over distances from the rounded mean, and what they
// add up to corrects it.
func momentsOf(n, center, rest, squares float64) moments {
	return moments{n, center + rest/n, positive(squares - rest*rest/n)}
}

// positive is max(x, 0), and NaN for NaN.
func positive(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

// momentsArgs is a loop that leaves the moments of the positions of each channel of each image at ws: the mean in two parts, and m2.
type momentsArgs struct {
	s  Image
	x  snug.View
	ws []float32
}

func (j momentsArgs) run() {
	if j.s.ChannelsLast {
		columnMomentsTask.Run(j.s.Batch*j.s.parts(), j)
	} else {
		planeMomentsTask.Run(j.s.planeItems(false), j)
	}
}

func (j *momentsArgs) put(b, part, c int, m moments) {
	hi := float32(m.mean)
	j.s.columns(j.ws, b, part, 0, 3)[c] = hi
	j.s.columns(j.ws, b, part, 1, 3)[c] = float32(m.mean - float64(hi))
	j.s.columns(j.ws, b, part, 2, 3)[c] = float32(m.m2)
}

// channel returns the moments of channel c of image b.
func (j *momentsArgs) channel(b, c int) (m moments) {
	for part := range j.s.parts() {
		lo, hi := j.s.part(part)
		mean := float64(j.s.columns(j.ws, b, part, 0, 3)[c]) + float64(j.s.columns(j.ws, b, part, 1, 3)[c])
		m.merge(moments{float64(hi - lo), mean, float64(j.s.columns(j.ws, b, part, 2, 3)[c])})
	}
	return m
}

var planeMomentsTask = cpu.NewTask(func(j *momentsArgs, item int) {
	buf := scratch.Get(min(blockCols, j.s.Positions))
	defer scratch.Put(buf)
	for i := 0; ; i++ {
		p, ok := j.s.piece(item, i, false)
		if !ok {
			return
		}
		j.put(p.b, 0, p.c, spanMoments(j.x, p.at, p.n, *buf))
	}
})

// spanMoments returns the moments of n elements from at on, in blocks of len(buf).
func spanMoments(x snug.View, at, n int, buf []float32) (m moments) {
	k := rowwise.Registry.Best()
	for end := at + n; at < end; {
		row := load(buf[:min(len(buf), end-at)], x, at)
		at += len(row)
		sum, _ := k.CenteredSums(row, 0)
		center := sum / float32(len(row))
		rest, squares := k.CenteredSums(row, center)
		m.merge(momentsOf(float64(len(row)), float64(center), float64(rest), float64(squares)))
	}
	return m
}

// tileRows is how many rows of loops a tile of columns has, which the second pass finds in the caches.
const tileRows = 64

var columnMomentsTask = cpu.NewTask(func(j *momentsArgs, item int) {
	s, cols := &j.s, j.s.Channels
	b, part := item/s.parts(), item%s.parts()
	lo, hi := s.part(part)
	base := b * s.Positions
	for from := 0; from < cols; from += joinedLen {
		t := columnTile{x: j.x, cols: cols, from: from, width: min(joinedLen, cols-from), joined: s.joined()}
		t.moments(base+lo, base+hi, func(c int, m moments) { j.put(b, part, from+c, m) })
	}
})

// columnTile is columns from from on, width of them, of rows of cols elements, some of which are joined if they are whole.
type columnTile struct {
	x                         snug.View
	cols, from, width, joined int
}

// row returns joined rows from r on, before end.
func (t *columnTile) row(buf []float32, r, end int) []float32 {
	n := t.width * min(t.joined, end-r)
	return load(buf[:n], t.x, r*t.cols+t.from)
}

// fold adds up the copies of each column that joined rows have.
func (t *columnTile) fold(v []float32) []float32 {
	for at := t.width; at < len(v); at += t.width {
		rowwise.F32.Best().Add(v[:t.width], v[:t.width], v[at:][:t.width], false)
	}
	return v[:t.width]
}

// moments gives those of each column over rows lo to hi-1, in tiles.
func (t *columnTile) moments(lo, hi int, put func(c int, m moments)) {
	k, n := rowwise.Registry.Best(), t.width*t.joined
	rows := 0 // of the buffer, for types that are converted
	if t.x.DType() != snug.F32 {
		rows = tileRows
	}
	buf := scratch.Get((3 + max(1, rows)) * n)
	defer scratch.Put(buf)
	center, sum, squares, tile := cut(buf, 0, n), cut(buf, 1, n), cut(buf, 2, n), (*buf)[3*n:]
	var all [joinedLen]moments
	for step := tileRows * t.joined; lo < hi; lo += step {
		end := min(lo+step, hi)
		clear(sum)
		for r, i := lo, 0; r < end; r, i = r+t.joined, i+1 {
			row := t.row(tile[min(i, max(rows-1, 0))*n:], r, end)
			rowwise.F32.Best().Add(sum[:len(row)], sum[:len(row)], row, false)
		}
		t.fold(sum)
		k.Scale(center[:t.width], sum[:t.width], 1/float32(end-lo))
		repeat(center, t.width)
		clear(sum)
		clear(squares)
		for r, i := lo, 0; r < end; r, i = r+t.joined, i+1 {
			var row []float32
			if rows == 0 {
				row = t.row(tile, r, end)
			} else {
				row = tile[i*n:][:t.width*min(t.joined, end-r)]
			}
			k.ColumnSums(sum[:len(row)], squares[:len(row)], row, center[:len(row)])
		}
		t.fold(sum)
		t.fold(squares)
		for c := range t.width {
			all[c].merge(momentsOf(float64(end-lo), float64(center[c]), float64(sum[c]), float64(squares[c])))
		}
	}
	for c := range t.width {
		put(c, all[c])
	}
}

// statistics are means and 1/σ, one of each for a channel or for a group of channels of an image.
type statistics struct {
	mean, rstd []float32
	perImage   int // 0 if all images share them
	width      int // channels to a group
}

func (t *statistics) at(b, c int) int { return b*t.perImage + c/t.width }

// normalizeArgs is out = (x − mean)·rstd·gamma + beta.
type normalizeArgs struct {
	s                   Image
	out, x, gamma, beta snug.View
	statistics
}

func (j normalizeArgs) run() {
	if j.s.ChannelsLast {
		normalizeRowsTask.Run(j.s.rowItems(), j)
	} else {
		normalizePlanesTask.Run(j.s.planeItems(true), j)
	}
}

// element returns element i of v, of any type.
func element(v *snug.View, i int) float32 {
	switch v.DType() {
	case snug.F16:
		return v.Float16s()[i].Float32()
	case snug.BF16:
		return v.BFloat16s()[i].Float32()
	}
	return v.Float32s()[i]
}

var normalizePlanesTask = cpu.NewTask(func(j *normalizeArgs, item int) {
	buf := scratch.Get(min(blockCols, j.s.Positions))
	defer finish(buf)
	k, stream := rowwise.Registry.Best(), streams32(j.out, j.x)
	for i := 0; ; i++ {
		p, ok := j.s.piece(item, i, true)
		if !ok {
			return
		}
		at := j.at(p.b, p.c)
		scale, shift := j.rstd[at]*element(&j.gamma, p.c), element(&j.beta, p.c)
		for end := p.at + p.n; p.at < end; p.at += len(*buf) {
			row := (*buf)[:min(len(*buf), end-p.at)]
			x, out := load(row, j.x, p.at), target(row, j.out, p.at)
			k.Affine(out, x, j.mean[at], scale, shift, stream)
			store(j.out, p.at, out)
		}
	}
})

var normalizeRowsTask = cpu.NewTask(func(j *normalizeArgs, item int) {
	s, cols, n := &j.s, j.s.Channels, j.s.Channels*j.s.joined()
	block := min(blockCols, n)
	buf := scratch.Get(3*n + block)
	defer finish(buf)
	b, lo, hi := s.rowItem(item)
	center, scale, shift := cut(buf, 0, n), cut(buf, 1, n), cut(buf, 2, n)
	half.Load(scale[:cols], j.gamma, 0)
	half.Load(shift[:cols], j.beta, 0)
	for c := range cols {
		at := j.at(b, c)
		center[c], scale[c] = j.mean[at], j.rstd[at]*scale[c]
	}
	repeat(center, cols)
	repeat(scale, cols)
	repeat(shift, cols)
	k, stream := rowwise.Registry.Best(), streams32(j.out, j.x)
	for base := b * s.Positions; lo < hi; lo += s.joined() {
		row := min(s.joined(), hi-lo) * cols
		for c := 0; c < row; c += block {
			at, m := (base+lo)*cols+c, min(block, row-c)
			buf := (*buf)[3*n:][:m]
			x, out := load(buf, j.x, at), target(buf, j.out, at)
			k.ColumnAffine(out, x, center[c:][:m], scale[c:][:m], shift[c:][:m], stream)
			store(j.out, at, out)
		}
	}
})
