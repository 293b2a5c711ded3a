package attention_test

import (
	"testing"

	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// features draws some of those that a way to divide takes.
func drawFeatures(t *rapid.T, names ...string) (some []string) {
	for _, name := range names {
		if rapid.IntRange(0, 2).Draw(t, name) == 0 {
			some = append(some, name)
		}
	}
	return some
}

// ringProperty compares any small problem, over any number of ranks, with the definition.
func ringProperty(t *rapid.T) {
	kv := rapid.IntRange(1, 2).Draw(t, "kvHeads")
	c := attention.Options{
		Batch: rapid.IntRange(1, 3).Draw(t, "batch"), KVHeads: kv, Heads: kv * rapid.IntRange(1, 2).Draw(t, "group"),
		SeqQ: rapid.IntRange(0, 60).Draw(t, "queries"), Dim: rapid.IntRange(1, 9).Draw(t, "dim"), DimV: rapid.IntRange(1, 9).Draw(t, "dimV"),
	}
	names := drawFeatures(t, "causal", "shifted", "window", "softcap", "alibi", "dropout", "sinks", "gradient in lse", "packed")
	if names == nil || names[len(names)-1] != "packed" {
		c.SeqK = rapid.IntRange(0, 60).Draw(t, "keys") // 0: as many as queries
	}
	dt := rapid.SampledFrom(dtypes).Draw(t, "type")
	w := attention.NewWhole(attention.TB(t), c, dt, rapid.Uint64().Draw(t, "seed"), names...)
	size := rapid.IntRange(1, 6).Draw(t, "ranks")
	near(attention.TB(t), w, size, ring.run(attention.TB(t), w, size, kerneltest.Backend{}, rapid.Bool().Draw(t, "sequence major")))
}

func TestAnyRing(t *testing.T) { rapid.Check(t, ringProperty) }
func FuzzAnyRing(f *testing.F) { f.Fuzz(rapid.MakeFuzz(ringProperty)) }

// ulyssesProperty compares any small problem, over any number of ranks, with one process.
func ulyssesProperty(t *rapid.T) {
	size := rapid.IntRange(1, 6).Draw(t, "ranks")
	kv := rapid.IntRange(1, 2).Draw(t, "kvHeads") * rapid.SampledFrom([]int{1, size}).Draw(t, "divided")
	group := 1
	if kv%size != 0 {
		kv = 1
		group = size
	}
	c := attention.Options{
		Batch: rapid.IntRange(1, 3).Draw(t, "batch"), KVHeads: kv, Heads: kv * group * rapid.IntRange(1, 2).Draw(t, "group"),
		SeqQ: size * rapid.IntRange(0, 12).Draw(t, "queries"), SeqK: size * rapid.IntRange(0, 12).Draw(t, "keys"),
		Dim: rapid.IntRange(1, 9).Draw(t, "dim"), DimV: rapid.IntRange(1, 9).Draw(t, "dimV"),
	}
	names := drawFeatures(t, "causal", "shifted", "window", "softcap", "alibi", "dropout", "sinks", "gradient in lse", "score", "lengths of keys", "packed")
	if len(names) > 0 && names[len(names)-1] == "packed" {
		c.SeqK = c.SeqQ
	}
	dt := rapid.SampledFrom(dtypes).Draw(t, "type")
	w := attention.NewWhole(attention.TB(t), c, dt, rapid.Uint64().Draw(t, "seed"), names...)
	got := ulysses.run(attention.TB(t), w, size, kerneltest.Backend{}, rapid.Bool().Draw(t, "sequence major"))
	near(attention.TB(t), w, size, got)
	want := w.One(attention.TB(t), kerneltest.Backend{})
	equal := func(name string, want, got []float32) {
		require.Len(t, got, len(want), name)
		for i, x := range want {
			require.Equal(t, x, got[i], "%s[%d]", name, i)
		}
	}
	equal("out", want.Out, got.Out)
	equal("lse", want.LSE, got.LSE)
	equal("dq", want.DQ, got.DQ)
	equal("dsinks", want.DSinks, got.DSinks)
	if kv%size == 0 && w.C.KLens == nil {
		equal("dk", want.DK, got.DK)
		equal("dv", want.DV, got.DV)
	}
}

func TestAnyUlysses(t *testing.T) { rapid.Check(t, ulyssesProperty) }
func FuzzAnyUlysses(f *testing.F) { f.Fuzz(rapid.MakeFuzz(ulyssesProperty)) }
