// Blockq generates the loops of internal/blockq over one block of n elements, a
// multiple of 16. Tables are looked up by gathers, all of which hit the first
// cache.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const step = 16 // elements of a loop

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		k := kernels{s}
		k.absMax()
		k.decode("decode", "writes m[code]·absmax.", vec.Set.Write)
		k.decode("decodeStream", "is decode around the caches; x is aligned to 64 bytes and a fence follows.", vec.Set.Stream)
		k.encode("encode", "writes the codes of x/absmax.", false)
		k.encode("encodeLowering", "is encode, except that codes lowered of negative x become one less.", true)
	}
	fence()
	Generate()
}

func fence() {
	TEXT("fence", NOSPLIT, "func()")
	Doc("fence makes streamed data visible before what is written next.")
	SFENCE()
	RET()
}

type kernels struct{ vec.Set }

func (k kernels) begin(name, doc, signature string) {
	name += k.Name
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
}

// absMax compares magnitudes as integers, which keep their order.
func (k kernels) absMax() {
	k.begin("absMax", "returns the largest magnitude of x, as bits.", "func(x *float32, n int) (top uint32)")
	x, n := vec.Point("x", 4), Load(Param("n"), GP64())
	magnitude, top := k.Constant(0x7fffffff), k.Zero()
	vec.Loop("loop", n, step, []vec.Pointer{x}, func() {
		for i := 0; i < step; i += k.Lanes {
			v := k.Register()
			k.and(magnitude, x.At(i), v)
			VPMAXUD(v, top, top)
		}
	})
	Store(k.Largest(top), Return("top"))
	vec.End()
}

func (k kernels) and(a reg.VecVirtual, b Mem, to reg.VecVirtual) {
	if k.Wide() {
		VPANDD(b, a, to)
	} else {
		VPAND(b, a, to)
	}
}

func (k kernels) decode(name, doc string, store func(s vec.Set, x reg.Register, to Mem)) {
	k.begin(name, doc, "func(x *float32, codes *uint8, n int, m *[256]float32, absmax float32)")
	x, codes, n := vec.Point("x", 4), vec.Point("codes", 1), Load(Param("n"), GP64())
	m, absmax := Load(Param("m"), GP64()), k.Broadcast(Param("absmax"))
	vec.Loop("loop", n, step, []vec.Pointer{x, codes}, func() {
		for i := 0; i < step; i += k.Lanes {
			v := k.Lookup(m, codes.At(i))
			VMULPS(absmax, v, v)
			store(k.Set, v, x.At(i))
		}
	})
	vec.End()
}

// ahead is how far, in elements, the elements of coming blocks are fetched.
const ahead = 512

// encode finds codes as Encoder.Code does: by a cell of the table, and one
// comparison with a limit for each of more.
func (k kernels) encode(name, doc string, lowering bool) {
	k.begin(name, doc, "func(codes *uint8, x *float32, n int, absmax float32, lowered uint32, cells *uint32, limit *float32, more int)")
	codes, x, n := vec.Point("codes", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	absmax, lowered := k.Broadcast(Param("absmax")), k.Broadcast(Param("lowered"))
	cells, limit, more := Load(Param("cells"), GP64()), Load(Param("limit"), GP64()), Load(Param("more"), GP64())
	c := constants{low: k.Constant(0xff), sign: k.Constant(1 << 31), ones: k.Constant(1<<32 - 1), zero: k.Zero()}
	vec.Loop("loop", n, step, []vec.Pointer{codes, x}, func() {
		var q, code [2]reg.VecVirtual
		vectors := step / k.Lanes
		for i := range vectors {
			q[i] = k.Register()
			PREFETCHT0(x.At(i*k.Lanes + ahead))
			VMOVUPS(x.At(i*k.Lanes), q[i])
			VDIVPS(absmax, q[i], q[i])
			code[i] = k.fromCell(cells, k.order(q[i], c.sign), c)
		}
		left := GP64()
		MOVQ(more, left)
		Label("more")
		TESTQ(left, left)
		JZ(LabelRef("found"))
		for i := range vectors {
			k.addGreater(q[i], k.Gather(Mem{Base: limit}, code[i]), code[i], c)
		}
		DECQ(left)
		JMP(LabelRef("more"))
		Label("found")
		for i := range vectors {
			if lowering {
				k.lower(x.At(i*k.Lanes), lowered, code[i], c)
			}
		}
		k.storeBytes(code[:vectors], codes.At(0))
	})
	vec.End()
}

// constants are registers of one value in all lanes.
type constants struct {
	low  reg.VecVirtual // 0xff
	sign reg.VecVirtual // 1<<31
	ones reg.VecVirtual // -1
	zero reg.VecVirtual
}

// order returns the bits of x, turned such that they ascend with it: all bits
// flip if x is negative, else the sign.
func (k kernels) order(x, sign reg.VecVirtual) reg.VecVirtual {
	u := k.Register()
	VPSRAD(Imm(31), x, u)
	if k.Wide() {
		VPTERNLOGD(Imm(0x36), sign, x, u) // x ^ (u | sign)
		return u
	}
	VPOR(sign, u, u)
	VPXOR(x, u, u)
	return u
}

const lowestCell = 0x407f

// fromCell returns the codes of values whose order is u but for limits beyond
// the first in a cell. The cell has a code in its lower half, and there u's
// lower half is 0 when it is moved up to be compared.
func (k kernels) fromCell(cells reg.Register, u reg.VecVirtual, c constants) reg.VecVirtual {
	index := k.Register()
	VPSRLD(Imm(16), u, index)
	cell := k.Gather(Mem{Base: cells, Disp: -4 * lowestCell}, index)
	code := k.And(c.low, cell)
	VPSLLD(Imm(16), u, u)
	if k.Wide() {
		const notLessOrEqual = 6
		is := K()
		VPCMPUD(Imm(notLessOrEqual), cell, u, is)
		VPSUBD(c.ones, code, is, code)
		return code
	}
	VPXOR(c.sign, u, u) // to compare as signed
	VPXOR(c.sign, cell, cell)
	VPCMPGTD(cell, u, u)
	VPSUBD(u, code, code) // -1 where true
	return code
}

const (
	less    = 17 // predicates of VCMPPS
	greater = 30
)

// addGreater adds 1 to code where x > limit.
func (k kernels) addGreater(x, limit, code reg.VecVirtual, c constants) {
	if k.Wide() {
		is := K()
		VCMPPS(Imm(greater), limit, x, is)
		VPSUBD(c.ones, code, is, code)
		return
	}
	VCMPPS(Imm(greater), limit, x, limit)
	VPSUBD(limit, code, code)
}

// lower subtracts 1 from code where it is lowered and x < 0.
func (k kernels) lower(x Mem, lowered, code reg.VecVirtual, c constants) {
	v := k.Register()
	VMOVUPS(x, v)
	if k.Wide() {
		isLowered, is := K(), K()
		VPCMPEQD(lowered, code, isLowered)
		VCMPPS(Imm(less), c.zero, v, isLowered, is)
		VPADDD(c.ones, code, is, code)
		return
	}
	is := k.Register()
	VPCMPEQD(lowered, code, is)
	VCMPPS(Imm(less), c.zero, v, v)
	VPAND(v, is, is)
	VPADDD(is, code, code)
}

// storeBytes writes the lowest bytes of 16 lanes, none above 255.
func (k kernels) storeBytes(v []reg.VecVirtual, to Mem) {
	if k.Wide() {
		VPMOVDB(v[0], to)
		return
	}
	words, high := YMM(), XMM()
	VPACKUSDW(v[1], v[0], words) // packs within halves of 128 bits
	VPERMQ(Imm(0xd8), words, words)
	VEXTRACTI128(Imm(1), words, high)
	VPACKUSWB(high, words.AsX(), high)
	VMOVDQU(high, to)
}
