package quant8

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug/internal/blockq"
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
	for _, e := range []*blockq.Encoder{signed(), unsigned()} {
		m := (*Map)(e.Map())
		same := func(x float32) {
			if want, got := nearest(m, x), e.Code(x); want != got {
				t.Fatalf("%g (%#x): want %d, got %d", x, math.Float32bits(x), want, got)
			}
		}
		for c := range 255 {
			for _, at := range []float32{m[c], (m[c] + m[c+1]) / 2} {
				for _, to := range []float32{-2, 2} {
					for x, i := at, 0; i < 6; i++ {
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
					if bits := sign | cell<<16 | low; bits&0x7fffffff <= 0x3f800000 {
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
	for _, e := range []*blockq.Encoder{signed(), unsigned()} {
		for cell := range uint32(0x3f80) {
			for _, sign := range []uint32{0, 1 << 31} {
				a := e.Code(math.Float32frombits(sign | cell<<16))
				b := e.Code(math.Float32frombits(sign | cell<<16 | 0xffff))
				require.LessOrEqual(t, max(a, b)-min(a, b), uint8(1), "cell %#x", cell)
			}
		}
	}
}

func TestTies(t *testing.T) {
	m := new(Map)
	for c := range m {
		m[c] = float32(c-128) / 256
	}
	e := newEncoder(m, false)
	const half = 3.5 / 256
	require.Equal(t, uint8(131), e.Code(half), "the lower of two as near")
	require.Equal(t, uint8(132), e.Code(math.Nextafter32(half, 1)))
	require.Equal(t, uint8(255), e.Code(1))
	require.Equal(t, uint8(0), e.Code(-1))
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
// for maps of any magnitude, with runs of equal entries or not, and values up to
// 1.
func anyMap(t *rapid.T) {
	// The integers in order are the finite floats in order.
	top := rapid.SampledFrom([]int32{0x7f7fffff, 0x3f800000, 0x3f800000}).Draw(t, "top")
	ordered := rapid.Int32Range(-top, top)
	entries := make([]float32, 256)
	for c, i := range rapid.SliceOfNDistinct(ordered, 256, 256, rapid.ID[int32]).Draw(t, "map") {
		entries[c] = math.Float32frombits(uint32(i))
		if i < 0 {
			entries[c] = -math.Float32frombits(uint32(-i))
		}
	}
	slices.Sort(entries)
	for _, c := range rapid.SliceOfN(rapid.IntRange(2, 255), 0, 20).Draw(t, "equal") {
		entries[c] = entries[c-1]
	}
	slices.Sort(entries)
	m := (*Map)(entries)
	require.NoError(t, m.check())
	e := encoderOf(m)
	defer release(e)

	exact := func(x float32) *big.Float { return new(big.Float).SetPrec(600).SetFloat64(float64(x)) }
	xs := []float32{rapid.Float32Range(-1, 1).Draw(t, "x")}
	i := rapid.IntRange(0, 254).Draw(t, "near")
	mid := float32((float64(m[i]) + float64(m[i+1])) / 2)
	xs = append(xs, mid, math.Nextafter32(mid, math.MaxFloat32), math.Nextafter32(mid, -math.MaxFloat32), m[i])
	for _, x := range xs {
		if x < -1 || x > 1 {
			continue
		}
		c, twice := int(e.Code(x)), new(big.Float).Add(exact(x), exact(x))
		above := c + 1
		for above < 256 && m[above] == m[c] {
			above++
		}
		if above < 256 {
			sum := new(big.Float).Add(exact(m[c]), exact(m[above]))
			require.LessOrEqual(t, twice.Cmp(sum), 0, "%g is nearer to entry %d than to %d", x, above, c)
		}
		if c > 0 {
			require.NotEqual(t, m[c-1], m[c], "the lowest of equal entries")
			sum := new(big.Float).Add(exact(m[c]), exact(m[c-1]))
			require.Positive(t, twice.Cmp(sum), "%g is not farther from entry %d than from %d", x, c-1, c)
		}
	}
}

func TestAnyMap(t *testing.T) { rapid.Check(t, anyMap) }
func FuzzAnyMap(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyMap)) }
