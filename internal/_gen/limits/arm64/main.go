// Limits generates the NEON loops of internal/limits.
package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

func main() {
	f := NewFile()
	fma(f)
	for _, m := range mixes {
		for _, parts := range []int{1, 4} {
			stream(f, m, parts)
		}
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

// mix is as in the loops of amd64. Stores around the caches are a hint here.
type mix struct {
	in, out int
	stores  string
}

const (
	around  = "Around"
	inPlace = "InPlace"
)

var mixes = []mix{
	{1, 0, ""},
	{1, 1, ""}, {2, 1, ""}, {4, 1, ""}, {1, 2, ""}, {1, 4, ""}, {3, 2, ""},
	{1, 1, around}, {2, 1, around}, {4, 1, around}, {1, 2, around}, {1, 4, around}, {3, 2, around},
	{1, 1, inPlace}, {2, 1, inPlace}, {3, 1, inPlace}, {4, 3, inPlace},
}

const (
	step  = 64 // bytes of each part at a time
	ahead = 4096
)

func stream(file *File, m mix, parts int) {
	name := fmt.Sprintf("stream%dto%d%sBy%dNEON", m.in, m.out, m.stores, parts)
	f := file.Func(name, "func(p *byte, n, apart, vector int)",
		fmt.Sprintf("goes through vectors that begin vector bytes after one another. Parts of them\nare apart bytes after one another, and have n bytes, a positive multiple of %d.", step))
	n, apart, vector, first := f.Param("n"), f.Param("apart"), f.Param("vector"), f.Param("p")
	at := make([]R, parts)
	for i := range at {
		at[i] = first
		if i > 0 {
			at[i] = f.R()
			f.Go("ADD %s, %s, %s", apart, at[i-1], at[i])
		}
	}
	place := f.R()
	f.Label("loop")
	for _, base := range at {
		f.Scope(func() { line(f, m, parts > 1, base, place, vector) })
		f.Go("ADD $%d, %s", step, base)
	}
	f.Go("SUBS $%d, %s", step, n)
	f.Go("BNE loop")
	f.Return()
}

// line reads and writes a cache line of a part of each vector. Vector in+i of those beside gets what vector
// i holds.
func line(f *Func, m mix, fetch bool, base, place, vector R) {
	f.Go("MOVD %s, %s", base, place)
	beside := m.out
	if m.stores == inPlace {
		beside = 0
	}
	values := make([][]V, m.in)
	for v := range m.in + beside {
		if v > 0 {
			f.Go("ADD %s, %s", vector, place)
		}
		if v < m.in {
			values[v] = f.Vs(4)
			for i := 0; i < 4; i += 2 {
				f.Go("FLDPQ %d(%s), (%s, %s)", 16*i, place, values[v][i], values[v][i+1])
			}
			if fetch {
				f.Go("PRFM %d(%s), PLDL1KEEP", ahead, place) // which need not exist
			}
		}
		if v >= m.in || m.stores == inPlace && v < m.out {
			store(f, values[v%m.in], place, m.stores == around)
		}
	}
}

func store(f *Func, values []V, place R, hint bool) {
	for i := 0; i < 4; i += 2 {
		if hint {
			f.Do(STNP(values[i], values[i+1], place, 16*i))
		} else {
			f.Go("FSTPQ (%s, %s), %d(%s)", values[i], values[i+1], 16*i, place)
		}
	}
}
