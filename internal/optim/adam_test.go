package optim

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// definition is one AdamW step on one element in float64, written from the
// papers with the bias-corrected moments.
func adamDefinition(h Hyper, p, m, v, g float64) (p2, m2, v2 float64) {
	lr, b1, b2 := h.LR, h.Beta1, h.Beta2
	decay := 1 - lr*h.WeightDecay
	g *= float64(h.GradScale)
	m = b1*m + (1-b1)*g
	v = b2*v + (1-b2)*g*g
	mHat := m / (1 - math.Pow(b1, float64(h.Step)))
	vHat := v / (1 - math.Pow(b2, float64(h.Step)))
	if h.DecayFirst {
		p *= decay
	}
	p -= lr * cmp.Or(h.Ratio, 1) * mHat / (math.Sqrt(vHat) + h.Eps)
	if !h.DecayFirst {
		p *= decay
	}
	return p, m, v
}

func TestAdamAgainstDefinition(t *testing.T) {
	hypers := []Hyper{
		{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, GradScale: 1},
		{LR: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradScale: 1},
		{LR: 1e-2, Beta1: 0.8, Beta2: 0.99, Eps: 1e-3, WeightDecay: 2, GradScale: 1.0 / 1024},
		{LR: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 2, GradScale: 1, Ratio: 0.125},
		{LR: 1e-3, Eps: 1e-6, WeightDecay: 0.01, GradScale: 1}, // β1 = β2 = 0: sign descent
	}
	const n, steps = 1003, 30
	for tier, k := range Registry.All() {
		for i, h := range hypers {
			for _, first := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%d/%v", tier, i, first), func(t *testing.T) {
					h.DecayFirst = first
					rng := rand.New(rand.NewPCG(1, uint64(i)))
					p, m, v, g := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
					p64, m64, v64 := make([]float64, n), make([]float64, n), make([]float64, n)
					for j := range p {
						p[j] = float32(rng.NormFloat64())
						p64[j] = float64(p[j])
					}
					for h.Step = 1; h.Step <= steps; h.Step++ {
						for j := range g {
							g[j] = float32(rng.NormFloat64()) / h.GradScale
							p64[j], m64[j], v64[j] = adamDefinition(h, p64[j], m64[j], v64[j], float64(g[j]))
						}
						k.Update(h.Coef(), p, g, moments(m, v))
					}
					// Each step rounds p once more, by half a unit in its last
					// place; m and v forget their old rounding errors.
					for j := range p {
						require.InDelta(t, p64[j], p[j], steps*math.Abs(p64[j])*0x1p-23+2e-7, "p[%d]", j)
						require.InDelta(t, m64[j], m[j], 1e-6, "m[%d]", j)
						require.InEpsilon(t, 1+v64[j], 1+float64(v[j]), 2e-6, "v[%d]", j)
					}
				})
			}
		}
	}
}

// moments returns the states of Adam.
func moments(m, v []float32) [MaxStates][]float32 { return [...][]float32{m, v, nil} }

// TestBitsAndBytesForm compares the second order with the formula of
// bitsandbytes' kernel, which has the bias corrections outside.
func TestBitsAndBytesForm(t *testing.T) {
	h := Hyper{LR: 0.02, Beta1: 0.9, Beta2: 0.999, Eps: 1e-4, WeightDecay: 0.5, Step: 7, GradScale: 1}
	m0, v0, p0, g0 := 0.25, 0.01, 1.5, -0.5
	m1, v1 := 0.9*m0+0.1*g0, 0.999*v0+0.001*g0*g0
	c1, c2 := 1-math.Pow(0.9, 7), math.Sqrt(1-math.Pow(0.999, 7))
	want := (p0 - 0.02*c2/c1*(m1/(math.Sqrt(v1)+1e-4*c2))) * (1 - 0.02*0.5)
	for tier, k := range Registry.All() {
		p, m, v, g := []float32{float32(p0)}, []float32{float32(m0)}, []float32{float32(v0)}, []float32{float32(g0)}
		k.Update(h.Coef(), p, g, moments(m, v))
		require.InDelta(t, want, p[0], 1e-6, tier)
	}
}

func TestCoefLateSteps(t *testing.T) {
	h := Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, GradScale: 1, Step: math.MaxInt32}
	c := h.Coef()
	require.Equal(t, float32(h.LR), c.size, "no bias correction is left")
	require.Equal(t, float32(h.Eps), c.eps)
	for n := range 200 {
		require.InEpsilon(t, math.Pow(0.97, float64(n)), power(0.97, n), 1e-14, n)
	}
}

// sameBits compares with NaNs of any payload equal: which operand's payload
// survives is the processor's choice.
func sameBits(t require.TestingT, want, got []float32, msg string) {
	for i := range want {
		if want[i] != want[i] && got[i] != got[i] {
			continue
		}
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "%s[%d]: want %g, got %g", msg, i, want[i], got[i])
	}
}

// adamTiersAgree checks that every tier gives the bits of the Go loop, element by
// element, whatever the length and the alignment.
func adamTiersAgree(t *rapid.T) {
	value := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	off, n := rapid.IntRange(0, 3).Draw(t, "offset"), rapid.IntRange(0, 70).Draw(t, "n")
	draw := func(name string) []float32 {
		return rapid.SliceOfN(value, off+n+3, off+n+3).Draw(t, name)
	}
	p, m, v, g := draw("p"), draw("m"), draw("v"), draw("g")
	h := Hyper{
		LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.5,
		Step: rapid.IntRange(1, 1e6).Draw(t, "step"), DecayFirst: rapid.Bool().Draw(t, "first"),
	}
	c := h.Coef()
	for tier, k := range Registry.All() {
		got, want := [3][]float32{}, [3][]float32{}
		for i, x := range [][]float32{p, m, v} {
			got[i], want[i] = append([]float32(nil), x...), append([]float32(nil), x...)
		}
		k.Update(c, got[0][off:off+n], g[off:off+n], moments(got[1][off:off+n], got[2][off:off+n]))
		for i := off; i < off+n; i++ {
			update(c, want[0][i:i+1], g[i:i+1], moments(want[1][i:i+1], want[2][i:i+1]))
		}
		for i, name := range []string{"p", "m", "v"} {
			sameBits(t, want[i], got[i], fmt.Sprintf("%v: %s", tier, name))
		}
	}
}

func TestAdamTiersAgree(t *testing.T) { rapid.Check(t, adamTiersAgree) }
func FuzzAdamTiersAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(adamTiersAgree)) }

func TestNonFiniteStaysInItsElement(t *testing.T) {
	h := Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, GradScale: 1, Step: 1, DecayFirst: true}
	for tier, k := range Registry.All() {
		p, m, v := []float32{1, 1, 1}, make([]float32, 3), make([]float32, 3)
		k.Update(h.Coef(), p, []float32{1, float32(math.NaN()), -1}, moments(m, v))
		require.InDelta(t, 1-1e-3, p[0], 1e-6, tier)
		require.True(t, p[1] != p[1] && m[1] != m[1] && v[1] != v[1], tier)
		require.InDelta(t, 1+1e-3, p[2], 1e-6, tier)
	}
}

func TestAdamNoAllocations(t *testing.T) {
	x := make([]float32, 256)
	c := Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, GradScale: 1, Step: 1}.Coef()
	p, g, s, tile := snug.ViewOf(x[:100]), snug.ViewOf(x[100:200]), newBlocks(100, 32, 1), make([]float32, Scratch(32))
	kerneltest.NoAllocs(t, func() {
		c.Update(x[:64], x[192:], moments(x[64:128], x[128:192]))
		states := s.states()
		Step8(&c, Operands{P: p, G: g}, 0, 100, states[:], 32, tile)
	})
}

// TestEveryLength has every tier update every length at odd places: the Go
// loop's bits, and nothing around them.
func TestEveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	c := Hyper{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.5, Step: 9}.Coef()
	for tier, k := range Registry.All() {
		for n := range 131 {
			var got, want [4][]float32
			lo := n % 5
			for i := range got {
				got[i] = make([]float32, lo+n+20)
				for j := range got[i] {
					got[i][j] = float32(rng.ExpFloat64())
				}
				want[i] = slices.Clone(got[i])
			}
			k.Update(c, got[0][lo:lo+n], got[3][lo:lo+n], moments(got[1][lo:lo+n], got[2][lo:lo+n]))
			update(c, want[0][lo:lo+n], want[3][lo:lo+n], moments(want[1][lo:lo+n], want[2][lo:lo+n]))
			require.Equal(t, want, got, "%v: %d elements", tier, n)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	const chunk = 1 << 14
	type args struct {
		k          *Kernels
		c          Coef
		p, m, v, g []float32
		first      int // chunk
	}
	task := cpu.NewTask(func(a *args, item int) {
		lo, hi := (a.first+item)*chunk, (a.first+item+1)*chunk
		a.k.Update(a.c, a.p[lo:hi], a.g[lo:hi], moments(a.m[lo:hi], a.v[lo:hi]))
	})
	c := Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, GradScale: 1, Step: 3}.Coef()
	const n, most = 1 << 21, 16
	p, m, v, g := make([]float32, n*most), make([]float32, n*most), make([]float32, n*most), make([]float32, n*most)
	for i := range g {
		p[i], m[i], v[i], g[i] = 1, 1, 1, float32(i%17)-8.5 // no zeros, whose moments become denormal
	}
	for _, parts := range []int{1, most} {
		for tier, k := range Registry.All() {
			b.Run(fmt.Sprintf("%v/%d", tier, n*parts), func(b *testing.B) {
				kerneltest.OfCopy(b, parts, 28*n, func(part int) {
					task.Run(n/chunk, args{k, c, p, m, v, g, part * n / chunk})
				})
			})
		}
	}
}
