package main

import (
	"slices"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func add(wide bool) {
	f := begin(wide, "add", "is add, on vectors.", "func(dst, a, b []float32)", "dst", "a", "b")
	f.loop(1, func(u int) {
		x := f.load("a", u)
		VADDPS(f.load("b", u), x, x)
		f.store(x, "dst", u)
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

// stream copies whole blocks of 64 bytes to an aligned dst.
func stream(wide bool) {
	f := begin(wide, "stream", "copies blocks of 16 floats to dst, which is aligned to 64 bytes, around the caches.",
		"func(dst, src []float32)", "dst", "src")
	f.vectors("blocks", 16, "done", func() {
		for u := range 64 / f.width() {
			v := f.vec()
			VMOVUPS(f.address("src", u), v)
			VMOVNTPS(v, f.address("dst", u))
		}
	})
	Label("done")
	f.end()
}

func fence() {
	TEXT("fence", NOSPLIT, "func()")
	Doc("fence orders streamed stores before later ones.")
	SFENCE()
	RET()
}

// prefetch needs no vectors.
func prefetch() {
	TEXT("prefetchLines", NOSPLIT, "func(first *byte, n int)")
	Pragma("noescape")
	Doc("prefetchLines fetches n bytes into the caches.")
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

func dropout(wide bool) {
	f := begin(wide, "dropout", "is dropout, on vectors.",
		"func(dst, src []float32, words []uint32, threshold uint32, scale float32)", "dst", "src", "words")
	threshold, scale := f.scalar("threshold"), f.scalar("scale")
	f.loop(1, func(u int) {
		x, w := f.load("src", u), f.load("words", u)
		VMULPS(scale, x, x)
		if wide {
			kept := K()
			VPCMPUD(noLess, threshold, w, kept)
			VMOVAPS_Z(x, kept, x)
		} else {
			most := YMM()
			VPMAXUD(threshold, w, most)
			VPCMPEQD(most, w, most) // w is the greater
			VANDPS(most, x, x)
		}
		f.store(x, "dst", u)
	})
	f.end()
}

func rotate(wide bool) {
	f := begin(wide, "rotate", "is rotate, on vectors.",
		"func(a, b, cos, sin []float32, turn float32)", "a", "b", "cos", "sin")
	turn := f.scalar("turn")
	f.loop(1, func(u int) {
		a, b, cos, sin := f.load("a", u), f.load("b", u), f.load("cos", u), f.load("sin", u)
		VMULPS(turn, sin, sin)
		aSin, bSin := f.vec(), f.vec()
		VMULPS(a, sin, aSin)
		VMULPS(b, sin, bSin)
		VMULPS(a, cos, a)
		VMULPS(b, cos, b)
		VSUBPS(bSin, a, a)
		VADDPS(aSin, b, b)
		f.store(a, "a", u)
		f.store(b, "b", u)
	})
	f.end()
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
