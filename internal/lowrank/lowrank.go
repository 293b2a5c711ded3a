// Package lowrank projects matrices onto few directions: random ones, which are made again for every product and
// stored nowhere, or the leading singular vectors.
//
// A matrix has a long and a short side. Its channels are its rows if it is tall or square, else its columns: there
// are as many as the long side, and each has as many elements as the short side. Directions have the length of the
// short side.
package lowrank

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
)

// Matrix is a row-major matrix in host memory, of any floating-point type.
type Matrix struct {
	Data       snug.View
	Rows, Cols int
	// Skip says which elements count as 0, unless it is nil. It is given one row or part of a row at a time.
	Skip func(x []float32)
}

// Tall says whether the channels are the rows.
func (m *Matrix) Tall() bool { return m.Rows >= m.Cols }

// Long returns the number of channels.
func (m *Matrix) Long() int { return max(m.Rows, m.Cols) }

// Short returns the number of elements of a channel.
func (m *Matrix) Short() int { return min(m.Rows, m.Cols) }

// operand returns the elements lo to hi-1 of all channels, with a row for each channel.
func (m *Matrix) operand(lo, hi int) gemm.Matrix {
	at, end := lo, m.Rows*m.Cols
	if !m.Tall() {
		at, end = lo*m.Cols, hi*m.Cols
	}
	return gemm.Matrix{Data: part(m.Data, at, end), Stride: m.Cols, Trans: !m.Tall()}
}

// part is a slice of a host view, whose bounds are known to be right.
func part(v snug.View, lo, hi int) snug.View {
	s, err := v.Slice(lo, hi)
	if err != nil {
		panic(err)
	}
	return s
}

// Directions are Rank vectors.
type Directions struct {
	Rank   int
	Values []float32     // row after row; nil: independent normal numbers
	Stream philox.Stream // names the normal numbers
}

// tileSize is about how many elements of the directions, and of a matrix with elements that are skipped, exist at a
// time: half of the second cache. minDepth is the least part of a channel that is multiplied at a time.
const (
	tileSize = 1 << 17
	minDepth = 64
)

// depth returns how many elements of a channel are multiplied at a time.
func depth(short, rank int) int { return min(short, max(minDepth, tileSize/rank)) }

// ProjectWork returns how many elements of scratch [Project] takes.
func ProjectWork(rows, cols, rank int) int {
	long, d := max(rows, cols), depth(min(rows, cols), rank)
	return rank*d + d*min(long, max(1, tileSize/d))
}

// Project sets dst, with a row of d.Rank elements for each channel, to alpha times the products of the channels of m
// with the directions. work has [ProjectWork] elements. The order of sums depends on the shape alone.
func Project(dst []float32, alpha float32, m Matrix, d Directions, work []float32) {
	short, deep := m.Short(), depth(m.Short(), d.Rank)
	tile, clean := work[:d.Rank*deep], work[d.Rank*deep:]
	for lo := 0; lo < short; lo += deep {
		hi := min(lo+deep, short)
		to := product{dst: dst, rank: d.Rank, depth: hi - lo, alpha: alpha}
		if lo > 0 {
			to.beta = 1
		}
		to.tile = gemm.Matrix{Data: snug.SliceView(d.tile(tile, short, lo, hi)), Stride: hi - lo}
		if d.Values != nil {
			to.tile = gemm.Matrix{Data: snug.SliceView(d.Values[lo : (d.Rank-1)*short+hi]), Stride: short}
		}
		if m.Skip == nil {
			to.add(0, m.Long(), m.operand(lo, hi))
			continue
		}
		for first, band := 0, max(1, tileSize/deep); first < m.Long(); first += band {
			last := min(first+band, m.Long())
			to.add(first, last-first, m.clean(clean, first, last, lo, hi))
		}
	}
}

// tile sets x to elements lo to hi-1 of all directions that are normal numbers.
func (d *Directions) tile(x []float32, short, lo, hi int) []float32 {
	if d.Values != nil {
		return nil
	}
	x = x[:d.Rank*(hi-lo)]
	normalTask.Run(d.Rank, normals{x, d.Stream, short, lo, hi})
	return x
}

type normals struct {
	x             []float32
	stream        philox.Stream
	short, lo, hi int
}

var normalTask = cpu.NewTask(func(n *normals, i int) {
	deep := n.hi - n.lo
	Normal(n.x[i*deep:][:deep], n.stream, uint64(i)*uint64(n.short)+uint64(n.lo))
})

// clean copies elements lo to hi-1 of channels first to last-1.
func (m *Matrix) clean(x []float32, first, last, lo, hi int) gemm.Matrix {
	top, bottom, left, right := first, last, lo, hi
	if !m.Tall() {
		top, bottom, left, right = lo, hi, first, last
	}
	width := right - left
	for i := top; i < bottom; i++ {
		row := x[(i-top)*width:][:width]
		half.Load(row, m.Data, i*m.Cols+left)
		m.Skip(row)
	}
	return gemm.Matrix{Data: snug.SliceView(x[:(bottom-top)*width]), Stride: width, Trans: !m.Tall()}
}

// product adds the product of some elements of channels with those of directions.
type product struct {
	dst         []float32
	rank, depth int
	alpha, beta float32
	tile        gemm.Matrix // a row for each direction
}

// add is for n channels from number first on.
func (p *product) add(first, n int, channels gemm.Matrix) {
	dst := gemm.Matrix{Data: snug.SliceView(p.dst[first*p.rank:][:n*p.rank]), Stride: p.rank}
	if p.rank == 1 { // one row by a matrix is as fast as memory, a matrix by one column is not
		dst.Stride = n
		channels.Trans = !channels.Trans
		gemm.Mul(1, n, p.depth, p.alpha, p.tile, channels, p.beta, dst)
		return
	}
	tile := p.tile
	tile.Trans = true
	gemm.Mul(n, p.rank, p.depth, p.alpha, channels, tile, p.beta, dst)
}
