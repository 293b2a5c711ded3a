package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The constants of tanh, of internal/rowwise.
const tanhNear = 0.55

var tanhCoefficients = []float32{-0.0062742398649175, 0.0210716792840326, -0.0538523099612080, 0.1333258613890013, -0.3333331755967930}

// tanh is tanh x as tanh32 of internal/rowwise computes it.
type tanh struct {
	*power2
	sign, near, twoLog2e, one operand.Op
	coefficients              []operand.Op
}

func (f *function) newTanh() *tanh {
	return &tanh{
		f.newPower2(-126), f.constant(float32(math.Copysign(0, -1))), f.constant(tanhNear), f.constant(2 * math.Log2E), f.constant(1),
		f.constants(tanhCoefficients...),
	}
}

func (h *tanh) of(x reg.VecVirtual) reg.VecVirtual {
	vec, one := h.vec, h.register(h.one)
	z, cube, minus := vec(), vec(), vec()
	VMULPS(x, x, z)
	VMULPS(x, z, cube)
	p := h.horner(z, h.coefficients)
	VFMADD213PS(x, cube, p) // p·x³ + x

	VORPS(h.sign, x, minus) // −|x|
	power := vec()
	VMULPS(h.twoLog2e, minus, power)
	e := h.power2.of(power)
	far, sum := vec(), vec()
	VSUBPS(e, one, far)
	VADDPS(e, one, sum)
	VDIVPS(sum, far, far)
	sign := vec()
	VANDPS(h.sign, x, sign)
	VORPS(sign, far, far)

	VADDPS(h.near, minus, minus) // above 0 where |x| is below the bound
	if h.wide {
		k := K()
		VXORPS(sign, sign, sign)
		VCMPPS(greater, sign, minus, k)
		VMOVAPS(p, k, far)
	} else {
		VXORPS(sign, sign, sign)
		VCMPPS(greater, sign, minus, minus)
		VBLENDVPS(minus, p, far, far)
	}
	return far
}

func softcap(wide bool) {
	f := begin(wide, "softcap", "is softcap, on vectors.", "func(x []float32, slope, limit float32)", "x")
	slope, limit, h := f.scalar("slope"), f.scalar("limit"), f.newTanh()
	f.loop(1, func(u int) {
		x := f.load("x", u)
		VMULPS(slope, x, x)
		y := h.of(x)
		VMULPS(limit, y, y)
		f.store(y, "x", u)
	})
	f.end()
}

func softcapSlopes(wide bool) {
	f := begin(wide, "softcapSlopes", "is softcapSlopes, on vectors.", "func(dst, x []float32, inverse, scale float32)", "dst", "x")
	inverse, scale, one := f.scalar("inverse"), f.scalar("scale"), f.register(f.constant(1))
	f.loop(1, func(u int) {
		x := f.load("x", u)
		VMULPS(inverse, x, x)
		VMULPS(x, x, x)
		VSUBPS(x, one, x)
		VMULPS(scale, x, x)
		f.store(x, "dst", u)
	})
	f.end()
}
