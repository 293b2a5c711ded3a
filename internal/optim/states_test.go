package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// The formats of 4 bits have equidistant entries.
var formats = map[bool]*nibble.Format{
	true:  nibble.NewFormat([16]float32{-0.875, -0.75, -0.625, -0.5, -0.375, -0.25, -0.125, 0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1}),
	false: nibble.NewFormat([16]float32{0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375, 1}),
}

// ruleRun is a rule with a parameter, a gradient, and the random numbers of the rest.
type ruleRun struct {
	rule       Rule
	c, measure Coef
	n, tile    int
	p, g       []float32
	r          *rand.Rand
}

func drawRun(t *rapid.T) ruleRun {
	x := ruleRun{
		n: rapid.IntRange(1, 700).Draw(t, "elements"), tile: rapid.SampledFrom([]int{32, 96, 256}).Draw(t, "tile"),
		rule: Rule(rapid.IntRange(0, int(rules)-1).Draw(t, "rule")), r: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
	}
	h := Hyper{Rule: x.rule, LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Beta3: 0.999, Alpha: 5, Eps: 1e-8, WeightDecay: 0.1, Step: 7, GradScale: 0.5}
	if rapid.Bool().Draw(t, "some are skipped") {
		h.Skip = math.Float32bits(1)
	}
	x.c, x.measure = h.Coef(), h.Measure()
	x.p, x.g = randomVector(x.r, x.n), randomVector(x.r, x.n)
	return x
}

// narrowIsDefinition compares Step and Squares with an update and sums of whole vectors,
// the decoded states, which become those before they are encoded.
func narrowIsDefinition[S State](t *rapid.T, x *ruleRun, states []S, whole [MaxStates][]float32) {
	o, scratch := Operands{P: snug.ViewOf(x.p), G: snug.ViewOf(x.g)}, make([]float32, Scratch(x.tile))
	wantP, wantU := x.measure.Squares(x.p, x.g, whole)
	gotP, gotU := Squares(&x.measure, o, 0, x.n, states, x.tile, scratch)
	require.InDelta(t, wantP, gotP, 1e-12*wantP)
	require.InDelta(t, wantU, gotU, 1e-12*wantU)
	expected := slices.Clone(x.p)
	x.c.Update(expected, x.g, whole)
	Step(&x.c, o, 0, x.n, states, x.tile, scratch)
	require.Equal(t, expected, x.p)
}

// states4 compares with nearest codes by brute force.
func states4(t *rapid.T) {
	x := drawRun(t)
	blocks := (x.n + x.tile - 1) / x.tile
	var states []State4
	var whole [MaxStates][]float32
	for i, signed := range x.rule.Signed() {
		s := State4{make([]uint8, (x.n+1)/2), make([]float32, blocks), formats[signed]}
		for k := range s.Codes {
			s.Codes[k] = uint8(x.r.Uint32())
		}
		for b := range s.Absmax {
			s.Absmax[b] = x.r.Float32()
		}
		whole[i] = make([]float32, x.n)
		for k := range whole[i] {
			whole[i][k] = s.Format.Values[s.Codes[k/2]>>(4-k%2*4)&15] * s.Absmax[k/x.tile]
		}
		states = append(states, s)
	}
	narrowIsDefinition(t, &x, states, whole)
	for i, s := range states {
		for k, v := range whole[i] {
			absmax := float32(0)
			for _, other := range whole[i][k/x.tile*x.tile : min(x.n, (k/x.tile+1)*x.tile)] {
				absmax = max(absmax, float32(math.Abs(float64(other))))
			}
			if absmax != s.Absmax[k/x.tile] {
				require.Equal(t, absmax, s.Absmax[k/x.tile])
			}
			code, q := s.Codes[k/2]>>(4-k%2*4)&15, float64(v/max(absmax, math.SmallestNonzeroFloat32))
			for _, value := range s.Format.Values {
				if math.Abs(q-float64(value)) < math.Abs(q-float64(s.Format.Values[code])) {
					require.Failf(t, "not the nearest code", "%d for %g, %g is nearer", code, q, value)
				}
			}
		}
	}
}

// states16 compares with the upper half of a sum with random numbers.
func states16(t *rapid.T) {
	x := drawRun(t)
	first := rapid.Uint64Range(0, 100).Draw(t, "first")
	var states []State16
	var whole [MaxStates][]float32
	var values [MaxStates][]snug.BFloat16
	for i := range x.rule.Signed() {
		values[i], whole[i] = make([]snug.BFloat16, x.n), make([]float32, x.n)
		for k, v := range randomVector(x.r, x.n) {
			values[i][k] = snug.ToBFloat16(v * v)
			whole[i][k] = values[i][k].Float32()
		}
		draws := rounding.Draws{Stream: philox.Stream{Seed: uint64(i), Tensor: 3}, First: first}
		states = append(states, State16{snug.SliceView(values[i]), draws})
	}
	narrowIsDefinition(t, &x, states, whole)
	for i, s := range states {
		draws := s.Draws.Halves(make([]uint32, 500), 0)[first:]
		for k, v := range whole[i] {
			if want := snug.BFloat16((math.Float32bits(v) + uint32(draws[k])) >> 16); want != values[i][k] {
				require.Equal(t, want, values[i][k])
			}
		}
	}
}

func TestStates4(t *testing.T)  { rapid.Check(t, states4) }
func TestStates16(t *testing.T) { rapid.Check(t, states16) }
func FuzzStates4(f *testing.F)  { f.Fuzz(rapid.MakeFuzz(states4)) }
func FuzzStates16(f *testing.F) { f.Fuzz(rapid.MakeFuzz(states16)) }
