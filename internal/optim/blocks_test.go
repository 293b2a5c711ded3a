package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// encoder returns one of equidistant entries.
func encoder(signed bool) *blockq.Encoder {
	var m [256]float32
	for i := range m {
		m[i] = float32(i) / 255
		if signed {
			m[i] = float32(i-127) / 128
		}
	}
	e := new(blockq.Encoder)
	e.Build(&m, signed)
	return e
}

var encoders = map[bool]*blockq.Encoder{true: encoder(true), false: encoder(false)}

func randomVector(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// blocksAreDefinition compares Step with decoding, an update and encoding of whole
// vectors.
func blocksAreDefinition(t *rapid.T) {
	n := rapid.IntRange(1, 700).Draw(t, "elements")
	block := rapid.SampledFrom([]int{32, 100, 256}).Draw(t, "block")
	rule := Rule(rapid.IntRange(0, int(rules)-1).Draw(t, "rule"))
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	h := Hyper{Rule: rule, LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Beta3: 0.999, Alpha: 5, Eps: 1e-8, WeightDecay: 0.1, Step: 7, GradScale: 0.5, Size: 1e-2, Tau: -0.8, DecayFirst: true}
	if rapid.Bool().Draw(t, "some are skipped") {
		h.Skip = math.Float32bits(1)
	}
	c, measure := h.Coef(), h.Measure()

	p, g := randomVector(r, n), randomVector(r, n)
	blocks := (n + block - 1) / block
	var states, want []State8
	var whole [MaxStates][]float32
	for i, signed := range rule.Signed() {
		s := State8{make([]uint8, n), make([]float32, blocks), encoders[signed]}
		for k := range s.Codes {
			s.Codes[k] = uint8(r.Uint32())
		}
		for b := range s.Absmax {
			s.Absmax[b] = r.Float32()
		}
		whole[i] = make([]float32, n)
		for k, code := range s.Codes {
			whole[i][k] = s.Encoder.Map()[code] * s.Absmax[k/block]
		}
		states = append(states, s)
		want = append(want, State8{make([]uint8, n), make([]float32, blocks), s.Encoder})
	}
	expected := slices.Clone(p)
	o := Operands{P: snug.ViewOf(p), G: snug.ViewOf(g)}
	before := slices.Clone(states[0].Codes)
	wantP, wantU := measure.Squares(p, g, whole)
	scratch := make([]float32, Scratch(block))
	gotP, gotU := Squares(&measure, o, 0, n, states, block, scratch)
	require.InDelta(t, wantP, gotP, 1e-12*wantP)
	require.InDelta(t, wantU, gotU, 1e-12*wantU)
	gotP, gotU = measure.Squares32(o, 0, n, whole, block, scratch)
	require.InDelta(t, wantP, gotP, 1e-12*wantP)
	require.InDelta(t, wantU, gotU, 1e-12*wantU)
	require.Equal(t, expected, p)
	require.Equal(t, before, states[0].Codes)

	c.Update(expected, g, whole)
	for i := range want {
		for b := range blocks {
			x := whole[i][b*block : min(n, (b+1)*block)]
			for _, v := range x {
				want[i].Absmax[b] = max(want[i].Absmax[b], float32(math.Abs(float64(v))))
			}
			want[i].Encoder.Encode(want[i].Codes[b*block:][:len(x)], x, want[i].Absmax[b])
		}
	}

	Step(&c, o, 0, n, states, block, scratch)
	require.Equal(t, expected, p)
	require.Equal(t, want, states)
}

func TestBlocksAreDefinition(t *testing.T) { rapid.Check(t, blocksAreDefinition) }

func FuzzBlocks(f *testing.F) { f.Fuzz(rapid.MakeFuzz(blocksAreDefinition)) }

// TestTiles: parts of a vector, in tiles, give the bits of the whole, also in
// bfloat16.
func TestTiles(t *testing.T) {
	const n = 300
	r := rand.New(rand.NewPCG(1, 2))
	for rule := range rules {
		c := Hyper{Rule: rule, LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Beta3: 0.999, Alpha: 5, Eps: 1e-8, WeightDecay: 0.1, Step: 2, GradScale: 1, Size: 1e-2, Tau: -0.8, DecayFirst: true}.Coef()
		p, g := randomVector(r, n), randomVector(r, n)
		parts := slices.Clone(p)
		var whole, split [MaxStates][]float32
		for i := range rule.Signed() {
			whole[i] = randomVector(r, n)
			for k, v := range whole[i] {
				whole[i][k] = v * v
			}
			split[i] = slices.Clone(whole[i])
		}
		c.Update(p, g, whole)
		scratch := make([]float32, Scratch(64))
		for _, bounds := range [][2]int{{0, 101}, {101, n}} {
			var s [MaxStates][]float32
			for i := range rule.Signed() {
				s[i] = split[i][bounds[0]:bounds[1]]
			}
			c.Step32(Operands{P: snug.ViewOf(parts), G: snug.ViewOf(g)}, bounds[0], bounds[1], s, 64, scratch)
		}
		require.Equal(t, p, parts, "%v", rule)
		require.Equal(t, whole, split, "%v", rule)
	}
	require.Equal(t, "Lion", Lion.String())
	require.Equal(t, "?", rules.String())
}

func TestStepsAllocateNothing(t *testing.T) {
	const n, block = 1000, 256
	r := rand.New(rand.NewPCG(3, 4))
	o := Operands{P: snug.ViewOf(randomVector(r, n)), G: snug.ViewOf(randomVector(r, n))}
	scratch := make([]float32, Scratch(block))
	for rule := range rules {
		h := Hyper{Rule: rule, LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 3, GradScale: 1, Skip: math.Float32bits(1)}
		measure, c := h.Measure(), h.Coef()
		var states []State8
		for _, signed := range rule.Signed() {
			states = append(states, State8{make([]uint8, n), make([]float32, 4), encoders[signed]})
		}
		t.Run(rule.String(), func(t *testing.T) {
			kerneltest.NoAllocs(t, func() { Step(&c, o, 0, n, states, block, scratch) })
			kerneltest.NoAllocs(t, func() { Squares(&measure, o, 0, n, states, block, scratch) })
		})
	}
}
