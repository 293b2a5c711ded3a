// Blockq generates the loops of internal/blockq over one block of n elements, a
// multiple of 16. Tables are looked up by gathers, which all hit the first
// cache, or with AVX512_VBMI by permutations of bytes, which took a quarter to a half of the time on a Zen 4.
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
		k.encode()
	}
	encodeSegments()
	kernels{vec.AVX512}.encodeQuickly()
	decodeVBMI("decode", "writes m[code]·absmax for whole blocks, of a multiple of 64 elements.", "[256]float32", loadPlanes, vec.Set.Write)
	decodeVBMI("decodePlanes", "is decodeVBMI with the planes of the map.", "byte", planesAt, vec.Set.Write)
	decodeVBMI("decodeStream", "is decodeVBMI around the caches; x is aligned to 64 bytes and a fence follows.", "[256]float32", loadPlanes, vec.Set.Stream)
	encodeVBMI("encodeVBMI", true)
	encodeVBMI("encodePositiveVBMI", false)
	vec.Fence("makes streamed data visible before what is written next.")
	Generate()
}

type kernels struct{ vec.Set }

func (k kernels) begin(name, doc, signature string) {
	name += k.Name
	vec.Func(name, signature, name+" "+doc)
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
func (k kernels) encode() {
	k.begin("encode", "writes the codes of x/absmax.", "func(codes *uint8, x *float32, n int, absmax float32, cells *uint32, limit *float32, more int)")
	codes, x, n := vec.Point("codes", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	absmax := k.Broadcast(Param("absmax"))
	cells, limit, more := Load(Param("cells"), GP64()), Load(Param("limit"), GP64()), Load(Param("more"), GP64())
	c := k.constants()
	vec.Loop("loop", n, step, []vec.Pointer{codes, x}, func() {
		var q, code [2]reg.VecVirtual
		vectors := step / k.Lanes
		for i := range vectors {
			q[i] = k.Register()
			PREFETCHT0(x.At(i*k.Lanes + ahead))
			VADDPS(x.At(i*k.Lanes), c.zero, q[i])
			VDIVPS(absmax, q[i], q[i])
			code[i] = k.And(c.low, k.fromCell(cells, q[i], c))
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
		k.storeBytes(code[:vectors], codes.At(0))
	})
	vec.End()
}

// encodeQuickly has no divisions and needs only the table's comparisons.
func (k kernels) encodeQuickly() {
	k.begin("encodeQuickly", "writes the codes of x/absmax where Encoder.Quick is ok.",
		"func(codes *uint8, x *float32, n int, absmax, inverse, rest float32, cells *uint32)")
	codes, x, n := vec.Point("codes", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	q := vec.Divisor{k.Broadcast(Param("absmax")), k.Broadcast(Param("inverse")), k.Broadcast(Param("rest")), Load(Param("cells"), GP64())}
	vec.Loop("loop", n, step, []vec.Pointer{codes, x}, func() {
		PREFETCHT0(x.At(ahead))
		v := k.Register()
		VMOVUPS(x.At(0), v)
		q.Encode(v, codes.At(0))
	})
	vec.End()
}

// constants are registers of one value in all lanes.
type constants struct {
	low   reg.VecVirtual // 0xff
	ones  reg.VecVirtual // -1
	zero  reg.VecVirtual
	sign  reg.VecVirtual // 1<<31, for AVX2
	eight reg.VecVirtual // 8, for AVX2
}

func (k kernels) constants() constants {
	c := constants{low: k.Constant(0xff), ones: k.Constant(1<<32 - 1), zero: k.Zero()}
	if !k.Wide() {
		c.sign, c.eight = k.Constant(1<<31), k.Constant(8)
	}
	return c
}

// fromCell returns the codes of q, before limits beyond the first in a cell, in
// the lowest bytes of lanes.
func (k kernels) fromCell(cells reg.Register, q reg.VecVirtual, c constants) reg.VecVirtual {
	if k.Wide() {
		return vec.FromCell(cells, q)
	}
	index, low := k.Register(), k.Register()
	VPSRLD(Imm(16), q, index)
	cell := k.Gather(Mem{Base: cells}, index)
	VPSLLD(Imm(16), q, low)
	VPXOR(c.sign, low, low) // to compare as signed
	VPXOR(c.sign, cell, index)
	VPCMPGTD(index, low, low)
	VPAND(c.eight, low, low)
	VPSRLVD(low, cell, cell)
	return cell
}

const greater = 30 // predicate of VCMPPS

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
