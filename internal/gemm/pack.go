package gemm

// readable returns how many of the tile's columns of B the micro-kernel reads
// where they lie; it reads whole vectors.
func (t *block) readable() int {
	far := t.b.Stride > 256 && (t.rows > skinny || t.b.Stride > 2048)
	if !t.b.isFloat32() || t.b.Trans || far || t.kern.Columns && t.rows > skinny {
		return 0
	}
	if ragged := t.cols % t.kern.NR; ragged%t.kern.Lanes != 0 {
		return t.cols - ragged
	}
	return t.cols
}

// packB packs the block's part of B, from column from on.
func (t *block) packB() {
	dst, n, nr := t.packed[t.from*t.depth():], t.cols-t.from, t.kern.NR
	switch {
	case n == 0:
	case t.b.Trans:
		t.packLines()
	default:
		t.kern.CopyRows(dst, t.b.Data, t.k0*t.b.Stride+t.n0+t.from, t.depth(), n, t.b.Stride, nr, nr*t.depth())
	}
}

// packLines packs a transposed B, a panel at a time. PackLines may write beyond
// a panel, where the next one will stand.
func (t *block) packLines() {
	depth, nr := t.depth(), t.kern.NR
	for q := t.from; q < t.cols; q += nr {
		n := min(nr, t.cols-q)
		src, pitch := t.work, depth
		if t.b.isFloat32() {
			src, pitch = t.b.floats().at(t.k0, t.n0+q).x, t.b.Stride
		} else {
			t.lines(t.work, t.b, t.n0+q, t.n0+q+n, t.k0, depth, depth)
		}
		t.kern.PackLines(t.packed[q*depth:], src, n, depth, pitch, nr)
	}
}
