package main

import (
	"slices"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

func add(k kind) {
	r := beginRows(k, "add", "func(dst, a, b []T, stream bool)", nil, "dst", "a", "b")
	r.loadPacking()
	r.streamed("dst")
	r.pass("main", 1, func(u int) {
		a, b := r.fetch("a", u), r.fetch("b", u)
		r.put(each(a, func(v int, x reg.VecVirtual) { VADDPS(b[v], x, x) }), "dst", u)
	})
	r.end()
}

// addNext is add where memory has what is next elsewhere.
func addNext(k kind) {
	r := beginRows(k, "addNext", "func(dst, a, b, nextA, nextB []T, stream bool)", nil, "dst", "a", "b", "nextA", "nextB")
	r.loadPacking()
	r.streamed("dst")
	r.pass("main", 1, func(u int) {
		a, b := r.get("a", u), r.get("b", u)
		r.prefetch("nextA", u, 0)
		r.prefetch("nextB", u, 0)
		r.put(each(a, func(v int, x reg.VecVirtual) { VADDPS(b[v], x, x) }), "dst", u)
	})
	r.end()
}

// addScaled has float32 sums that others read.
func addScaled(k kind) {
	r := beginRows(k, "addScaled", "func(acc []float32, x []T, alpha float32, nextAcc []float32, nextX []T)", []string{"acc", "nextAcc"},
		"acc", "x", "nextAcc", "nextX")
	r.inOrder = true
	alpha := r.scalar("alpha")
	r.pass("main", 1, func(u int) {
		acc, x := r.get("acc", u), r.get("x", u)
		r.prefetch("nextAcc", u, 0)
		r.prefetch("nextX", u, 0)
		each(x, func(v int, x reg.VecVirtual) {
			VMULPS(alpha, x, x)
			VADDPS(x, acc[v], acc[v])
		})
		r.put(acc, "acc", u)
	})
	r.end()
}

// scaleAbove keeps NaNs.
func scaleAbove(wide bool) {
	f := begin(wide, "scaleAbove", "is scaleAbove, on vectors.", "func(x []float32, a, threshold float32)", "x")
	a, threshold := f.scalar("a"), f.scalar("threshold")
	f.loop(1, func(u int) {
		x := f.load("x", u)
		if wide {
			kept := K()
			VCMPPS(notBelow, threshold, x, kept)
			VMULPS_Z(a, x, kept, x)
		} else {
			kept := YMM()
			VCMPPS(notBelow, threshold, x, kept)
			VMULPS(a, x, x)
			VANDPS(kept, x, x)
		}
		f.store(x, "x", u)
	})
	f.end()
}

func scale(wide bool) {
	f := begin(wide, "scale", "is scale, on vectors.", "func(dst, src []float32, a float32)", "dst", "src")
	a := f.scalar("a")
	f.loop(1, func(u int) {
		x := f.load("src", u)
		VMULPS(a, x, x)
		f.store(x, "dst", u)
	})
	f.end()
}

// prefetch needs no vectors.
func prefetch() {
	vec.Func("prefetchLines", "func(first *byte, n int)", "prefetchLines fetches n bytes into the caches.")
	at, left := Load(Param("first"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	CMPQ(left, operand.U8(0))
	JLE(operand.LabelRef("done"))
	PREFETCHT0(operand.Mem{Base: at})
	ADDQ(operand.U8(64), at)
	SUBQ(operand.U8(64), left)
	JMP(operand.LabelRef("loop"))
	Label("done")
	RET()
}

// copyAround needs no arithmetic.
func copyAround(wide bool) {
	f := &function{wide: wide}
	name := map[bool]string{false: "copyAroundAVX2", true: "copyAroundAVX512"}[wide]
	vec.Func(name, "func(dst, src, next *byte, n int)",
		name+" copies n bytes, a multiple of 64, to dst, which is aligned to 64, around the caches, and fetches as many from next.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	next, left := Load(Param("next"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	CMPQ(left, operand.U8(0))
	JLE(operand.LabelRef("done"))
	PREFETCHT1(operand.Mem{Base: next})
	for at := 0; at < 64; at += f.width() {
		v := f.vec()
		VMOVUPS(operand.Mem{Base: src, Disp: at}, v)
		VMOVNTPS(v, operand.Mem{Base: dst, Disp: at})
	}
	for _, p := range []reg.Register{dst, src, next} {
		ADDQ(operand.U8(64), p)
	}
	SUBQ(operand.U8(64), left)
	JMP(operand.LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

func axpby(wide bool) {
	f := begin(wide, "axpby", "is axpby, on vectors.", "func(acc, x []float32, alpha, beta float32)", "acc", "x")
	alpha, beta := f.scalar("alpha"), f.scalar("beta")
	f.loop(1, func(u int) {
		x, acc := f.load("x", u), f.load("acc", u)
		VMULPS(alpha, x, x)
		VMULPS(beta, acc, acc)
		VADDPS(x, acc, acc)
		f.store(acc, "acc", u)
	})
	f.end()
}

// rotate has float32 cosines and sines.
func rotate(k kind) {
	r := beginRows(k, "rotate", "func(a, b []T, cos, sin []float32, turn float32, heads, stride int)", []string{"cos", "sin"},
		"cos", "sin", "a", "b")
	r.inOrder = true
	r.loadPacking()
	turn, heads, stride := r.scalar("turn"), Load(Param("heads"), GP64()), Load(Param("stride"), GP64())
	SHLQ(operand.U8(map[bool]int{false: 2, true: 1}[k.bf16]), stride)
	Label("head")
	TESTQ(heads, heads)
	JZ(operand.LabelRef("end"))
	r.pass("main", 1, func(u int) {
		a, b, cos, sin := r.fetch("a", u), r.fetch("b", u), r.get("cos", u), r.get("sin", u)
		for v := range a {
			VMULPS(turn, sin[v], sin[v])
			aSin, bSin := r.vec(), r.vec()
			VMULPS(a[v], sin[v], aSin)
			VMULPS(b[v], sin[v], bSin)
			VMULPS(a[v], cos[v], a[v])
			VMULPS(b[v], cos[v], b[v])
			VSUBPS(bSin, a[v], a[v])
			VADDPS(aSin, b[v], b[v])
		}
		r.put(a, "a", u)
		r.put(b, "b", u)
	})
	ADDQ(stride, r.ptr["a"])
	ADDQ(stride, r.ptr["b"])
	DECQ(heads)
	JMP(operand.LabelRef("head"))
	Label("end")
	r.end()
}

// rotatePairs loads half a vector of cosines and sines for a vector of pairs.
func rotatePairs(wide bool) {
	f := begin(wide, "rotatePairs", "is rotatePairs for a multiple of 8 pairs, on vectors.",
		"func(cos, sin, x []float32, turn float32)", "cos", "sin", "x")
	turn := f.scalar("turn")
	VXORPS(symbol("evenSigns", slices.Repeat([]uint32{1 << 31, 0}, 8)...), turn, turn)
	spread := func(slice string) reg.VecVirtual {
		v := f.vec()
		VPMOVZXDQ(f.address(slice, 0), v)
		VMOVSLDUP(v, v)
		return v
	}
	f.vectors("vectors", f.lanes()/2, "done", func() {
		at := operand.Mem{Base: f.ptr["x"], Index: f.at, Scale: 2}
		cos, sin, x, swapped := spread("cos"), spread("sin"), f.vec(), f.vec()
		VMULPS(turn, sin, sin)
		VMOVUPS(at, x)
		VPERMILPS(swapPairs, x, swapped)
		VMULPS(cos, x, x)
		VMULPS(sin, swapped, swapped)
		VADDPS(swapped, x, x)
		VMOVUPS(x, at)
	})
	Label("done")
	f.end()
}

// rotatePairsBF16 has the first of each pair in one vector and the second in the
// other. An item is a pair.
func rotatePairsBF16(k kind) {
	r := beginRows(k, "rotatePairs", "func(cos, sin []float32, x []T, turn float32)",
		[]string{"cos", "sin"}, "cos", "sin", "x")
	r.loadPacking()
	turn := r.scalar("turn")
	ADDQ(r.n, r.n) // elements of x
	r.pass("main", 1, func(u int) {
		x := r.get("x", u)
		angles := func(slice string) reg.VecVirtual {
			v, from := r.vec(), operand.Mem{Base: r.ptr[slice], Index: r.at, Scale: 2}
			if r.tail {
				VMOVUPS_Z(from, r.masks[0], v)
			} else {
				VMOVUPS(from, v)
			}
			return v
		}
		cos, sin, aSin, bSin := angles("cos"), angles("sin"), r.vec(), r.vec()
		VMULPS(turn, sin, sin)
		VMULPS(x[0], sin, aSin)
		VMULPS(x[1], sin, bSin)
		VMULPS(x[0], cos, x[0])
		VMULPS(x[1], cos, x[1])
		VSUBPS(bSin, x[0], x[0])
		VADDPS(aSin, x[1], x[1])
		r.put(x, "x", u)
	})
	r.end()
}
