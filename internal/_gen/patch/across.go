package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// acrossCols is the most positions that have their sums in registers together.
const acrossCols = 1 << 3

// tapsAcross generates a depthwise convolution whose channels lie side by side, of a kernel with rows of some taps, for results that
// are step positions of the source apart. For a vector of channels and a few positions, the sums stay in registers over all rows,
// and what several of the positions read is loaded once.
func (t tier) tapsAcross(taps, step int) {
	name := fmt.Sprintf("tapsAcross%dStep%d%s", taps, step, t.name)
	TEXT(name, NOSPLIT, "func(dst, src, w, bias *float32, rows *[2]int, count, lines, cols, channels, lineSrc, lineDst, stepSrc, stepDst, stepW, edges int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s is TapsAcross for rows of %d taps and results %d positions apart, for a multiple of %d channels. Distances", name, taps, step, t.lanes()),
		"and channels are in bytes, distances of rows in elements.")
	dst, src, w, rows := GP64(), GP64(), param("w"), param("rows")
	s, three, stepW := param("stepSrc"), GP64(), param("stepW")
	LEAQ(Mem{Base: s, Index: s, Scale: 2}, three)
	acc, weight := make([]reg.VecVirtual, acrossCols), make([]reg.VecVirtual, taps)
	for i := range acc {
		acc[i] = t.register()
	}
	for i := range weight {
		weight[i] = t.register()
	}
	x, lines, c, row, left, from, at := t.register(), GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	before, after := t.switches(), t.switches()
	// tile computes n positions of all lines.
	tile := func(n int) {
		MOVQ(vec.ParamAddr("lines"), lines)
		MOVQ(vec.ParamAddr("dst"), dst)
		MOVQ(vec.ParamAddr("src"), src)
		Label(fmt.Sprintf("line%d", n))
		XORQ(c, c)
		Label(fmt.Sprintf("channels%d", n))
		MOVQ(vec.ParamAddr("bias"), at)
		VMOVUPS(Mem{Base: at, Index: c, Scale: 1}, acc[0])
		for _, a := range acc[1:n] {
			VMOVAPS(acc[0], a)
		}
		MOVQ(rows, row)
		MOVQ(vec.ParamAddr("count"), left)
		TESTQ(left, left)
		JZ(LabelRef(fmt.Sprintf("store%d", n)))
		Label(fmt.Sprintf("row%d", n))
		MOVQ(Mem{Base: row}, from)
		MOVQ(Mem{Base: row, Disp: 8}, at)
		ADDQ(Imm(16), row)
		LEAQ(Mem{Base: src, Index: from, Scale: 4}, from)
		LEAQ(Mem{Base: w, Index: at, Scale: 4}, at)
		ADDQ(c, from)
		ADDQ(c, at)
		for i, r := range weight {
			m := []Mem{{Base: at}, {Base: at, Index: stepW, Scale: 1}, {Base: at, Index: stepW, Scale: 2}}[i]
			VMOVUPS(m, r)
		}
		last := (n-1)*step + taps - 1
		for k := range last + 1 {
			if k > 0 && k%4 == 0 {
				LEAQ(Mem{Base: from, Index: s, Scale: 4}, from)
			}
			m := multiple(from, s, three, k%4)
			switch {
			case taps > 1 && k == 0:
				before.load(m, x)
			case taps > 1 && k == last:
				after.load(m, x)
			default:
				VMOVUPS(m, x)
			}
			for i := range n {
				if tap := k - i*step; tap >= 0 && tap < taps {
					VFMADD231PS(x, weight[tap], acc[i])
				}
			}
		}
		DECQ(left)
		JNZ(LabelRef(fmt.Sprintf("row%d", n)))
		// The next line of the source, as the last row reads it, and of dst come in the meantime.
		MOVQ(Mem{Base: row, Disp: -16}, from)
		LEAQ(Mem{Base: src, Index: from, Scale: 4}, from)
		ADDQ(c, from)
		ADDQ(vec.ParamAddr("lineSrc"), from)
		for k := range n * step {
			if k > 0 && k%4 == 0 {
				LEAQ(Mem{Base: from, Index: s, Scale: 4}, from)
			}
			PREFETCHT0(multiple(from, s, three, k%4))
		}
		Label(fmt.Sprintf("store%d", n))
		MOVQ(vec.ParamAddr("lineDst"), from)
		LEAQ(Mem{Base: dst, Index: c, Scale: 1}, at)
		for i := range n {
			if i > 0 {
				ADDQ(vec.ParamAddr("stepDst"), at)
			}
			VMOVUPS(acc[i], Mem{Base: at})
			PREFETCHT0(Mem{Base: at, Index: from, Scale: 1})
		}
		ADDQ(Imm(uint64(t.width)), c)
		CMPQ(c, vec.ParamAddr("channels"))
		JLT(LabelRef(fmt.Sprintf("channels%d", n)))
		ADDQ(vec.ParamAddr("lineDst"), dst)
		ADDQ(vec.ParamAddr("lineSrc"), src)
		DECQ(lines)
		JNZ(LabelRef(fmt.Sprintf("line%d", n)))
	}
	Label("tile")
	if taps > 1 {
		MOVQ(vec.ParamAddr("edges"), at)
		ANDQ(Imm(1), at)
		before.set(at)
		ANDQ(I32(-2), vec.ParamAddr("edges"))
		XORQ(at, at)
		CMPQ(vec.ParamAddr("cols"), Imm(acrossCols))
		JG(LabelRef("inside"))
		MOVQ(vec.ParamAddr("edges"), at)
		SHRQ(Imm(1), at)
		Label("inside")
		after.set(at)
	}
	for n := acrossCols; n >= 1; n-- {
		next := fmt.Sprintf("below%d", n)
		if n > 1 {
			CMPQ(vec.ParamAddr("cols"), Imm(uint64(n)))
			JLT(LabelRef(next))
		}
		tile(n)
		if n == acrossCols {
			SUBQ(Imm(acrossCols), vec.ParamAddr("cols"))
			JZ(LabelRef("done"))
			MOVQ(vec.ParamAddr("stepDst"), at)
			SHLQ(Imm(3), at)
			ADDQ(at, vec.ParamAddr("dst"))
			MOVQ(s, at)
			SHLQ(Imm(uint64(2+step)), at)
			ADDQ(at, vec.ParamAddr("src"))
			JMP(LabelRef("tile"))
		} else if n > 1 {
			JMP(LabelRef("done"))
		}
		if n > 1 {
			Label(next)
		}
	}
	Label("done")
	VZEROUPPER()
	RET()
}

// multiple is where n steps lead to, up to 3.
func multiple(from, step, three reg.GPVirtual, n int) Mem {
	return []Mem{{Base: from}, {Base: from, Index: step, Scale: 1}, {Base: from, Index: step, Scale: 2}, {Base: from, Index: three, Scale: 1}}[n]
}

// switched is a predicate of all lanes of a vector or none.
type switched struct{ tail }

func (t tier) switches() switched {
	if t.width == 64 {
		return switched{tail{tier: t, k: K()}}
	}
	return switched{tail{tier: t, mask: YMM()}}
}

// set makes it all lanes if off is 0, none if it is 1. It changes off.
func (s switched) set(off reg.GPVirtual) {
	if s.width == 64 {
		DECQ(off)
		KMOVW(off.As32(), s.k)
		return
	}
	at := GP64()
	LEAQ(NewDataAddr(Symbol{Name: "masks", Static: true}, 0), at)
	SHLQ(Imm(5), off)
	VMOVDQU(Mem{Base: at, Index: off, Scale: 1}, s.mask)
}

// dotsCols is how many positions of y are in registers together.
const dotsCols = 4

// dotsAcross generates the gradient of the weights of a depthwise convolution whose channels lie side by side, of some rows of the
// kernel: for a few vectors of channels, the sums of all taps stay in registers over all positions. With several taps a row, what
// several positions read is loaded once.
func (t tier) dotsAcross(taps, step, rows, vectors int) {
	name := fmt.Sprintf("dotsAcross%dStep%dRows%d%s", taps, step, rows, t.name)
	TEXT(name, NOSPLIT, "func(sums, y, src *float32, rows *[2]int, lines, cols, channels, lineSrc, lineY, stepSrc, stepY, stepSums, edges int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s is DotsAcross for %d rows of %d taps and results %d positions apart, for a multiple of %d channels. Distances", name, rows, taps, step, vectors*t.lanes()),
		"and channels are in bytes, distances of rows in elements.")
	c, s, stepY, at := GP64(), param("stepSrc"), param("stepY"), GP64()
	acc, offset := make([][][]reg.VecVirtual, rows), make([]reg.GPVirtual, rows)
	MOVQ(vec.ParamAddr("rows"), at)
	for r := range acc {
		acc[r], offset[r] = make([][]reg.VecVirtual, taps), GP64()
		MOVQ(Mem{Base: at, Disp: 16 * r}, offset[r])
		SHLQ(Imm(2), offset[r])
		for tap := range acc[r] {
			for range vectors {
				acc[r][tap] = append(acc[r][tap], t.register())
			}
		}
	}
	each := func(move func(m Mem, r reg.VecVirtual)) {
		to := GP64()
		for r := range acc {
			MOVQ(vec.ParamAddr("rows"), at)
			MOVQ(Mem{Base: at, Disp: 16*r + 8}, to)
			SHLQ(Imm(2), to)
			ADDQ(vec.ParamAddr("sums"), to)
			ADDQ(c, to)
			for tap := range acc[r] {
				if tap > 0 {
					ADDQ(vec.ParamAddr("stepSums"), to)
				}
				for v, sum := range acc[r][tap] {
					move(Mem{Base: to, Disp: v * t.width}, sum)
				}
			}
		}
	}
	y, x, lineY, line, lines, left := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	var value [dotsCols]reg.VecVirtual
	for i := range value {
		value[i] = t.register()
	}
	// single adds the products of a position with taps lo to hi-1.
	single := func(lo, hi int) {
		for v := range vectors {
			VMOVUPS(Mem{Base: y, Disp: v * t.width}, value[v])
		}
		ADDQ(stepY, y)
		MOVQ(x, at)
		for tap := range hi {
			if tap > 0 {
				ADDQ(s, at)
			}
			for r := range acc {
				for v := range vectors {
					if tap >= lo {
						VFMADD231PS(Mem{Base: at, Index: offset[r], Scale: 1, Disp: v * t.width}, value[v], acc[r][tap][v])
					}
				}
			}
		}
		LEAQ(Mem{Base: x, Index: s, Scale: uint8(step)}, x)
	}
	XORQ(c, c)
	Label("channels")
	each(func(m Mem, r reg.VecVirtual) { VMOVUPS(m, r) })
	MOVQ(vec.ParamAddr("y"), lineY)
	ADDQ(c, lineY)
	MOVQ(vec.ParamAddr("src"), line)
	ADDQ(c, line)
	MOVQ(vec.ParamAddr("lines"), lines)
	Label("line")
	MOVQ(lineY, y)
	MOVQ(line, x)
	MOVQ(vec.ParamAddr("cols"), left)
	if taps > 1 {
		BTQ(Imm(0), vec.ParamAddr("edges"))
		JCC(LabelRef("inside"))
		single(1, taps)
		DECQ(left)
		Label("inside")
		BTQ(Imm(1), vec.ParamAddr("edges"))
		SBBQ(Imm(0), left)
		Label("group")
		SUBQ(Imm(dotsCols), left)
		JLT(LabelRef("rest"))
		// The next line of y, and of the source as the last row reads it, come in the meantime.
		MOVQ(vec.ParamAddr("lineY"), at)
		for i := range value {
			VMOVUPS(Mem{Base: y}, value[i])
			PREFETCHT0(Mem{Base: y, Index: at, Scale: 1})
			ADDQ(stepY, y)
		}
		MOVQ(offset[rows-1], at)
		ADDQ(vec.ParamAddr("lineSrc"), at)
		ADDQ(x, at)
		for i := range dotsCols * step {
			if i > 0 {
				ADDQ(s, at)
			}
			PREFETCHT0(Mem{Base: at})
		}
		part := t.register()
		last := (dotsCols-1)*step + taps - 1
		MOVQ(x, at)
		for k := range last + 1 {
			if k == dotsCols*step {
				MOVQ(at, x)
			}
			for r := range acc {
				VMOVUPS(Mem{Base: at, Index: offset[r], Scale: 1}, part)
				for tap := range taps {
					if i := k - tap; i >= 0 && i%step == 0 && i/step < dotsCols {
						VFMADD231PS(part, value[i/step], acc[r][tap][0])
					}
				}
			}
			ADDQ(s, at)
		}
		JMP(LabelRef("group"))
		Label("rest")
		ADDQ(Imm(dotsCols), left)
		JZ(LabelRef("end"))
	}
	Label("position")
	single(0, taps)
	DECQ(left)
	JNZ(LabelRef("position"))
	if taps > 1 {
		Label("end")
		BTQ(Imm(1), vec.ParamAddr("edges"))
		JCC(LabelRef("next"))
		single(0, taps-1)
		Label("next")
	}
	ADDQ(vec.ParamAddr("lineY"), lineY)
	ADDQ(vec.ParamAddr("lineSrc"), line)
	DECQ(lines)
	JNZ(LabelRef("line"))
	each(func(m Mem, r reg.VecVirtual) { VMOVUPS(r, m) })
	ADDQ(Imm(uint64(vectors*t.width)), c)
	CMPQ(c, vec.ParamAddr("channels"))
	JLT(LabelRef("channels"))
	VZEROUPPER()
	RET()
}
