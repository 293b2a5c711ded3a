package rowwise

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// call is one kernel as a function of equally long slices and of scalars. It
// overwrites slices and returns sums.
type call struct {
	name   string
	slices int
	exact  bool // the tiers agree bit for bit
	do     func(k tier, s [][]float32, a [4]float32) []float32
}

// tier is the loops of one tier on float32.
type tier struct {
	*Kernels
	*Layers[float32]
}

// tiers yields the loops of every tier that this machine has.
func tiers(yield func(cpu.Tier, tier) bool) {
	layers := maps.Collect(F32.All())
	for t, k := range Registry.All() {
		if !yield(t, tier{k, layers[t]}) {
			return
		}
	}
}

var calls = []call{
	{"Max", 1, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		top := k.Max(s[0], a[0], a[1])
		if top == 0 {
			top = 0 // of either sign
		}
		return []float32{top}
	}},
	{"ExpSum", 2, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		return []float32{k.ExpSum(s[0], s[1], a[0])}
	}},
	{"Exp2Sum", 1, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		return []float32{k.Exp2Sum(s[0], a[0], a[1])}
	}},
	{"ScoreGrad", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ScoreGrad(s[0], s[1], a[0], a[1])
		return nil
	}},
	{"Softcap", 1, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Softcap(s[0], a[0], a[1])
		return nil
	}},
	{"SoftcapSlopes", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.SoftcapSlopes(s[0], s[1], a[0], a[1])
		return nil
	}},
	{"GELU", 3, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.GELU(s[0], s[1], s[2], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"GELUGrad", 5, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.GELUGrad(s[0], s[1], s[2], s[3], s[4], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"GELUErf", 3, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.GELUErf(s[0], s[1], s[2], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"GELUErfGrad", 5, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.GELUErfGrad(s[0], s[1], s[2], s[3], s[4], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"SiLUMul", 3, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.SiLUMul(s[0], s[1], s[2], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"SiLUMulGrad", 5, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.SiLUMulGrad(s[0], s[1], s[2], s[3], s[4], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"GELUMul", 3, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.GELUMul(s[0], s[1], s[2], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"GELUMulGrad", 5, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.GELUMulGrad(s[0], s[1], s[2], s[3], s[4], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"ClampedMul", 3, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ClampedMul(s[0], s[1], s[2], 1.702, 2, a[0] > 0)
		k.Fence()
		return nil
	}},
	{"ClampedMulGrad", 5, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ClampedMulGrad(s[0], s[1], s[2], s[3], s[4], 1.702, 2, a[0] > 0)
		k.Fence()
		return nil
	}},
	{"Ramp", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Ramp(s[0], s[1], a[0], 1.5, a[2], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"RampMul", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.RampMul(s[0], s[1], a[0], a[1], 1.5, a[2], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"Leaky", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Leaky(s[0], s[1], a[0], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"Sigmoid", 2, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Sigmoid(s[0], s[1], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"Slopes", 3, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Slopes(s[0], s[1], s[2], a[0], 1, 0, a[1], a[2], 1.5, a[3] > 0)
		k.Fence()
		return nil
	}},
	{"OutputSlopes", 3, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.OutputSlopes(s[0], s[1], s[2], a[0], a[1], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"CenteredSums", 1, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		sum, squares := k.CenteredSums(s[0], a[0])
		return []float32{sum, squares}
	}},
	{"CenteredDots", 2, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		sum, dot := k.CenteredDots(s[0], s[1], a[0])
		return []float32{sum, dot}
	}},
	{"Affine", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Affine(s[0], s[1], a[0], a[1], a[2], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"AffineGrad", 3, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.AffineGrad(s[0], s[1], s[2], a[0], a[1], a[2], a[3], a[0], false)
		k.AffineGrad(s[1], s[1], s[2], a[0], a[1], a[2], a[3], 0, a[3] > 0)
		k.Fence()
		return nil
	}},
	{"ColumnSums", 4, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ColumnSums(s[0], s[1], s[2], s[3])
		return nil
	}},
	{"ColumnDots", 5, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ColumnDots(s[0], s[1], s[2], s[3], s[4])
		return nil
	}},
	{"ColumnAffine", 5, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ColumnAffine(s[0], s[1], s[2], s[3], s[4], a[3] > 0)
		k.Fence()
		return nil
	}},
	{"ColumnAffineGrad", 7, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ColumnAffineGrad(s[0], s[1], s[2], s[3], s[4], s[5], s[6], a[1], false)
		k.ColumnAffineGrad(s[2], s[1], s[2], s[3], s[4], s[5], s[6], 0, a[3] > 0)
		k.Fence()
		return nil
	}},
	{"Dot", 2, false, func(k tier, s [][]float32, _ [4]float32) []float32 {
		return []float32{k.Dot(s[0], s[1])}
	}},
	{"LayerNorm", 4, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		if len(s[0]) == 0 {
			return nil
		}
		mean, rstd := k.LayerNorm(s[0], s[1], s[2], s[3], 0.1, a[0] > 0)
		k.Fence()
		return []float32{mean, rstd}
	}},
	{"LayerNormGrad", 6, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		if len(s[0]) > 0 {
			k.LayerNormGrad(s[0], s[1], s[2], s[3], s[4], s[5], a[0], a[1], a[2], a[3], a[0] > 0)
			k.LayerNormGrad(s[3], s[1], s[2], s[3], s[4], s[5], a[0], a[1], a[2], 0, a[0] > 0)
			k.Fence()
		}
		return nil
	}},
	{"RMSNorm", 3, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		if len(s[0]) == 0 {
			return nil
		}
		rstd := k.RMSNorm(s[0], s[1], s[2], 0.1, a[0] > 0)
		k.Fence()
		return []float32{rstd}
	}},
	{"RMSNormGrad", 5, false, func(k tier, s [][]float32, a [4]float32) []float32 {
		if len(s[0]) > 0 {
			k.RMSNormGrad(s[0], s[1], s[2], s[3], s[4], a[1], a[2], a[3], a[0] > 0)
			k.RMSNormGrad(s[2], s[1], s[2], s[3], s[4], a[1], a[2], 0, a[0] > 0)
			k.Fence()
		}
		return nil
	}},
	{"Add", 3, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Add(s[0], s[1], s[2], a[0] > 0)
		k.Fence()
		return nil
	}},
	{"AddNext", 3, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.AddNext(s[0], s[1], s[2], s[2], nil, a[0] > 0)
		k.Fence()
		return nil
	}},
	{"AddScaled", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.AddScaled(s[0], s[1], a[0], s[0], s[1])
		return nil
	}},
	{"Scale", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Scale(s[0], s[1], a[0])
		return nil
	}},
	{"ScaleAbove", 1, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.ScaleAbove(s[0], a[0], 0.5)
		return nil
	}},
	{"Axpby", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Axpby(s[0], s[1], a[0], a[1])
		return nil
	}},
	{"Dropout", 3, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		words := make([]uint32, len(s[2]))
		for i, x := range s[2] {
			words[i] = math.Float32bits(x)
		}
		k.Dropout(s[0], s[1], words, math.Float32bits(a[0]), a[1], a[2] > 0)
		k.Fence()
		return nil
	}},
	{"Rotate", 4, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		k.Rotate(s[0], s[1], s[2], s[3], 1, 1, 0)
		k.Rotate(s[2], s[3], s[0], s[1], -1, 1, 0)
		return nil
	}},
	{"RotatePairs", 2, true, func(k tier, s [][]float32, a [4]float32) []float32 {
		half := len(s[0]) / 2
		k.RotatePairs(s[1][:half], s[1][half:2*half], s[0][:2*half], 1)
		k.RotatePairs(s[0][:half], s[0][half:2*half], s[1][:2*half], -1)
		return nil
	}},
}

const guard = 17 // words around every slice, an odd number to unalign them

// run calls c on copies of in between guard words, and returns all slices and
// the sums.
func (c call) run(t require.TestingT, k tier, in [][]float32, a [4]float32) (slices [][]float32, sums []float32) {
	var buffers [][]float32
	for i, x := range in {
		b := make([]float32, len(x)+2*guard+i)
		for j := range b {
			b[j] = 77
		}
		copy(b[guard+i:], x)
		buffers = append(buffers, b)
		slices = append(slices, b[guard+i:][:len(x):len(x)])
	}
	sums = c.do(k, slices, a)
	for i, b := range buffers {
		for j, x := range b {
			if j < guard+i || j >= guard+i+len(in[i]) {
				require.Equal(t, float32(77), x, "%s wrote word %d around slice %d", c.name, j, i)
			}
		}
	}
	return slices, sums
}

// compare runs c on every tier and compares with the Go tier.
func (c call) compare(t require.TestingT, in [][]float32, a [4]float32) {
	var want [][]float32
	var wantSums []float32
	for tier, k := range tiers {
		got, sums := c.run(t, k, in, a)
		if want == nil {
			want, wantSums = got, sums
			continue
		}
		for i := range want {
			for j, w := range want[i] {
				c.require(t, tier, w, got[i][j], c.size(in, a))
			}
		}
		for i, w := range wantSums {
			c.require(t, tier, w, sums[i], float64(len(in[0])))
		}
	}
}

// size is the magnitude of what the kernel adds up, at least 1: norms subtract
// means, so that their results may be much smaller.
func (c call) size(in [][]float32, a [4]float32) float64 {
	const rstd = 3.2 // at most, for an eps of 0.1
	switch c.name {
	case "LayerNorm", "RMSNorm":
		return max(1, rstd*most(in[1])*most(in[2]))
	case "LayerNormGrad":
		return gradSize(in[3], in[4], in[5], a[0], a[1])
	case "RMSNormGrad":
		return gradSize(in[2], in[3], in[4], 0, a[1])
	}
	return 1
}

// gradSize is size for rstd·(g − mean g − y·mean(g·y)), g = dy·gamma and
// y = (x − mean)·rstd.
func gradSize(dy, x, gamma []float32, mean, rstd float32) float64 {
	var meanG, meanGY, mostG, mostY float64
	for i := range x {
		g := math.Abs(float64(dy[i] * gamma[i]))
		y := math.Abs(float64((x[i] - mean) * rstd))
		meanG, meanGY = meanG+g/float64(len(x)), meanGY+g*y/float64(len(x))
		mostG, mostY = max(mostG, g), max(mostY, y)
	}
	return max(1, math.Abs(float64(rstd))*(mostG+meanG+mostY*meanGY))
}

// most returns the largest magnitude.
func most(x []float32) (top float64) {
	for _, v := range x {
		top = max(top, math.Abs(float64(v)))
	}
	return top
}

// require compares two results of numbers of moderate size, or of any when
// the tiers agree exactly.
func (c call) require(t require.TestingT, tier any, want, got float32, size float64) {
	switch {
	case want != want:
		require.True(t, got != got, "%v %s: %v, want NaN", tier, c.name, got)
	case c.exact:
		require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%v %s: %v, want %v", tier, c.name, got, want)
	case want != got:
		require.InDelta(t, want, got, 1e-5*(size+math.Abs(float64(want))), "%v %s", tier, c.name)
	}
}

// Some heads that lie apart are turned as each of them would be, and nothing between them.
func TestRotateHeads(t *testing.T) {
	const heads, stride = 3, 100
	rng := rand.New(rand.NewPCG(15, 16))
	eachTier(t, func(t *testing.T, k tier) {
		for _, n := range []int{1, 16, 31, 32, 50} {
			cos, sin, x := normals(rng, n), normals(rng, n), normals(rng, heads*stride)
			want := append([]float32(nil), x...)
			for h := range heads {
				rotate(want[h*stride:], want[h*stride+n:], cos, sin, -1, 1, 0)
			}
			k.Rotate(x, x[n:], cos, sin, -1, heads, stride)
			require.Equal(t, want, x)
		}
	})
}

func TestCopyAround(t *testing.T) {
	eachTier(t, func(t *testing.T, k tier) {
		for _, off := range []int{0, 1, 32, 64} {
			for _, n := range []int{0, 1, 63, 64, 65, 1000} {
				src, dst := make([]byte, n+off), make([]byte, n+200)
				for i := range src {
					src[i] = byte(i + 1)
				}
				k.CopyAround(dst[off:][:n], src[off:], nil)
				k.Fence()
				require.Equal(t, src[off:], dst[off:][:n])
				require.Equal(t, make([]byte, off), dst[:off])
				require.Equal(t, make([]byte, 200-off), dst[off+n:])
			}
		}
	})
}

func TestEveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for i, c := range calls {
		for n := range 131 {
			if !kerneltest.Taken(n+i, 3) {
				continue
			}
			in := make([][]float32, c.slices)
			for i := range in {
				in[i] = normals(rng, n)
			}
			c.compare(t, in, [4]float32{float32(rng.NormFloat64()), 1.25, -0.5, 0.25})
		}
	}
}

// Where the tiers agree bit for bit they do so for every float32.
func TestAnyBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	edges := []float32{0, float32(math.Copysign(0, -1)), 1, -1, inf, -inf, nan, 0x1p-149, -0x1p-126, math.MaxFloat32}
	for _, c := range calls {
		if !c.exact {
			continue
		}
		for range 20 {
			in := make([][]float32, c.slices)
			for i := range in {
				in[i] = make([]float32, 77)
				for j := range in[i] {
					in[i][j] = math.Float32frombits(rng.Uint32())
					if rng.IntN(3) == 0 {
						in[i][j] = edges[rng.IntN(len(edges))]
					}
				}
			}
			a := [4]float32{edges[rng.IntN(len(edges))], 1.25, float32(rng.NormFloat64()), 1}
			c.compare(t, in, a)
		}
	}
}

// tiersAgree compares the tiers on any lengths and moderate numbers.
func tiersAgree(t *rapid.T) {
	c := rapid.SampledFrom(calls).Draw(t, "kernel")
	n := rapid.IntRange(0, 300).Draw(t, "n")
	number := rapid.Float32Range(-8, 8)
	in := make([][]float32, c.slices)
	for i := range in {
		in[i] = rapid.SliceOfN(number, n, n).Draw(t, "slice")
	}
	var a [4]float32
	for i := range a {
		a[i] = rapid.Float32Range(-2, 2).Draw(t, "scalar")
	}
	c.compare(t, in, a)
}

func TestTiersAgree(t *testing.T) { rapid.Check(t, tiersAgree) }
func FuzzTiersAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(tiersAgree)) }

// A destination may be a source.
func TestInPlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	x, y, z := normals(rng, 77), normals(rng, 77), normals(rng, 77)
	sums := func() []float32 { return make([]float32, 77) }
	for name, do := range map[string]func(k tier, dst, x []float32){
		"ExpSum":        func(k tier, dst, x []float32) { k.ExpSum(dst, x, 1) },
		"GELU":          func(k tier, dst, x []float32) { k.GELU(dst, x, y, false) },
		"GELUGrad x":    func(k tier, dst, x []float32) { k.GELUGrad(dst, sums(), y, x, z, false) },
		"GELUErf":       func(k tier, dst, x []float32) { k.GELUErf(dst, x, y, false) },
		"GELUErfGrad x": func(k tier, dst, x []float32) { k.GELUErfGrad(dst, sums(), y, x, z, false) },
		"GELUGrad dy":   func(k tier, dst, x []float32) { k.GELUGrad(dst, sums(), x, y, z, false) },
		"SiLUMul":       func(k tier, dst, x []float32) { k.SiLUMul(dst, x, y, false) },
		"SiLUMul up":    func(k tier, dst, x []float32) { k.SiLUMul(dst, y, x, false) },
		"SiLUMulGrad":   func(k tier, dst, x []float32) { k.SiLUMulGrad(dst, sums(), y, x, z, false) },
		"SiLU up":       func(k tier, dst, x []float32) { k.SiLUMulGrad(sums(), dst, y, z, x, false) },
		"GELUMul":       func(k tier, dst, x []float32) { k.GELUMul(dst, x, y, false) },
		"GELUMul up":    func(k tier, dst, x []float32) { k.GELUMul(dst, y, x, false) },
		"GELUMulGrad":   func(k tier, dst, x []float32) { k.GELUMulGrad(dst, sums(), y, x, z, false) },
		"GELU up":       func(k tier, dst, x []float32) { k.GELUMulGrad(sums(), dst, y, z, x, false) },
		"Clamped":       func(k tier, dst, x []float32) { k.ClampedMul(dst, x, y, 2, 1, false) },
		"Clamped up":    func(k tier, dst, x []float32) { k.ClampedMulGrad(sums(), dst, y, z, x, 2, 1, false) },
		"ClampedGrad":   func(k tier, dst, x []float32) { k.ClampedMulGrad(dst, sums(), y, x, z, 2, 1, false) },
		"Ramp":          func(k tier, dst, x []float32) { k.Ramp(dst, x, 1, 2, 3, false) },
		"RampMul":       func(k tier, dst, x []float32) { k.RampMul(dst, x, -1, 1, 2, 3, false) },
		"Leaky":         func(k tier, dst, x []float32) { k.Leaky(dst, x, 0.1, false) },
		"Sigmoid":       func(k tier, dst, x []float32) { k.Sigmoid(dst, x, false) },
		"Slopes x":      func(k tier, dst, x []float32) { k.Slopes(dst, y, x, -1, 1, 2, 3, 4, 5, false) },
		"Slopes dy":     func(k tier, dst, x []float32) { k.Slopes(dst, x, y, -1, 1, 2, 3, 4, 5, false) },
		"OutputSlopes":  func(k tier, dst, x []float32) { k.OutputSlopes(dst, y, x, 0, 1, false) },
		"Output dy":     func(k tier, dst, x []float32) { k.OutputSlopes(dst, x, y, 0, 1, false) },
		"LayerNorm":     func(k tier, dst, x []float32) { k.LayerNorm(dst, x, y, z, 1, false) },
		"LayerNormGrad": func(k tier, dst, x []float32) { k.LayerNormGrad(dst, sums(), sums(), x, y, z, 1, 2, 3, 0, false) },
		"RMSNorm":       func(k tier, dst, x []float32) { k.RMSNorm(dst, x, y, 1, false) },
		"RMSNormGrad":   func(k tier, dst, x []float32) { k.RMSNormGrad(dst, sums(), x, y, z, 2, 3, 0, false) },
		"Add":           func(k tier, dst, x []float32) { k.Add(dst, y, x, false) },
		"Scale":         func(k tier, dst, x []float32) { k.Scale(dst, x, 3) },
	} {
		eachTier(t, func(t *testing.T, k tier) {
			want := make([]float32, len(x))
			do(k, want, x)
			got := append([]float32(nil), x...)
			do(k, got, got)
			require.Equal(t, want, got, name)
		})
	}
}
