package transformer

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// requireRope compares with transformers: 1 unit in the last place of float32. It returns how
// many differ.
func requireRope(t testing.TB, want *goldenRope, r Rope, length int, name string) (differ int) {
	if want == nil {
		require.Equal(t, Rope{}, r, name)
		return 0
	}
	inverse, attention, err := r.Frequencies(length)
	require.NoError(t, err, name)
	require.InEpsilon(t, want.Attention, attention, 1e-15, name)
	require.Len(t, inverse, len(want.Inverse)/8, name)
	for i, got := range inverse {
		code, err := strconv.ParseUint(want.Inverse[8*i:8*i+8], 16, 32)
		require.NoError(t, err)
		ulps := int64(math.Float32bits(got)) - int64(code)
		require.LessOrEqual(t, max(ulps, -ulps), int64(1), "%s: frequency %d of %+v is %v, want %v", name, i, r, got, math.Float32frombits(uint32(code)))
		if ulps != 0 {
			differ++
		}
	}
	return differ
}

// TestRopesOfTransformers has all kinds, bases and widths, and sequences beyond the length
// that a rope was made for.
func TestRopesOfTransformers(t *testing.T) {
	var file struct {
		Cases []struct {
			Parameters json.RawMessage
			Dim        int
			Length     int
			goldenRope
		}
	}
	readGolden(t, "ropes.json", &file)
	kinds := map[RopeKind]int{}
	all, differ := 0, 0
	for _, g := range file.Cases {
		f, err := newFields([]byte(`{"rope_parameters":`+string(g.Parameters)+`}`), "", &Config{})
		require.NoError(t, err)
		c := &Config{HeadDim: g.Dim, Context: 4096}
		c.rope(f)
		require.NoError(t, f.err)
		differ += requireRope(t, &g.goldenRope, c.Rope, g.Length, string(g.Parameters))
		all += g.Dim / 2
		kinds[c.Rope.Kind]++
	}
	t.Logf("%d of %d frequencies of %d ropes differ from transformers, by 1 unit in the last place", differ, all, len(file.Cases))
	require.Len(t, kinds, 6)
}

func TestRopeErrors(t *testing.T) {
	good := map[RopeKind]Rope{
		RopeDefault: {Kind: RopeDefault, Theta: 1e4, Dim: 8},
		RopeLinear:  {Kind: RopeLinear, Theta: 1e4, Dim: 8, Factor: 2},
		RopeDynamic: {Kind: RopeDynamic, Theta: 1e4, Dim: 8, Factor: 2, MaxPositions: 9},
		RopeLlama3:  {Kind: RopeLlama3, Theta: 1e4, Dim: 8, Factor: 2, OriginalPositions: 9, LowFreqFactor: 1, HighFreqFactor: 4},
		RopeYarn:    {Kind: RopeYarn, Theta: 1e4, Dim: 8, Factor: 2, OriginalPositions: 9},
		RopeLong: {Kind: RopeLong, Theta: 1e4, Dim: 8, Factor: 2, OriginalPositions: 9,
			Factors: &layers.RopeFactors{Short: []float64{1, 1, 1, 1}, Long: []float64{1, 2, 3, 4}}},
	}
	for kind, r := range good {
		_, _, err := r.Frequencies(0)
		require.NoError(t, err, kind)
		_, _, err = r.Frequencies(-1)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	for _, test := range []struct {
		kind RopeKind
		text string
		do   func(r *Rope)
	}{
		{RopeDefault, "Kind", func(r *Rope) { *r = Rope{} }},
		{RopeDefault, "Kind", func(r *Rope) { r.Kind = "longer" }},
		{RopeDefault, "Theta", func(r *Rope) { r.Theta = math.NaN() }},
		{RopeDefault, "Theta", func(r *Rope) { r.Theta = math.Inf(1) }},
		{RopeDefault, "Dim", func(r *Rope) { r.Dim = 7 }},
		{RopeDefault, "Dim", func(r *Rope) { r.Dim = math.MaxInt - 1 }},
		{RopeDefault, "Factor", func(r *Rope) { r.Factor = 2 }},
		{RopeDefault, "NoTruncate", func(r *Rope) { r.NoTruncate = true }},
		{RopeLinear, "Factor", func(r *Rope) { r.Factor = 0 }},
		{RopeLinear, "Factor", func(r *Rope) { r.Factor = 0.9 }},
		{RopeLinear, "MScale", func(r *Rope) { r.MScale = 1 }},
		{RopeDynamic, "MaxPositions", func(r *Rope) { r.MaxPositions = 0 }},
		{RopeDynamic, "Dim: 2", func(r *Rope) { r.Dim = 2 }},
		{RopeLlama3, "OriginalPositions", func(r *Rope) { r.OriginalPositions = -1 }},
		{RopeLlama3, "HighFreqFactor", func(r *Rope) { r.HighFreqFactor = 1 }},
		{RopeYarn, "BetaFast", func(r *Rope) { r.BetaFast = -1 }},
		{RopeYarn, "Theta", func(r *Rope) { r.Theta = 1 }},
		{RopeDefault, "Sections", func(r *Rope) { r.Sections = [3]int{2, 1, 2} }},
		{RopeDefault, "Sections", func(r *Rope) { r.Sections = [3]int{5, 0, -1} }},
		{RopeDefault, "Sections", func(r *Rope) { r.Spread = true }},
		{RopeDefault, "Sections", func(r *Rope) { r.Sections, r.Spread = [3]int{1, 1, 2}, true }},
		{RopeLong, "Factors", func(r *Rope) { r.Factors = nil }},
		{RopeLong, "Factors: 3 and 4, want 4 of each", func(r *Rope) { r.Factors = &layers.RopeFactors{Short: r.Factors.Short[:3], Long: r.Factors.Long} }},
		{RopeLong, "Factors: want positive", func(r *Rope) {
			r.Factors = &layers.RopeFactors{Short: r.Factors.Short, Long: []float64{1, 1, 0, 1}}
		}},
		{RopeYarn, "Factors", func(r *Rope) { r.Factors = &layers.RopeFactors{} }},
		{RopeLinear, "AttentionFactor", func(r *Rope) { r.AttentionFactor = 2 }},
		{RopeYarn, "another kind", func(r *Rope) { r.LowFreqFactor = 1 }},
	} {
		r := good[test.kind]
		test.do(&r)
		_, _, err := r.Frequencies(0)
		require.ErrorIs(t, err, snug.ErrConfig, test.text)
		require.ErrorContains(t, err, "layers: Frequencies: ")
		require.ErrorContains(t, err, test.text)
	}
}

// ropeProperty: frequencies are finite, and do not grow with the dimension for a base above 1.
func ropeProperty(t *rapid.T) {
	r := Rope{
		Kind:  rapid.SampledFrom([]RopeKind{RopeDefault, RopeLinear, RopeDynamic, RopeLlama3, RopeYarn}).Draw(t, "kind"),
		Theta: rapid.Float64Range(2, 1e8).Draw(t, "theta"),
		Dim:   2 * rapid.IntRange(2, 64).Draw(t, "half"),
	}
	if needs, _ := r.Kind.Needs(); needs.Factor {
		r.Factor = rapid.Float64Range(1, 100).Draw(t, "factor")
		if needs.Original {
			r.OriginalPositions = rapid.IntRange(1, 1<<20).Draw(t, "original")
		}
	}
	switch r.Kind {
	case RopeDynamic:
		r.MaxPositions = rapid.IntRange(1, 1<<20).Draw(t, "max")
	case RopeLlama3:
		r.LowFreqFactor = rapid.Float64Range(0.5, 2).Draw(t, "low")
		r.HighFreqFactor = r.LowFreqFactor + rapid.Float64Range(0.5, 4).Draw(t, "high")
	}
	inverse, attention, err := r.Frequencies(rapid.IntRange(0, 1<<24).Draw(t, "length"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, attention, 1.0)
	for i, f := range inverse {
		require.True(t, f > 0 && f <= 1, "%v", f)
		if i > 0 {
			require.LessOrEqual(t, f, inverse[i-1])
		}
	}
}

func TestRopeProperty(t *testing.T) { rapid.Check(t, ropeProperty) }
func FuzzRope(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(ropeProperty)) }

// TestAlphaRope: the kind dynamic with an alpha is a plain rope of base 10000·1000^(128/126), in the spelling of published folders and in
// those that transformers writes.
func TestAlphaRope(t *testing.T) {
	for _, kind := range []string{`"type":"dynamic"`, `"rope_type":"dynamic"`, `"rope_type":"dynamic","type":"dynamic"`} {
		c, err := parseConfig([]byte(`{"model_type":"hunyuan_v1_dense","head_dim":128,"rope_theta":10000.0,
			"rope_scaling":{"alpha":1000.0,"beta_fast":32,"beta_slow":1,"factor":1.0,"mscale":1.0,"mscale_all_dim":1.0,` + kind + `}}`))
		require.NoError(t, err, kind)
		require.Equal(t, RopeDefault, c.Rope.Kind)
		require.InEpsilon(t, 11158839.9, c.Rope.Theta, 1e-6, kind)
	}
}

// TestOlmoRopes: what transformers would pass over is an error.
func TestOlmoRopes(t *testing.T) {
	for text, says := range map[string]string{
		`"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":128}`: "want rope_type",
		`"rope_parameters":{"rope_type":"default","rope_theta":7.0}`:                         "want members full_attention and sliding_attention",
	} {
		_, err := parseConfig([]byte(`{"model_type":"olmo3",` + text + `}`))
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, says)
	}
}
