package layers

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// RopeKind is a method of scaling a rope for longer sequences: the rope_type of config.json.
type RopeKind string

const (
	RopeDefault      RopeKind = "default"      // Su et al. 2021, arXiv:2104.09864
	RopeLinear       RopeKind = "linear"       // all frequencies divided by Factor
	RopeDynamic      RopeKind = "dynamic"      // a base that grows with the sequence (NTK-aware)
	RopeLlama3       RopeKind = "llama3"       // low frequencies divided by Factor, as in Llama 3.1
	RopeYarn         RopeKind = "yarn"         // Peng et al. 2023, arXiv:2309.00071
	RopeLong         RopeKind = "longrope"     // a factor for each frequency, and others for longer sequences: Ding et al. 2024, arXiv:2402.13753
	RopeProportional RopeKind = "proportional" // the default's frequencies for the first Turned pairs, and 0 for the others, divided by Factor, as in Gemma 4
	RopeAxial        RopeKind = "axial"        // each axis of Sections has frequencies of its own, from 1 on, as in the towers of Qwen2.5-VL
)

// Rope is a rotary position embedding: it rotates elements i and i+Dim/2 of a head, or 2i and 2i+1 if it is Interleaved, by the angle
// position·frequency[i]. Dim is even. A field that the Kind does not use is 0.
type Rope struct {
	Kind   RopeKind
	Theta  float64 // base of the frequencies Theta^(-2i/Dim), or axial of pair i of the n pairs of an axis Theta^(-i/n)
	Dim    int     // elements of a head that turn: the first ones
	Factor float64 // all kinds except default: how many times longer sequences become

	Turned            int     // proportional: pairs of elements that turn
	MaxPositions      int     // dynamic: longest sequence for which the rope is not scaled
	OriginalPositions int     // llama3, yarn, longrope, and with a QueryScale: longest sequence before scaling
	LowFreqFactor     float64 // llama3: a frequency of fewer rotations over OriginalPositions is divided by Factor
	HighFreqFactor    float64 // llama3: a frequency of more rotations is kept
	BetaFast          float64 // yarn: a frequency of more rotations over OriginalPositions is kept; 0 is 32
	BetaSlow          float64 // yarn: a frequency of fewer rotations is divided by Factor; 0 is 1
	AttentionFactor   float64 // yarn, longrope: factor of sines and cosines; 0 is 0.1·ln(Factor)+1, of longrope √(1+ln(Factor)/ln(OriginalPositions))
	MScale            float64 // yarn: MScale and MScaleAllDim weigh ln(Factor) in the AttentionFactor
	MScaleAllDim      float64
	NoTruncate        bool // yarn: the ends of the ramp over the dimensions are not rounded to whole dimensions

	// Sections says how many of the Dim/2 pairs of elements turn by the position in each of three axes (Wang et al. 2024,
	// arXiv:2409.12191): the mrope_section of Qwen2-VL and its successors, for time, height and width. The pairs of an axis
	// follow each other, or with Spread axes 1 and 2 have every third pair, as in Qwen3-VL. Zeros: there is one axis.
	Sections [3]int
	Spread   bool

	Interleaved bool // the elements of a pair follow each other

	Factors *RopeFactors // longrope

	// QueryScale is the b of the factor 1+b·ln(1+⌊p/OriginalPositions⌋) by which the query at position p is multiplied after it turned:
	// the llama_4_scaling_beta of Ministral 3. All elements of a head turn then. 0 is no such factor.
	QueryScale float64
}

// RopeFactors are what a [RopeLong] divides its frequencies by, Dim/2 numbers each. A sequence of more than OriginalPositions takes
// Long for all of its positions.
type RopeFactors struct{ Short, Long []float64 }

const maxDim = 1 << 28 // largest Dim of a rope

func bad(field, format string, args ...any) error {
	return fmt.Errorf("%s: %w", field, fmt.Errorf(format+": %w", append(args, snug.ErrConfig)...))
}

// Check returns an error that wraps [snug.ErrConfig] unless the fields are in their ranges.
func (r Rope) Check() (err error) {
	defer fault.Named(&err, "layers: Rope")
	needs, known := r.Kind.Needs()
	if !known {
		return bad("Kind", "%q, want default, linear, dynamic, llama3, yarn, longrope, proportional or axial", r.Kind)
	}
	positive := func(x float64) bool { return x > 0 && x <= math.MaxFloat32 }
	for _, f := range []struct {
		name  string
		value float64
		need  bool
	}{
		{"Factor", r.Factor, needs.Factor},
		{"MaxPositions", float64(r.MaxPositions), r.Kind == RopeDynamic},
		{"OriginalPositions", float64(r.OriginalPositions), needs.Original || r.QueryScale != 0},
		{"LowFreqFactor", r.LowFreqFactor, r.Kind == RopeLlama3},
		{"HighFreqFactor", r.HighFreqFactor, r.Kind == RopeLlama3},
		{"BetaFast", r.BetaFast, false}, {"BetaSlow", r.BetaSlow, false},
		{"MScale", r.MScale, false}, {"MScaleAllDim", r.MScaleAllDim, false},
	} {
		switch {
		case f.need && !positive(f.value):
			return bad(f.name, "%v, want a positive number for the rope %q", f.value, r.Kind)
		case !f.need && f.value != 0 && r.Kind != RopeYarn:
			return bad(f.name, "%v, which the rope %q does not use", f.value, r.Kind)
		case f.value != 0 && !positive(f.value):
			return bad(f.name, "%v, want a positive number", f.value)
		}
	}
	switch x := r.AttentionFactor; {
	case !(r.QueryScale >= 0 && r.QueryScale <= math.MaxFloat32):
		return bad("QueryScale", "%v, want a number of 0 or more", r.QueryScale)
	case r.QueryScale != 0 && r.Sections != [3]int{}:
		return bad("QueryScale", "%v, beside Sections: a query has one position", r.QueryScale)
	case x != 0 && r.Kind != RopeYarn && r.Kind != RopeLong:
		return bad("AttentionFactor", "%v, which the rope %q does not use", x, r.Kind)
	case x != 0 && !positive(x):
		return bad("AttentionFactor", "%v, want a positive number", x)
	case (r.Factors != nil) != (r.Kind == RopeLong):
		return bad("Factors", "%v, want them for the rope %q alone", r.Factors, RopeLong)
	case r.Kind == RopeLong && r.Factor > 1 && r.OriginalPositions < 2 && x == 0:
		return bad("OriginalPositions", "%d, want 2 or more for an AttentionFactor of %q", r.OriginalPositions, r.Kind)
	case r.Factors != nil && (len(r.Factors.Short) != r.Dim/2 || len(r.Factors.Long) != r.Dim/2):
		return bad("Factors", "%d and %d, want %d of each", len(r.Factors.Short), len(r.Factors.Long), r.Dim/2)
	case r.Factors != nil && slices.ContainsFunc(slices.Concat(r.Factors.Short, r.Factors.Long), func(x float64) bool { return !positive(x) }):
		return bad("Factors", "want positive numbers")
	case !positive(r.Theta):
		return bad("Theta", "%v, want a positive number", r.Theta)
	case r.Dim < 2 || r.Dim%2 != 0 || r.Dim > maxDim:
		return bad("Dim", "%d, want a multiple of 2 up to %d", r.Dim, maxDim)
	case r.NoTruncate && r.Kind != RopeYarn:
		return bad("NoTruncate", "true, which the rope %q does not use", r.Kind)
	case needs.Factor && r.Factor < 1:
		return bad("Factor", "%v, want 1 or more", r.Factor)
	case r.Kind == RopeDynamic && r.Dim == 2:
		return bad("Dim", "2, want 4 or more for the rope %q", r.Kind)
	case r.Turned < 0 || r.Turned > r.Dim/2 || r.Turned != 0 && r.Kind != RopeProportional:
		return bad("Turned", "%d, want 0 to %d pairs of a rope %q", r.Turned, r.Dim/2, RopeProportional)
	case r.Kind == RopeLlama3 && r.HighFreqFactor <= r.LowFreqFactor:
		return bad("HighFreqFactor", "%v, want more than LowFreqFactor, which is %v", r.HighFreqFactor, r.LowFreqFactor)
	case r.Kind == RopeYarn && r.Theta <= 1:
		return bad("Theta", "%v, want more than 1 for the rope %q", r.Theta, r.Kind)
	case r.Kind == RopeYarn && r.MaxPositions != 0, r.Kind == RopeYarn && (r.LowFreqFactor != 0 || r.HighFreqFactor != 0):
		return bad("Kind", "a yarn with fields of another kind")
	}
	return r.checkSections()
}

func (r Rope) checkSections() error {
	s := r.Sections
	switch {
	case r.Kind == RopeAxial && (s == [3]int{} || r.Spread):
		return bad("Sections", "%v, and Spread %t, want Sections that follow each other for the rope %q", s, r.Spread, r.Kind)
	case s == [3]int{} && !r.Spread:
	case min(s[0], s[1], s[2]) < 0 || max(s[0], s[1], s[2]) > r.Dim/2 || s[0]+s[1]+s[2] != r.Dim/2:
		return bad("Sections", "%v, want %d pairs of elements in all", s, r.Dim/2)
	case r.Spread && (3*s[1]-2 >= r.Dim/2 || 3*s[2]-1 >= r.Dim/2):
		return bad("Sections", "%v, of which axes 1 and 2 have every third of %d pairs: want fewer", s, r.Dim/2)
	}
	return nil
}

// axis returns the axis whose position turns a pair of elements.
func (r Rope) axis(pair int) int {
	switch s := r.Sections; {
	case r.Spread && pair%3 > 0 && pair < 3*s[pair%3]:
		return pair % 3
	case r.Spread || pair < s[0]:
		return 0
	case pair < s[0]+s[1]:
		return 1
	}
	return 2
}

// within returns the number of a pair of elements among those of its axis, and how many these are, where they follow each other.
func (r Rope) within(pair int) (i, n int) {
	axis := r.axis(pair)
	for _, before := range r.Sections[:axis] {
		pair -= before
	}
	return pair, r.Sections[axis]
}

// RopeNeeds says which fields a kind of rope has.
type RopeNeeds struct{ Factor, Original, Sections bool }

// Needs says whether a kind has a Factor and OriginalPositions, whether it wants Sections, and whether there is such a kind.
func (k RopeKind) Needs() (n RopeNeeds, known bool) {
	n, known = ropeNeeds[k]
	return n, known
}

// Turns reports whether a text of so many positions has other frequencies when it becomes longer, while keys of a cache stay: of a
// longrope when it exceeds OriginalPositions. A dynamic rope, whose frequencies change with each token, never does.
func (r Rope) Turns(from, to int) bool { return r.Kind == RopeLong && r.long(from) != r.long(to) }

// long reports whether a sequence takes the factors for long ones.
func (r Rope) long(length int) bool { return length > r.OriginalPositions }

// scales reports whether sines and cosines have a factor.
func (r Rope) scales() bool {
	return (r.Kind == RopeYarn || r.Kind == RopeLong) && r.AttentionScale() != 1
}

// ByLength says that the frequencies of a kind depend on the length of the sequence.
func (k RopeKind) ByLength() bool { return k == RopeDynamic || k == RopeLong }

var ropeNeeds = map[RopeKind]RopeNeeds{
	RopeDefault: {}, RopeLinear: {Factor: true}, RopeProportional: {Factor: true}, RopeDynamic: {Factor: true},
	RopeLlama3: {Factor: true, Original: true}, RopeYarn: {Factor: true, Original: true}, RopeLong: {Factor: true, Original: true}, RopeAxial: {Sections: true},
}

// Frequencies returns the Dim/2 inverse frequencies, in radians a position, and the factor by which sines and cosines
// are multiplied. length is the number of tokens of the sequence; the kind longrope uses it, and the kind dynamic, for which a
// length below MaxPositions counts as MaxPositions.
//
// Every step is rounded to float32 as in transformers (ROPE_INIT_FUNCTIONS), because a rounded exponent changes the
// angles of long sequences. The results have the same bits as transformers' where torch rounds its powers correctly.
// With AVX2 and AVX-512 one in 200 of torch's powers is off by 1 unit in the last place, and the frequency then differs
// by at most 2 units. The error wraps [snug.ErrConfig].
func (r Rope) Frequencies(length int) (inverse []float32, attention float64, err error) {
	defer fault.Named(&err, "layers: Frequencies")
	if err := r.Check(); err != nil {
		return nil, 0, errors.Unwrap(err)
	}
	if length < 0 {
		return nil, 0, fmt.Errorf("a sequence of %d positions, want 0 or more: %w", length, snug.ErrConfig)
	}
	base := r.Theta
	if r.Kind == RopeDynamic {
		n, most := float64(max(length, r.MaxPositions)), float64(r.MaxPositions)
		base *= math.Pow(r.Factor*n/most-(r.Factor-1), float64(r.Dim)/float64(r.Dim-2))
	}
	powers := make([]float32, r.Dim/2)
	for i := range powers {
		pair, pairs := i, r.Dim/2
		if r.Kind == RopeAxial {
			pair, pairs = r.within(i)
		}
		powers[i] = float32(math.Pow(float64(float32(base)), float64(float32(2*pair)/float32(2*pairs))))
	}
	attention = 1
	switch r.Kind {
	case RopeYarn:
		return r.yarn(powers), r.AttentionScale(), nil
	case RopeLlama3:
		r.llama3(powers)
	case RopeLong:
		factors := r.Factors.Short
		if r.long(length) {
			factors = r.Factors.Long
		}
		for i, p := range powers {
			powers[i] = 1 / float32(float32(factors[i])*p)
		}
		return powers, r.AttentionScale(), nil
	default:
		for i, p := range powers {
			powers[i] = 1 / p
			if r.Kind == RopeLinear || r.Kind == RopeProportional {
				powers[i] /= float32(r.Factor)
			}
			if r.Kind == RopeProportional && i >= r.Turned {
				powers[i] = 0
			}
		}
	}
	return powers, attention, nil
}

// llama3 replaces powers by inverse frequencies: long waves are divided by Factor, short ones kept, and those between
// interpolated.
func (r Rope) llama3(powers []float32) {
	old := float64(r.OriginalPositions)
	longest, shortest := float32(old/r.LowFreqFactor), float32(old/r.HighFreqFactor)
	factor := float32(r.Factor)
	for i, p := range powers {
		inv := 1 / p
		wave := float32(1/inv) * float32(2*math.Pi)
		switch {
		case wave > longest:
			inv /= factor
		case wave >= shortest:
			turns := float32(1/wave) * float32(old)
			smooth := float32(turns-float32(r.LowFreqFactor)) / float32(r.HighFreqFactor-r.LowFreqFactor)
			inv = float32(float32(float32(1-smooth)*inv)/factor) + float32(smooth*inv)
		}
		powers[i] = inv
	}
}

// yarn replaces powers by inverse frequencies: fast ones are kept, slow ones divided by
// Factor, and a ramp over the dimensions lies between.
func (r Rope) yarn(powers []float32) []float32 {
	dimension := func(turns float64) float64 {
		return float64(r.Dim) * math.Log(float64(r.OriginalPositions)/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := dimension(cmp.Or(r.BetaFast, 32)), dimension(cmp.Or(r.BetaSlow, 1))
	if !r.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.Dim-1))
	if low == high {
		high += 0.001
	}
	for i, p := range powers {
		ramp := float32(float32(i)-float32(low)) / float32(high-low)
		ramp = min(max(ramp, 0), 1)
		keep := 1 - ramp
		stretched := 1 / float32(float32(r.Factor)*p)
		powers[i] = float32(stretched*float32(1-keep)) + float32(float32(1/p)*keep)
	}
	return powers
}

// queryScale returns the factor of the query at a position, see QueryScale, in transformers' steps of float32.
func (r Rope) queryScale(position int) float32 {
	passed := math.Log(float64(1 + float32(position/r.OriginalPositions)))
	return 1 + float32(float32(r.QueryScale)*float32(passed))
}

// AttentionScale returns the factor of sines and cosines of yarn and longrope: AttentionFactor, or what Factor and other fields give.
func (r Rope) AttentionScale() float64 {
	scale := func(weight float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 0.1*weight*math.Log(r.Factor) + 1
	}
	switch {
	case r.AttentionFactor != 0:
		return r.AttentionFactor
	case r.Kind == RopeLong && r.Factor <= 1:
		return 1
	case r.Kind == RopeLong:
		return math.Sqrt(1 + math.Log(r.Factor)/math.Log(float64(r.OriginalPositions)))
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return scale(r.MScale) / scale(r.MScaleAllDim)
	}
	return scale(1)
}
