package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// packed is a block in the micro-kernel's order: panels of width columns, each
// [kc][width], the last one padded with zeros.
type packed struct {
	dst       []float32
	width, kc int
	conv      []float32 // for the conversion of one line
}

// pack fills the block with lines lo to hi-1 of an operand, from depth k0. A
// line runs along the depth; along says that a line is a row of the stored
// matrix, otherwise it is a column.
func (p packed) pack(m Matrix, along bool, lo, hi, k0 int) {
	if along {
		p.lines(m, lo, hi, k0)
	} else {
		p.columns(m, lo, hi, k0)
	}
}

// lines packs lines that are contiguous in memory.
func (p packed) lines(m Matrix, lo, hi, k0 int) {
	for first := lo; first < hi; first += p.width {
		panel := p.dst[(first-lo)*p.kc:][:p.width*p.kc]
		for j := range p.width {
			out := panel[j:]
			if first+j >= hi {
				for i := 0; i < len(out); i += p.width {
					out[i] = 0
				}
				continue
			}
			line := load(p.conv[:p.kc], m.Data, (first+j)*m.Stride+k0)
			for i, x := range line {
				out[i*p.width] = x
			}
		}
	}
}

// columns packs lines that run across the rows of memory.
func (p packed) columns(m Matrix, lo, hi, k0 int) {
	for k := range p.kc {
		row := load(p.conv[:hi-lo], m.Data, (k0+k)*m.Stride+lo)
		for at := k * p.width; len(row) > 0; at += p.width * p.kc {
			n := copy(p.dst[at:at+p.width], row)
			clear(p.dst[at+n : at+p.width])
			row = row[n:]
		}
	}
}

// load returns len(conv) elements of v from lo: v's own memory when it holds
// float32, else conv, filled.
func load(conv []float32, v snug.View, lo int) []float32 {
	if v.DType() == snug.F32 {
		return v.Float32s()[lo : lo+len(conv)]
	}
	half.Load(conv, v, lo)
	return conv
}

// store writes alpha·acc + beta·c over a row of C that begins at element at.
func (g *args) store(acc, conv []float32, at int) {
	if g.alpha != 1 {
		for i, x := range acc {
			acc[i] = g.alpha * x
		}
	}
	if g.beta != 0 {
		for i, x := range load(conv[:len(acc)], g.c.Data, at) {
			acc[i] += float32(g.beta * x)
		}
	}
	half.Store(g.c.Data, at, acc)
}
