package quant8

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// nearest is the definition: the lowest code of the entries at the smallest
// distance. float64 differences of the dynamic maps' entries are exact wherever
// two distances are close.
func nearest(m *Map, x float32) uint8 {
	best, dist := 0, math.Inf(1)
	for c, y := range m {
		if d := math.Abs(float64(x) - float64(y)); d < dist {
			best, dist = c, d
		}
	}
	return uint8(best)
}

func TestEncoderAgainstBruteForce(t *testing.T) {
	for _, e := range []*encoder{signed(), unsigned()} {
		same := func(x float32) {
			if want, got := nearest(&e.m, x), e.code(x); want != got {
				t.Fatalf("%g (%#x): want %d, got %d", x, math.Float32bits(x), want, got)
			}
		}
		for c := range 255 {
			for _, at := range []float32{e.limit[c], e.m[c], (e.m[c] + e.m[c+1]) / 2} {
				for _, to := range []float32{-2, 2} {
					for x, i := at, 0; i < 4; i++ {
						same(x)
						x = math.Nextafter32(x, to)
					}
				}
			}
		}
		// The ends of every cell with magnitude up to 1, and points inside.
		rng := rand.New(rand.NewPCG(1, 2))
		for cell := uint32(0); cell <= 0x3f80; cell++ {
			for _, sign := range []uint32{0, 1 << 31} {
				for _, low := range []uint32{0, 1, 0xffff, rng.Uint32() & 0xffff} {
					if bits := sign | cell<<16 | low; bits&magnitude <= 0x3f800000 {
						same(math.Float32frombits(bits))
					}
				}
			}
		}
		for range 50_000 {
			same(2*rng.Float32() - 1)
		}
		for _, x := range []float32{0, float32(math.Copysign(0, -1)), 1e-45, -1e-45, 1, -1} {
			same(x)
		}
	}
}

// TestEncoderSteps bounds the work of a search: one limit is passed at most.
func TestEncoderSteps(t *testing.T) {
	for _, e := range []*encoder{signed(), unsigned()} {
		for cell := range uint32(0x3f80) {
			for _, sign := range []uint32{0, 1 << 31} {
				a := e.code(math.Float32frombits(sign | cell<<16))
				b := e.code(math.Float32frombits(sign | cell<<16 | 0xffff))
				require.LessOrEqual(t, max(a, b)-min(a, b), uint8(1), "cell %#x", cell)
			}
		}
	}
}

func TestTies(t *testing.T) {
	m := new(Map)
	for c := range m {
		m[c] = float32(c)
	}
	e := newEncoder(m)
	require.Equal(t, uint8(3), e.code(3.5), "the lower of two as near")
	require.Equal(t, uint8(4), e.code(math.Nextafter32(3.5, 4)))
	require.Equal(t, uint8(255), e.code(1e9))
	require.Equal(t, uint8(0), e.code(-1e9))
}

func drawFloat(t *rapid.T, label string) float32 {
	return rapid.Custom(func(t *rapid.T) float32 {
		x := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		if !finite(x) {
			return 0
		}
		return x
	}).Draw(t, label)
}

// anyMap checks the two inequalities that define the code, in exact arithmetic,
// for maps and values of any magnitude.
func anyMap(t *rapid.T) {
	// The integers in order are the finite floats in order.
	ordered := rapid.Int32Range(-0x7f7fffff, 0x7f7fffff)
	entries := make([]float32, 256)
	for c, i := range rapid.SliceOfNDistinct(ordered, 256, 256, rapid.ID[int32]).Draw(t, "map") {
		entries[c] = math.Float32frombits(uint32(i))
		if i < 0 {
			entries[c] = -math.Float32frombits(uint32(-i))
		}
	}
	slices.Sort(entries)
	m := (*Map)(entries)
	require.NoError(t, m.check())
	e := encoderOf(m)
	defer e.release()

	exact := func(x float32) *big.Float { return new(big.Float).SetPrec(600).SetFloat64(float64(x)) }
	xs := []float32{drawFloat(t, "x")}
	i := rapid.IntRange(0, 254).Draw(t, "near")
	xs = append(xs, e.limit[i], math.Nextafter32(e.limit[i], math.MaxFloat32), m[i])
	for _, x := range xs {
		c, twice := int(e.code(x)), new(big.Float).Add(exact(x), exact(x))
		if c < 255 {
			sum := new(big.Float).Add(exact(m[c]), exact(m[c+1]))
			require.LessOrEqual(t, twice.Cmp(sum), 0, "%g is nearer to entry %d than to %d", x, c+1, c)
		}
		if c > 0 {
			sum := new(big.Float).Add(exact(m[c]), exact(m[c-1]))
			require.Positive(t, twice.Cmp(sum), "%g is not farther from entry %d than from %d", x, c-1, c)
		}
	}
}

func TestAnyMap(t *testing.T) { rapid.Check(t, anyMap) }
func FuzzAnyMap(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyMap)) }
