//go:build !noasm && gc && (amd64 || arm64)

package nibble

// dotRows adds the products of a number of rows of x with lines of codes, whole blocks, at least one, to rows of y. skip and skipAbsmax are what
// lies between the end of a line and the next one.
type dotRows func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax, lines, blocks, block int, f *Format)

// axpyRows is a loop for rows of y.
type axpyRows func(y, a *float32, packed *uint8, stride int, absmax *float32, blocks, block int, values *[16]float32)

// dotOf makes a Dot of loops for 1, 2, 4 and, where registers allow it, 8 rows.
func dotOf(loops ...dotRows) Dot {
	return func(y, x []float32, rows, stride int, l Lines, f *Format) {
		n := l.Blocks * l.Block
		if n == 0 || l.N == 0 {
			return
		}
		_, _, _ = y[rows*l.N-1], x[(rows-1)*stride+n-1], l.Packed[(l.N-1)*l.Pitch+n/2-1]
		_ = l.Absmax[(l.N-1)*l.AbsmaxPitch+l.Blocks-1]
		for r := 0; r < rows; {
			size := min(sizeOf(rows-r), len(loops)-1)
			loops[size](&y[r*l.N], l.N, &x[r*stride], stride, &l.Packed[0], l.Pitch-n/2, &l.Absmax[0], l.AbsmaxPitch-l.Blocks, l.N, l.Blocks, l.Block, f)
			r += 1 << size
		}
	}
}

// axpyOf makes an Axpy of loops for 1, 2, 4 and 8 rows, each for a number of vectors. The Go loop adds the
// others.
func axpyOf(vectors int, loops ...axpyRows) Axpy {
	return func(y, a []float32, rows int, packed []uint8, stride int, absmax []float32, block int, f *Format) {
		blocks, loop := len(y)/rows/block, loops[sizeOf(rows)]
		for blocks > 0 && len(a) >= vectors*rows {
			_, _ = packed[(vectors-1)*stride+blocks*block/2-1], absmax[vectors*blocks-1]
			loop(&y[0], &a[0], &packed[0], stride, &absmax[0], blocks, block, &f.Values)
			a, absmax = a[vectors*rows:], absmax[vectors*blocks:]
			packed = packed[min(vectors*stride, len(packed)):]
		}
		axpy(y, a, rows, packed, stride, absmax, block, f)
	}
}

// sizeOf returns which of the loops takes most of the rows that are left.
func sizeOf(rows int) int {
	size := 0
	for size < 3 && 2<<size <= rows {
		size++
	}
	return size
}
