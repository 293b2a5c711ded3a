package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// copyRows generates the copying of rows to float32, in pieces of a panel's
// width.
func copyRows(file *File, e Elem) {
	f := file.Func("copyRows"+e.Name+"NEON", "func(dst *float32, src *byte, rows, cols, rowSrc, rowDst, piece int)",
		"copies rows of cols elements in pieces of a panel's width. Distances\nare in bytes.")
	dst, src, rows, cols := f.Param("dst"), f.Param("src"), f.Param("rows"), f.Param("cols")
	rowSrc, rowDst, piece := f.Param("rowSrc"), f.Param("rowDst"), f.Param("piece")
	from, to, left := f.R(), f.R(), f.R()
	copied := func(n int, toNext string) {
		f.Go("ADD $%d, %s", n*e.Size, from)
		f.Go("ADD %s, %s", toNext, to)
		f.Go("SUB $%d, %s", n, left)
	}

	f.Label("row")
	f.Go("MOVD %s, %s", src, from)
	f.Go("MOVD %s, %s", dst, to)
	f.Go("MOVD %s, %s", cols, left)

	f.Label("piece")
	f.Go("CMP $%d, %s", panelCols, left)
	f.Go("BLT vector")
	for j := range maxVectors {
		f.Scope(func() { f.Go("FMOVQ %s, %d(%s)", f.Load(e, from, j*Lanes), j*width, to) })
	}
	copied(panelCols, piece.String())
	f.Go("B piece")

	f.Label("vector")
	f.Go("CMP $%d, %s", Lanes, left)
	f.Go("BLT single")
	f.Scope(func() { f.Go("FMOVQ %s, (%s)", f.Load(e, from, 0), to) })
	copied(Lanes, fmt.Sprintf("$%d", width))
	f.Go("B vector")

	f.Label("single")
	f.Go("CBZ %s, next", left)
	f.Scope(func() { f.Go("FMOVS %s, (%s)", f.LoadOne(e, from), to) })
	copied(1, "$4")
	f.Go("B single")

	f.Label("next")
	f.Go("ADD %s, %s", rowSrc, src)
	f.Go("ADD %s, %s", rowDst, dst)
	f.Go("SUBS $1, %s", rows)
	f.Go("BNE row")
	f.Return()
}

// packLines generates the packing of lines of B that run along the depth, in
// squares of a vector's width, and a row of the panel at a time at the end.
func packLines(file *File) {
	f := file.Func("packLinesNEON", "func(dst, src *float32, lines, depth, lineSrc, rowDst int)",
		"transposes at most 4 lines of depth floats, lineSrc bytes apart,\ninto rows of a panel, rowDst bytes apart. Lines beyond the last repeat it.")
	dst, lines, depth, lineSrc, rowDst := f.Param("dst"), f.Param("lines"), f.Param("depth"), f.Param("lineSrc"), f.Param("rowDst")
	line := []R{f.Param("src")}
	for i := range Lanes - 1 {
		line = append(line, f.R())
		f.Go("ADD %s, %s, %s", lineSrc, line[i], line[i+1])
		f.Go("CMP $%d, %s", i+1, lines)
		f.Go("CSEL GT, %s, %s, %s", line[i+1], line[i], line[i+1])
	}
	next := func(n int) {
		for _, r := range line {
			f.Go("ADD $%d, %s", 4*n, r)
		}
		f.Go("SUB $%d, %s", n, depth)
	}
	store := func(v V) {
		f.Go("FMOVQ %s, (%s)", v, dst)
		f.Go("ADD %s, %s", rowDst, dst)
	}
	in, pairs, out := f.Vs(Lanes), f.Vs(Lanes), f.Vs(Lanes)

	f.Label("square")
	f.Go("CMP $%d, %s", Lanes, depth)
	f.Go("BLT single")
	for i, r := range line {
		f.Go("FMOVQ (%s), %s", r, in[i])
	}
	for i := 0; i < Lanes; i += 2 {
		f.Do(TRN1(pairs[i], in[i], in[i+1]), TRN2(pairs[i+1], in[i], in[i+1]))
	}
	for i := range 2 {
		f.Do(TRN1x2D(out[i], pairs[i], pairs[i+2]), TRN2x2D(out[i+2], pairs[i], pairs[i+2]))
	}
	for _, v := range out {
		store(v)
	}
	next(Lanes)
	f.Go("B square")

	f.Label("single")
	f.Go("CBZ %s, done", depth)
	for i, r := range line {
		f.Go("VLD1 (%s), V%d.S[%d]", r, in[0], i)
	}
	store(in[0])
	next(1)
	f.Go("B single")
	f.Label("done")
	f.Return()
}
