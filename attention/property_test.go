package attention

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// referenceProperty compares any small problem, in any layout, with the
// definition.
func referenceProperty(t *rapid.T) {
	kv := rapid.IntRange(1, 2).Draw(t, "kvHeads")
	c := Options{
		Batch: rapid.IntRange(1, 2).Draw(t, "batch"), KVHeads: kv, Heads: kv * rapid.IntRange(1, 2).Draw(t, "group"),
		SeqQ: rapid.IntRange(0, 140).Draw(t, "queries"), SeqK: rapid.IntRange(0, 140).Draw(t, "keys"),
		Dim: rapid.IntRange(1, 9).Draw(t, "dim"), DimV: rapid.IntRange(0, 9).Draw(t, "dimV"),
		Causal: rapid.Bool().Draw(t, "causal"), Align: Align(rapid.IntRange(0, 1).Draw(t, "align")),
		Scale: float32(rapid.SampledFrom([]float64{0, 1, -0.5, 0.01}).Draw(t, "scale")),
	}
	switch rapid.IntRange(0, 2).Draw(t, "layout") {
	case 1:
		c = SequenceMajor(c)
	case 2:
		c = PackedQKV(c)
	}
	dt := rapid.SampledFrom(dtypes).Draw(t, "dtype")
	newProblem(tb{r: t}, c, dt, rapid.Uint64().Draw(t, "seed")).check(tb{r: t}, kerneltest.Backend{}, dt)
}

func TestAnyProblem(t *testing.T) { rapid.Check(t, referenceProperty) }
func FuzzAnyProblem(f *testing.F) { f.Fuzz(rapid.MakeFuzz(referenceProperty)) }

// tb is a rapid.T as the testing.TB that helpers take.
type tb struct {
	testing.TB
	r *rapid.T
}

func (t tb) Helper()                           {}
func (t tb) Cleanup(f func())                  { t.r.Cleanup(f) }
func (t tb) Errorf(format string, args ...any) { t.r.Errorf(format, args...) }
func (t tb) Fatalf(format string, args ...any) { t.r.Fatalf(format, args...) }
func (t tb) Logf(format string, args ...any)   { t.r.Logf(format, args...) }
func (t tb) FailNow()                          { t.r.FailNow() }

// configProperty hands over any Options with vectors of any length: the answer
// is an error that says why, and nothing is written, or the call succeeds.
func configProperty(t *rapid.T) {
	size := rapid.OneOf(rapid.IntRange(-1, 4), rapid.SampledFrom([]int{7, 1 << 16, 1 << 31 >> 1, math.MaxInt, math.MinInt}))
	stride := rapid.OneOf(rapid.Just(Strides{}), rapid.Custom(func(t *rapid.T) Strides {
		return Strides{size.Draw(t, "Batch"), size.Draw(t, "Head"), size.Draw(t, "Row")}
	}))
	c := Options{
		Batch: size.Draw(t, "batch"), Heads: size.Draw(t, "heads"), KVHeads: size.Draw(t, "kvHeads"),
		SeqQ: size.Draw(t, "queries"), SeqK: size.Draw(t, "keys"), Dim: size.Draw(t, "dim"), DimV: size.Draw(t, "dimV"),
		Causal: rapid.Bool().Draw(t, "causal"), Align: Align(rapid.IntRange(-1, 3).Draw(t, "align")), Scale: rapid.Float32().Draw(t, "scale"),
		Q: stride.Draw(t, "Q"), K: stride.Draw(t, "K"), V: stride.Draw(t, "V"), Out: stride.Draw(t, "Out"),
	}
	length := rapid.IntRange(0, 300)
	vector := func(name string) snug.View {
		x := make([]float32, length.Draw(t, name))
		fill(x, gap)
		return snug.ViewOf(x)
	}
	if rapid.Bool().Draw(t, "features") {
		c.drawFeatures(t, size, vector)
	}
	a := call{
		out: vector("out"), dq: vector("dq"), dk: vector("dk"), dv: vector("dv"), dout: vector("dout"),
		q: vector("q"), k: vector("k"), v: vector("v"), lse: vector("lse"), ws: vector("ws"), c: c,
	}
	a.c.ScratchBytes()
	PackedQKV(a.c).WorkspaceLen()
	SequenceMajor(a.c).WorkspaceLen()
	invalid := a.c.Validate()
	forward := a.forward()
	backward := a.backward()
	for _, err := range []error{forward, backward} {
		if err == nil {
			require.NoError(t, invalid)
			continue
		}
		if invalid != nil {
			require.Equal(t, invalid, err)
		} else {
			require.ErrorIs(t, err, snug.ErrShape)
		}
	}
	if forward != nil {
		unwritten(t, a.out)
	}
	if backward != nil {
		unwritten(t, a.dq, a.dk, a.dv, a.ws, c.Bias.Grad, c.Sinks.Grad)
	}
}

// drawFeatures draws any, right or wrong.
func (c *Options) drawFeatures(t *rapid.T, size *rapid.Generator[int], vector func(string) snug.View) {
	maybe := func(name string) snug.View {
		if rapid.Bool().Draw(t, name) {
			return vector(name)
		}
		return snug.View{}
	}
	ints := rapid.SliceOfN(rapid.IntRange(-1, 5), 0, 4)
	c.Window = slidingWindow(size.Draw(t, "left"), size.Draw(t, "right"))
	c.Softcap = rapid.Float32().Draw(t, "softcap")
	c.Dropout = Dropout{P: rapid.Float32Range(-0.1, 1.1).Draw(t, "p"), Query: size.Draw(t, "query"), Key: size.Draw(t, "key")}
	c.Slopes, c.GradLSE, c.Sinks = maybe("slopes"), maybe("gradient in lse"), Sinks{maybe("sinks"), maybe("gradient in sinks")}
	c.Bias = Bias{X: maybe("bias"), Grad: maybe("gradient in bias")}
	for d := range c.Bias.Dims {
		c.Bias.Dims[d] = size.Draw(t, "bias dim")
	}
	if c.Align == Shifted {
		c.Shift = size.Draw(t, "shift")
	}
	switch rapid.IntRange(0, 3).Draw(t, "lengths") {
	case 1:
		c.QStarts = ints.Draw(t, "QStarts")
	case 2:
		c.QStarts, c.KStarts = ints.Draw(t, "QStarts"), ints.Draw(t, "KStarts")
	case 3:
		c.KLens = ints.Draw(t, "KLens")
	}
	c.Mask, _ = NewTileMask(1, 1, rapid.IntRange(0, 5).Draw(t, "mask queries"), rapid.IntRange(0, 5).Draw(t, "mask keys"),
		func(b, h, i, j int) bool { return i == j })
}

func unwritten(t *rapid.T, views ...snug.View) {
	for _, v := range views {
		for _, x := range v.Float32s() {
			require.Equal(t, float32(gap), x)
		}
	}
}

func TestAnyConfig(t *testing.T) { rapid.Check(t, configProperty) }
func FuzzAnyConfig(f *testing.F) { f.Fuzz(rapid.MakeFuzz(configProperty)) }
