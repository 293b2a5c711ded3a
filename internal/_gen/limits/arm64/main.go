// Limits generates the NEON loops of internal/limits.
package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

func main() {
	f := NewFile()
	fma(f)
	for _, streams := range []int{1, 4} {
		read(f, streams)
		stream(f, streams)
	}
	f.Generate()
}

// chains is how many sums are under way: more than latency times multipliers,
// 4·4 on the processors of today.
const chains = 24

func fma(file *File) {
	f := file.Func("fmaNEON", "func(steps int)", fmt.Sprintf("does %d independent vector multiply-adds a step.", chains))
	steps, x, sums := f.Param("steps"), f.Zero(), f.Zeros(chains)
	f.Label("loop")
	for _, v := range sums {
		f.Do(FMLA(v, x, x))
	}
	f.Go("SUBS $1, %s", steps)
	f.Go("BNE loop")
	f.Return()
}

const (
	unroll = 8           // vectors of a part at a time
	step   = 16 * unroll // their bytes
	ahead  = 4096
)

// parts returns pointers to what begins apart bytes after one another.
func parts(f *Func, n int, first string, apart R) []R {
	p := []R{f.Param(first)}
	for i := range n - 1 {
		p = append(p, f.R())
		f.Go("ADD %s, %s, %s", apart, p[i], p[i+1])
	}
	return p
}

func read(file *File, streams int) {
	f := file.Func(fmt.Sprintf("read%dxNEON", streams), "func(src *byte, n, apart int)",
		fmt.Sprintf("reads %d parts of n bytes, a positive multiple of 512, apart\nbytes from one another.", streams))
	n, apart := f.Param("n"), f.Param("apart")
	src := parts(f, streams, "src", apart)
	f.Label("loop")
	for _, from := range src {
		f.Scope(func() { load(f, from) })
		f.Go("ADD $%d, %s", step, from)
	}
	f.Go("SUBS $%d, %s", step, n)
	f.Go("BNE loop")
	f.Return()
}

// load reads a step of a part and asks for what it will read a page later,
// which need not exist.
func load(f *Func, from R) []V {
	v := f.Vs(unroll)
	for i := 0; i < unroll; i += 2 {
		f.Go("FLDPQ %d(%s), (%s, %s)", 16*i, from, v[i], v[i+1])
	}
	for i := 0; i < step; i += 64 {
		f.Go("PRFM %d(%s), PLDL1KEEP", ahead+i, from)
	}
	return v
}

func stream(file *File, streams int) {
	f := file.Func(fmt.Sprintf("copy%dxNEON", streams), "func(dst, src *byte, n, apart int)",
		fmt.Sprintf("copies %d parts of n bytes, a positive multiple of 512, apart\nbytes from one another, with a hint that caches need not hold them.", streams))
	n, apart := f.Param("n"), f.Param("apart")
	src, dst := parts(f, streams, "src", apart), parts(f, streams, "dst", apart)
	f.Label("loop")
	for p, from := range src {
		f.Scope(func() {
			v := load(f, from)
			for i := 0; i < unroll; i += 2 {
				f.Do(STNP(v[i], v[i+1], dst[p], 16*i))
			}
		})
		f.Go("ADD $%d, %s", step, from)
		f.Go("ADD $%d, %s", step, dst[p])
	}
	f.Go("SUBS $%d, %s", step, n)
	f.Go("BNE loop")
	f.Return()
}
