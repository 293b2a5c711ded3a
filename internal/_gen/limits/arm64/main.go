// Limits generates the NEON loops of internal/limits.
package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

func main() {
	f := NewFile()
	fma(f)
	stream(f)
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

// step is the bytes that a turn reads or writes.
const step = 256

// stream is as the loop of amd64. Stores around the caches are a hint here.
func stream(file *File) {
	f := file.Func("streamNEON", "func(p *byte, n, apart, parts, ahead int, turns *int, count int)",
		fmt.Sprintf("goes through parts of memory that begin apart bytes after one another, from p on, in steps of\n%d bytes up to n bytes. A turn of a step is two numbers: what it does, and how far from the part the memory\nfor it is. Memory that is ahead of what is read is fetched, unless ahead is 0, and need not exist.", step))
	p, n, apart, parts, ahead := f.Param("p"), f.Param("n"), f.Param("apart"), f.Param("parts"), f.Param("ahead")
	turns, count := f.Param("turns"), f.Param("count")
	base, part, turn, left, what, at, far := f.R(), f.R(), f.R(), f.R(), f.R(), f.R(), f.R()
	values := f.Vs(step / 16)
	each := func(do func(a, b V, disp int)) {
		for i := 0; i < len(values); i += 2 {
			do(values[i], values[i+1], 16*i)
		}
	}
	f.Label("steps")
	f.Go("MOVD %s, %s", p, base)
	f.Go("MOVD %s, %s", parts, part)
	f.Label("parts")
	f.Go("MOVD %s, %s", turns, turn)
	f.Go("MOVD %s, %s", count, left)
	f.Label("turns")
	f.Go("LDP (%s), (%s, %s)", turn, what, at)
	f.Go("ADD %s, %s", base, at)
	f.Go("CMP $1, %s", what)
	f.Go("BEQ write")
	f.Go("BGT around")
	each(func(a, b V, disp int) { f.Go("FLDPQ %d(%s), (%s, %s)", disp, at, a, b) })
	f.Go("CBZ %s, next", ahead)
	f.Go("ADD %s, %s, %s", ahead, at, far)
	for line := 0; line < step; line += 64 {
		f.Go("PRFM %d(%s), PLDL1KEEP", line, far)
	}
	f.Go("JMP next")
	f.Label("write")
	each(func(a, b V, disp int) { f.Go("FSTPQ (%s, %s), %d(%s)", a, b, disp, at) })
	f.Go("JMP next")
	f.Label("around")
	each(func(a, b V, disp int) { f.Do(STNP(a, b, at, disp)) })
	f.Label("next")
	f.Go("ADD $16, %s", turn)
	f.Go("SUBS $1, %s", left)
	f.Go("BNE turns")
	f.Go("ADD %s, %s", apart, base)
	f.Go("SUBS $1, %s", part)
	f.Go("BNE parts")
	f.Go("ADD $%d, %s", step, p)
	f.Go("SUBS $%d, %s", step, n)
	f.Go("BNE steps")
	f.Return()
}
