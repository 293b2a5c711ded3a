package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/half"
)

// adamEncoders are of a signed map that keeps signs and of an unsigned one: decades
// of equidistant entries, close to the dynamic maps of package quant8.
var adamEncoders = func() (e [2]*blockq.Encoder) {
	for i := range e {
		entries, n := []float32{0, 1}, 1+i
		for decade := 1e-6; decade < 5; decade *= 10 {
			for k := range n {
				x := float32(decade * (0.1 + 0.9*(float64(k)+0.5)/float64(n)))
				entries = append(entries, x)
				if i == 0 {
					entries = append(entries, -x)
				}
			}
			n *= 2
		}
		slices.Sort(entries)
		e[i] = new(blockq.Encoder)
		e[i].Build((*[256]float32)(entries), i == 0)
	}
	return e
}()

// blocks8 is the moments of a run of elements in 8-bit blocks.
type blocks8 struct {
	Codes1, Codes2     []uint8
	Absmax1, Absmax2   []float32
	Encoder1, Encoder2 *blockq.Encoder
	Block              int
}

func (s blocks8) states() [2]State8 {
	return [...]State8{{s.Codes1, s.Absmax1, s.Encoder1}, {s.Codes2, s.Absmax2, s.Encoder2}}
}

// newBlocks returns random state of n elements.
func newBlocks(n, block int, seed uint64) blocks8 {
	rng := rand.New(rand.NewPCG(seed, 5))
	blocks := (n + block - 1) / block
	s := blocks8{
		make([]uint8, n), make([]uint8, n), make([]float32, blocks), make([]float32, blocks),
		adamEncoders[0], adamEncoders[1], block,
	}
	for i := range n {
		s.Codes1[i], s.Codes2[i] = uint8(rng.Uint32()), uint8(rng.Uint32())
	}
	for b := range blocks {
		s.Absmax1[b], s.Absmax2[b] = rng.Float32(), rng.Float32()
	}
	return s
}

func (s blocks8) clone() blocks8 {
	s.Codes1, s.Codes2 = slices.Clone(s.Codes1), slices.Clone(s.Codes2)
	s.Absmax1, s.Absmax2 = slices.Clone(s.Absmax1), slices.Clone(s.Absmax2)
	return s
}

// step8Definition decodes, updates and encodes element by element.
func step8Definition(c Coef, p, g []float32, s blocks8) {
	m, v := make([]float32, len(p)), make([]float32, len(p))
	for i := range p {
		m[i] = s.Encoder1.Map()[s.Codes1[i]] * s.Absmax1[i/s.Block]
		v[i] = s.Encoder2.Map()[s.Codes2[i]] * s.Absmax2[i/s.Block]
	}
	update(c, p, g, moments(m, v))
	for _, q := range []struct {
		x, absmax []float32
		codes     []uint8
		e         *blockq.Encoder
	}{{m, s.Absmax1, s.Codes1, s.Encoder1}, {v, s.Absmax2, s.Codes2, s.Encoder2}} {
		for b := range q.absmax {
			lo, hi := b*s.Block, min((b+1)*s.Block, len(p))
			top := float32(0)
			for _, x := range q.x[lo:hi] {
				top = max(top, float32(math.Abs(float64(x)))) // NaN if one is
			}
			if math.IsInf(float64(top), 0) {
				top = float32(math.NaN())
			}
			q.absmax[b] = top
			for i := lo; i < hi; i++ {
				q.codes[i] = q.e.Code(0)
				if top > 0 {
					q.codes[i] = q.e.Code((q.x[i] + 0) / top)
				}
			}
		}
	}
}

// guarded returns x rounded to a type, between guard words, as a view whose
// elements of x begin at lo.
func guarded(dt snug.DType, x []float32, lo int) snug.View {
	all := slices.Concat(slices.Repeat([]float32{7}, lo), x, slices.Repeat([]float32{7}, 20))
	f32 := snug.ViewOf(all)
	switch dt {
	case snug.F16:
		v := snug.ViewOf(make([]snug.Float16, len(all)))
		half.Convert(v, f32, 0, len(all), false)
		return v
	case snug.BF16:
		v := snug.ViewOf(make([]snug.BFloat16, len(all)))
		half.Convert(v, f32, 0, len(all), false)
		return v
	}
	return f32
}

func values(v snug.View) []float32 {
	x := make([]float32, v.Len())
	half.Load(x, v, 0)
	return x
}

// step8 makes a step by one tier.
func step8(k *Kernels, c Coef, p, g snug.View, lo, hi int, s blocks8, tile []float32) {
	o, states := Operands{P: p, G: g}, s.states()
	if k.Adam8 != nil {
		k.Adam8(c.Constants, o, lo, hi, states[0], states[1], s.Block, tile)
		return
	}
	Step(&c, o, lo, hi, states[:], s.Block, tile)
}

// stepsAgree takes two steps by every tier and compares with the definition.
func stepsAgree(t require.TestingT, dp, dg snug.DType, p, g []float32, s blocks8, lo int) {
	n := len(p)
	for tier, k := range Registry.All() {
		h := Hyper{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.5}
		got, want := s.clone(), s.clone()
		gotP, gv := guarded(dp, p, lo), guarded(dg, g, lo)
		wantP, wantG := values(gotP), values(gv)
		for h.Step = 1; h.Step <= 2; h.Step++ {
			msg := fmt.Sprintf("%v: %v, %v: %d in blocks of %d, step %d", tier, dp, dg, n, s.Block, h.Step)
			tile := slices.Repeat([]float32{float32(math.NaN())}, Scratch(s.Block))
			step8(k, h.Coef(), gotP, gv, lo, lo+n, got, tile)
			step8Definition(h.Coef(), wantP[lo:lo+n], wantG[lo:lo+n], want)
			wantP = values(guarded(dp, wantP[lo:lo+n], lo))
			sameBits(t, wantP, values(gotP), msg+": p")
			sameBits(t, want.Absmax1, got.Absmax1, msg+": absmax1")
			sameBits(t, want.Absmax2, got.Absmax2, msg+": absmax2")
			require.Equal(t, want.Codes1, got.Codes1, msg)
			require.Equal(t, want.Codes2, got.Codes2, msg)
		}
		sameBits(t, wantG, values(gv), "g")
	}
}

func normals(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 6))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp(-3*rng.ExpFloat64()))
	}
	return x
}

func TestStep8(t *testing.T) {
	types := []snug.DType{snug.F32, snug.F16, snug.BF16}
	for _, dp := range types {
		for _, dg := range types {
			for _, block := range []int{16, 32, 33, 48, 64, 192, 256} {
				for _, n := range []int{1, 15, 16, 33, 48, 96, 131, 256, 257, 1000} {
					stepsAgree(t, dp, dg, normals(n, 1), normals(n, 2), newBlocks(n, block, uint64(n)), n%5)
				}
			}
		}
	}
	for n := range 131 {
		stepsAgree(t, snug.F32, snug.F32, normals(n, 3), normals(n, 4), newBlocks(n, 32, 9), n%7)
	}
}

// TestStep8Special has blocks of zeros, of denormal and huge moments, and with
// NaN or infinity, each between ordinary ones.
func TestStep8Special(t *testing.T) {
	const block, n = 32, 32 * 24
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for i, scale := range []float32{0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-12, 1e10, 0x1p51, 0x1p62, inf, nan, -inf} {
			p, g, s := normals(n, 5), normals(n, 6), newBlocks(n, block, 7)
			for b := 1; b < n/block; b += 3 {
				s.Absmax1[b], s.Absmax2[b] = 0, 0
				for j := range block {
					if scale-scale == 0 {
						g[b*block+j] *= scale
					}
				}
				g[b*block+(b+i)%block] = scale
			}
			stepsAgree(t, dt, dt, p, g, s, 3)
		}
	}
	s := newBlocks(n, block, 8)
	for i, x := range []float32{0, 1e-45, 0x1p-126, 0x1p-81, 0x1p-80, 0x1p100, math.MaxFloat32, inf, nan} {
		s.Absmax1[2*i], s.Absmax2[2*i] = x, x
		s.Absmax1[2*i+1], s.Absmax2[2*i+1] = x, 1
	}
	stepsAgree(t, snug.F32, snug.F32, normals(n, 9), make([]float32, n), s, 0)
}

func fuzzStep8(t *rapid.T) {
	value := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	block := rapid.SampledFrom([]int{16, 20, 32}).Draw(t, "block")
	p, g := rapid.SliceOfN(value, 70, 70).Draw(t, "p"), rapid.SliceOfN(value, 70, 70).Draw(t, "g")
	s := newBlocks(70, block, rapid.Uint64().Draw(t, "seed"))
	for b := range s.Absmax1 {
		magnitude := rapid.Float32Range(0, math.MaxFloat32)
		s.Absmax1[b], s.Absmax2[b] = magnitude.Draw(t, "absmax1"), magnitude.Draw(t, "absmax2")
	}
	stepsAgree(t, snug.F32, snug.F32, p, g, s, 1)
}

func TestStep8TiersAgree(t *testing.T) { rapid.Check(t, fuzzStep8) }
func FuzzStep8(f *testing.F)           { f.Fuzz(rapid.MakeFuzz(fuzzStep8)) }

// BenchmarkStep8 has blocks that stay in the second cache.
func BenchmarkStep8(b *testing.B) {
	const n, block = 1 << 14, 256
	c := Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, GradScale: 1, Step: 3}.Coef()
	p, g, s, tile := normals(n, 1), normals(n, 2), newBlocks(n, block, 3), make([]float32, Scratch(block))
	for tier, k := range Registry.All() {
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			pv, gv := guarded(dt, p, 0), guarded(dt, g, 0)
			b.Run(fmt.Sprintf("%v/%v", tier, dt), func(b *testing.B) {
				for b.Loop() {
					step8(k, c, pv, gv, 0, n, s, tile)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
	}
}
