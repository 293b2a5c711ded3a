package quant8

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
)

// Parameters with 8-bit state, with 32 bits, of one block, and without elements.
var shardedParams = map[string]int{"w": 20_011, "b": 3000, "tiny": 70, "empty": 0}

// rank is a process of a run that splits parameters.
type rank struct {
	t    testing.TB
	a    *Optimizer
	lo   map[string]int
	p, g map[string]snug.View // of the shards
}

// bounds splits n elements into blocks, evenly.
func bounds(n, block, ranks, rank int) (lo, hi int) {
	blocks := Blocks(n, block)
	return min(blocks*rank/ranks*block, n), min(blocks*(rank+1)/ranks*block, n)
}

// split returns the optimizers of a number of ranks, whose shards are parts of
// params.
func split(t testing.TB, o Options, ranks int, params map[string][]float32) []rank {
	list := make([]rank, ranks)
	for i := range list {
		a := newWith(t, AdamW{WeightDecay: 0.1}, o, nil)
		list[i] = rank{t, a, map[string]int{}, map[string]snug.View{}, map[string]snug.View{}}
		for name, n := range shardedParams {
			lo, hi := bounds(n, a.o.Block, ranks, i)
			require.NoError(t, a.AddShard(name, n, lo, hi))
			list[i].lo[name], list[i].p[name] = lo, snug.ViewOf(params[name][lo:hi])
		}
	}
	return list
}

func (r rank) step(step int) {
	advance(r.a)
	for name, p := range r.p {
		g := kerneltest.Normal(uint64(step), shardedParams[name])[r.lo[name]:][:p.Len()]
		require.NoError(r.t, r.a.Step(name, p, snug.ViewOf(g), 1))
	}
}

func save(t testing.TB, ranks []rank) (states [][]byte) {
	for _, r := range ranks {
		data, err := r.a.AppendBinary(nil)
		require.NoError(t, err)
		states = append(states, data)
	}
	return states
}

func readers(states [][]byte) (list []io.Reader) {
	for _, data := range states {
		list = append(list, bytes.NewReader(data))
	}
	return list
}

// TestResharding does each step of a run with another number of ranks, from 1 to
// 8, and compares with a run of the whole.
func TestResharding(t *testing.T) {
	for _, o := range []Options{
		{Chunk: 1024},
		{Block: 33, Chunk: 660},
		{Bits: 32, Chunk: 2048},
		{Bits: 4, Chunk: 1024},
		{Bits: 16, Block: 33, Chunk: 660},
		{Map1: LinearMap(true), Map2: LinearMap(false)},
	} {
		whole, params := map[string][]float32{}, map[string][]float32{}
		for name, n := range shardedParams {
			whole[name], params[name] = kerneltest.Normal(1, n), kerneltest.Normal(1, n)
		}
		reference := split(t, o, 1, whole)
		var ranks []rank
		for step, count := range []int{1, 2, 3, 4, 5, 6, 7, 8, 3} {
			before := save(t, ranks)
			if step == 3 {
				o.Chunk *= 2 // which shards may do
			}
			ranks = split(t, o, count, params)
			for _, r := range ranks {
				if before != nil {
					require.NoError(t, r.a.ReadShards(readers(before)...))
					require.Equal(t, step, r.a.Steps())
				}
				r.step(step)
			}
			reference[0].step(step)
			for name := range whole {
				require.True(t, equal(whole[name], params[name]), "%s after a step with %d ranks", name, count)
			}
		}
		o.Chunk = reference[0].a.o.Chunk
		gathered := split(t, o, 1, params)
		require.NoError(t, gathered[0].a.ReadShards(readers(save(t, ranks))...))
		require.Equal(t, stateOf(t, reference[0].a), stateOf(t, gathered[0].a))
		require.Equal(t, bytesOf(reference[0].a.AppendBinary(nil)), bytesOf(gathered[0].a.AppendBinary(nil)), "the saved form too")
	}
}

// TestShardPlaces has the state of shards on devices and in a Storage.
//
//check:in tiers arm64
func TestShardBackends(t *testing.T) {
	params := map[string][]float32{}
	for name, n := range shardedParams {
		params[name] = kerneltest.Normal(1, n)
	}
	ranks := split(t, Options{}, 3, params)
	for _, r := range ranks {
		r.step(0)
	}
	want := split(t, Options{}, 1, params)[0].a
	require.NoError(t, want.ReadShards(readers(save(t, ranks))...))
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		o := Options{Chunk: 512}
		if onCPU(backend) {
			o.Storage = newFakeStorage()
		}
		a := newWith(t, AdamW{WeightDecay: 0.1}, o, shardedParams)
		advance(a)
		for name, n := range shardedParams { // so that the state lies on the device
			require.NoError(t, a.Step(name, kerneltest.Put(t, backend, make([]float32, n)).View, kerneltest.Put(t, backend, make([]float32, n)).View, 1))
		}
		require.NoError(t, a.ReadShards(readers(save(t, ranks))...))
		for name := range shardedParams {
			wantM, wantV := moments(t, want, name)
			m, v := moments(t, a, name)
			require.True(t, equal(wantM, m), name)
			require.True(t, equal(wantV, v), name)
		}
	})
}

// TestShardsWithBitsAndBytes imports into shards.
//
//check:in tiers arm64
func TestShardsWithBitsAndBytes(t *testing.T) {
	g := openGolden(t, "adamw")
	whole, o := newWith(t, goldenRule, goldenOptions, goldenParams), goldenOptions
	readState(t, whole, g.file)
	o.Block = 64
	var states [][]byte
	for i := range 3 {
		a := newWith(t, goldenRule, goldenOptions, nil)
		small := newAdamW(t, o, nil)
		for name, n := range goldenParams {
			lo, hi := bounds(n, 256, 3, i)
			require.NoError(t, a.AddShard(name, n, lo, hi))
			require.NoError(t, small.AddShard(name, n, min(lo+64, hi), hi))
		}
		readState(t, a, g.file)
		readState(t, small, g.file)
		for name := range goldenParams {
			wantM, wantV := moments(t, a, name)
			m, v := moments(t, small, name)
			require.True(t, equal(wantM[len(wantM)-len(m):], m))
			require.True(t, equal(wantV[len(wantV)-len(v):], v))
		}
		states = append(states, bytesOf(a.AppendBinary(nil)))
		_, err := a.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	gathered := newWith(t, goldenRule, goldenOptions, goldenParams)
	require.NoError(t, gathered.ReadShards(readers(states)...))
	require.Equal(t, stateOf(t, whole), stateOf(t, gathered))
}

func TestAddShardErrors(t *testing.T) {
	a := newAdamW(t, Options{}, nil)
	for _, c := range [][3]int{{1000, -256, 256}, {1000, 512, 256}, {1000, 0, 1024}, {1000, 100, 1000}, {1000, 0, 255}, {-1, 0, 0}} {
		require.ErrorIs(t, a.AddShard("w", c[0], c[1], c[2]), snug.ErrShape, c)
	}
	require.NoError(t, a.AddShard("w", 10_000, 9984, 10_000))
	require.ErrorIs(t, a.AddShard("w", 10_000, 0, 256), snug.ErrConfig)
	require.Equal(t, int64(2*16+8), a.StateBytes(), "8 bits, since the parameter is large")
	require.NoError(t, a.AddShard("none", 1000, 1000, 1000))
	data, err := a.AppendBinary(nil)
	require.NoError(t, err)
	other := newAdamW(t, Options{}, nil)
	require.NoError(t, other.AddShard("w", 10_000, 0, 256))
	require.NoError(t, other.AddShard("none", 1000, 1000, 1000))
	require.ErrorIs(t, other.UnmarshalBinary(data), snug.ErrConfig, "another shard")
}

func TestReadShardsErrors(t *testing.T) {
	add := func(o Options, lo, hi, total int) *Optimizer {
		a := newAdamW(t, o, nil)
		require.NoError(t, a.AddShard("w", total, lo, hi))
		return a
	}
	saved := func(o Options, lo, hi int) []byte { return bytesOf(add(o, lo, hi, 10_000).AppendBinary(nil)) }
	front, back := saved(Options{}, 0, 5120), saved(Options{}, 5120, 10_000)
	later := add(Options{}, 5120, 10_000, 10_000)
	advance(later)
	a := newAdamW(t, Options{}, map[string]int{"w": 10_000})
	before := stateOf(t, a)
	damaged := bytes.Clone(back)
	damaged[len(damaged)-100] ^= 1
	edit := func(change func(h *state.Optimizer)) []byte { return edited(t, back, change) }
	from := func(lo uint64) func(h *state.Optimizer) { return func(h *state.Optimizer) { h.Params[0].Lo = lo } }
	chunk := func(n uint64) func(h *state.Optimizer) { return func(h *state.Optimizer) { h.Chunk = n } }
	for _, c := range []struct {
		name   string
		states [][]byte
		want   error
	}{
		{"none", nil, snug.ErrConfig},
		{"no end", [][]byte{front}, snug.ErrConfig},
		{"no front", [][]byte{back}, snug.ErrConfig},
		{"twice", [][]byte{front, back, saved(Options{}, 4096, 5376)}, snug.ErrConfig},
		{"hole", [][]byte{front, saved(Options{}, 5376, 10_000)}, snug.ErrConfig},
		{"another step", [][]byte{front, bytesOf(later.AppendBinary(nil))}, snug.ErrConfig},
		{"other maps", [][]byte{front, saved(Options{Map2: LinearMap(false)}, 5120, 10_000)}, snug.ErrConfig},
		{"another block", [][]byte{front, saved(Options{Block: 512}, 5120, 10_000)}, snug.ErrConfig},
		{"another size", [][]byte{front, bytesOf(add(Options{}, 5120, 10_001, 10_001).AppendBinary(nil))}, snug.ErrConfig},
		{"no state", [][]byte{front, {}}, snug.ErrCorrupt},
		{"no chunk", [][]byte{front, edit(chunk(0))}, snug.ErrCorrupt},
		{"odd chunk", [][]byte{front, edit(chunk(1000))}, snug.ErrCorrupt},
		{"beyond the end", [][]byte{front, edit(from(1 << 62))}, snug.ErrCorrupt},
		{"parts of blocks", [][]byte{front, edit(from(5119))}, snug.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorIs(t, a.ReadShards(readers(c.states)...), c.want, c.name)
			require.Equal(t, before, stateOf(t, a), "unchanged")
			_, err := a.AppendBinary(nil)
			require.NoError(t, err, "and usable")
		})
	}
	require.ErrorIs(t, a.ReadShards(nil, bytes.NewReader(front)), snug.ErrConfig)

	for _, bad := range [][]byte{damaged, back[:len(back)-50]} {
		require.ErrorIs(t, a.ReadShards(bytes.NewReader(front), bytes.NewReader(bad)), snug.ErrCorrupt)
		_, err := a.AppendBinary(nil)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.NoError(t, a.ReadShards(bytes.NewReader(front), bytes.NewReader(back)))

	b := newAdamW(t, Options{}, map[string]int{"v": 10})
	both := bytesOf(newAdamW(t, Options{}, map[string]int{"w": 10_000, "v": 10}).AppendBinary(nil))
	require.NoError(t, b.ReadShards(bytes.NewReader(both)), "others are passed over")
	require.ErrorIs(t, b.ReadShards(bytes.NewReader(both[:len(both)-80])), snug.ErrCorrupt)
}

// anyShards splits and restores at any blocks.
func anyShards(t *rapid.T) {
	const n, block = 1500, 64
	o := Options{Bits: rapid.SampledFrom(widths).Draw(t, "bits"), MinSize: rapid.SampledFrom([]int{1, 2000}).Draw(t, "MinSize"), Block: block, Chunk: 128}
	fail := func(err error) { require.NoError(t, err) }
	cuts := func(label string) []int {
		c := []int{0}
		for c[len(c)-1] < n {
			c = append(c, min(n, c[len(c)-1]+block*rapid.IntRange(0, 20).Draw(t, label)))
		}
		return c
	}
	whole, err := New(AdamW{}, o)
	fail(err)
	fail(whole.Add("w", n))
	advance(whole)
	fail(whole.Step("w", snug.ViewOf(make([]float32, n)), snug.ViewOf(kerneltest.Normal(1, n)), 1))
	states := [][]byte{bytesOf(whole.AppendBinary(nil))}
	for round := range 2 {
		c := cuts(fmt.Sprint("cut", round))
		var next [][]byte
		for i := 1; i < len(c); i++ {
			a, err := New(AdamW{}, o)
			fail(err)
			fail(a.AddShard("w", n, c[i-1], c[i]))
			fail(a.ReadShards(readers(states)...))
			next = append(next, bytesOf(a.AppendBinary(nil)))
		}
		states = next
	}
	gathered, err := New(AdamW{}, o)
	fail(err)
	fail(gathered.Add("w", n))
	fail(gathered.ReadShards(readers(states)...))
	require.Equal(t, bytesOf(whole.AppendBinary(nil)), bytesOf(gathered.AppendBinary(nil)))
}

func TestAnyShards(t *testing.T) { rapid.Check(t, anyShards) }
func FuzzAnyShards(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyShards)) }
