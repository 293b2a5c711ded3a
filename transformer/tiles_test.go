package transformer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// wide has products of float32 whose bits depend on how many rows they have.
func wide() *Config {
	c := tiny()
	c.Dim, c.Hidden, c.Layers, c.Windows, c.InitStd = 260, 132, 1, []int{0}, 0.1
	return c
}

// normsOf returns the end of the names of norms of a model, also of those before its MLPs.
func normsOf(c *Config) []string {
	if c.Family == "gpt2" {
		return []string{"ln_2"}
	}
	return []string{"norm"}
}

// embedded returns the embedding of the batch.
func embedded(m *Model) *tensor {
	return m.table.Forward(m.pass.Start(context.Background()), nil)
}

// stageBits returns hashes of the bits of y and of dx of every MLP, whose input and gradient are the embeddings.
func stageBits(t *testing.T, m *Model, b Batch) (bits [][32]byte) {
	ctx := context.Background()
	require.NoError(t, m.begin(b))
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	m.pass.Window, m.backward = w, call{head: m.lossOn(b), scale: 1}
	defer m.end()
	x := embedded(m)
	d := embedded(m)
	for _, s := range m.chain.Stages {
		p := s.(*stage)
		if _, is := p.half.(*layers.MLP); !is {
			continue
		}
		y, err := p.Forward(ctx, x)
		require.NoError(t, err)
		kept, keep, err := p.ForwardSave(ctx, x)
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256(device.Mem(&y.View).Bytes()), sha256.Sum256(device.Mem(&kept.View).Bytes()))
		again, err := p.Resave(ctx, x)
		require.NoError(t, err)
		d, err = p.Backward(ctx, x, again, d)
		require.NoError(t, err)
		for _, v := range []*tensor{y, d} {
			bits = append(bits, sha256.Sum256(device.Mem(&v.View).Bytes()))
		}
		m.pass.Put(y)
		m.pass.ReleaseSaved(keep)
		m.pass.ReleaseSaved(again)
	}
	m.pass.Put(x, d)
	require.Zero(t, m.pass.Used())
	return bits
}

// TestTilesHaveTheSameBits: y and dx do not depend on the number of tiles, in float32 also not where products of few
// rows add in another order. The gradients of parameters depend on it by their rounding alone.
//
//check:not bits32
func TestTilesHaveTheSameBits(t *testing.T) {
	trains := func(name string) bool { return len(name)%3 > 0 }
	for k, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU), tinyCustom(), freeCustom(), wide()} {
		for i, o := range []Options{
			{}, {DType: snug.BF16}, {DType: snug.F16}, {Train: trains},
			{Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.3}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.3}},
			{Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, DoRA: true, Dropout: 0.3}},
			{DType: snug.BF16, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, DoRA: true}},
			{Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, FrozenA: true, Dropout: 0.3}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 5, Dropout: 0.3, VeRA: &qlora.VeRAOptions{}}},
			{DType: snug.BF16, Base: qlora.INT8, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, Init: "olora", Dropout: 0.3, ModulesToSave: normsOf(c)}},
			{Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, Init: "loftq"}},
		} {
			large := c.Dim > 100
			if large && i != 0 && i != 6 || !kerneltest.Taken(i+k+1, 3) {
				continue
			}
			name := fmt.Sprint(c.Family, " ", c.Dim, " ", i)
			o.Seed = 3
			sequences, tokens := 163, 13
			if i == 0 && c.Family == "gpt2" {
				sequences = 483 // four tiles
			}
			b := someBatch(7, c.Vocab, sequences, tokens)
			b.Draw = 5
			whole := newTiny(t, c, o)
			setAdapters(t, whole)
			o.Tiles = 4
			tiles := newTiny(t, c, o)
			setAdapters(t, tiles)
			require.Equal(t, stageBits(t, whole, b), stageBits(t, tiles, b), name)

			want, have := gradients(t, whole, b), gradients(t, tiles, b)
			eps := 1e-5
			if whole.dtype != snug.F32 { // gradients of activations are rounded to it
				eps = 1e-4
			}
			for key, g := range want {
				difference, largest := apart(have[key], g)
				require.LessOrEqual(t, difference, eps*max(largest, 1e-3), "%s %s", name, key)
			}
			if large {
				continue
			}
			costs, err := tiles.Costs(sequences, tokens)
			require.NoError(t, err)
			again, err := remat.RecomputeAll(costs)
			require.NoError(t, err)
			require.NoError(t, tiles.SetPlan(again))
			require.Equal(t, have, gradients(t, tiles, b), name)
			if _, trained := have["model.embed_tokens.weight"]; trained { // it adds up the rows of dx
				require.Equal(t, want["model.embed_tokens.weight"], have["model.embed_tokens.weight"], name)
			}
		}
	}
}

// ordered is a window that notes when gradients come and are complete.
type ordered struct {
	sums
	calls, done map[string]int
}

func (w *ordered) Into(name string) (snug.View, snug.Into, error) {
	if w.done[name] > 0 {
		return snug.View{}, snug.Into{}, errors.New(name + " is complete")
	}
	w.calls[name]++
	return w.sums.Into(name)
}

func (w *ordered) Done(name string) error {
	w.done[name]++
	return nil
}

// TestTilesComplete: a gradient is complete once, after the last tile.
//
//check:not bits32
func TestTilesComplete(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU)} {
		for _, a := range []*qlora.AdapterOptions{
			nil, {Rank: 2, Alpha: 4, DoRA: true}, {Rank: 2, Alpha: 4, FrozenA: true}, {Rank: 2, VeRA: &qlora.VeRAOptions{}, ModulesToSave: normsOf(c)},
		} {
			m := newTiny(t, c, Options{Tiles: 9, Adapter: a})
			w := &ordered{sums{m, map[string]snug.View{}}, map[string]int{}, map[string]int{}}
			_, err := m.Backprop(context.Background(), someBatch(7, c.Vocab, 483, 13), 1, w)
			require.NoError(t, err)
			most := 0
			for _, p := range m.Params() {
				if p.Trains {
					require.Equal(t, 1, w.done[p.Name], p.Name)
					most = max(most, w.calls[p.Name])
				}
			}
			require.Equal(t, 4, most)
		}
	}
}

// TestTilesDivideMemory: what an MLP holds besides its input and output is divided by the number of tiles, in use and in
// buffers. A shorter batch needs no other buffers.
//
//check:not bits32
func TestTilesDivideMemory(t *testing.T) {
	c := tiny()
	c.Hidden, c.Layers, c.Windows = 64, 1, []int{0}
	const tokens = 64
	for _, o := range []Options{
		{DType: snug.BF16}, {Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}},
		{Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8, FrozenA: true}}, {Adapter: &qlora.AdapterOptions{Rank: 4, VeRA: &qlora.VeRAOptions{}}},
	} {
		transient := func(tiles, rows int) (steps [2]int64) {
			o.Tiles = tiles
			m := newTiny(t, c, o)
			b := someBatch(7, c.Vocab, rows/tokens, tokens)
			require.NoError(t, m.begin(b))
			w := newWindow(t, m)
			require.NoError(t, w.Begin(1))
			m.pass.Window, m.backward = w, call{scale: 1}
			x := embedded(m)
			p := m.chain.Stages[1]
			var y *tensor
			var s saved
			var err error
			held := m.pass.Measure(func() { y, s, err = p.ForwardSave(context.Background(), x) })
			steps[0] = held - y.Bytes()
			require.NoError(t, err)
			d, kept := embedded(m), m.pass.SavedBytes(s)-y.Bytes()
			steps[1] = m.pass.Measure(func() { _, err = p.Backward(context.Background(), x, s, d) }) + kept
			require.NoError(t, err)
			m.end()
			held = m.pass.Held()
			require.NoError(t, m.begin(someBatch(7, c.Vocab, layers.WholeRows/tokens, tokens)))
			x = embedded(m)
			y, err = p.Forward(context.Background(), x)
			require.NoError(t, err)
			m.pass.Put(x, y)
			require.Equal(t, held, m.pass.Held())
			m.end()
			return steps
		}
		const rows = 8 * layers.WholeRows
		two := transient(2, rows)
		eight := transient(8, rows)
		require.Equal(t, two, [2]int64{4 * eight[0], 4 * eight[1]})
		whole := transient(1, rows)
		require.Less(t, 7*eight[0], whole[0])
		require.Less(t, 7*eight[1], whole[1])
	}
}

func TestTilesErrors(t *testing.T) {
	for _, n := range []int{-1, math.MinInt, maxCount + 1} {
		_, err := New(tiny(), Options{Tiles: n})
		kerneltest.Error(t, "transformer: New", err)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	m := newTiny(t, tiny(), Options{Tiles: 2})
	ctx, stop := context.WithCancel(context.Background())
	require.NoError(t, m.begin(someBatch(7, 11, 193, 13)))
	x := embedded(m)
	stop()
	_, err := m.chain.Stages[1].Forward(ctx, x)
	require.ErrorIs(t, err, context.Canceled)
	m.end()
	require.Zero(t, m.pass.Used())
	gradients(t, m, someBatch(7, 11, 2, 9))
}

// TestTilesGenerate: a prompt that is longer than a tile gives the same logits.
func TestTilesGenerate(t *testing.T) {
	c := tiny()
	c.Context = 8192
	b := someBatch(7, c.Vocab, 1, 2700)
	var logits [][]float32
	for _, tiles := range []int{0, 2} {
		m := newTiny(t, c, Options{Tiles: tiles})
		g, err := m.Generate(GenerateOptions{Context: 3000, Chunk: 2500})
		require.NoError(t, err)
		require.NoError(t, g.Prompt(context.Background(), b.Tokens))
		logits = append(logits, append([]float32(nil), g.logits...))
		_, err = g.Next(context.Background())
		require.NoError(t, err)
		require.NoError(t, g.Close())
	}
	require.Equal(t, logits[0], logits[1])
}

// TestPlanOfTiles: package plan predicts what training in tiles takes, by any plan, also with adapters of every kind.
//
//check:not bits32
func TestPlanOfTiles(t *testing.T) {
	const tokens = 13
	for k, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU), freeCustom()} {
		for i, o := range []Options{
			{}, {DType: snug.BF16}, {Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8, Dropout: 0.5}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8, DoRA: true}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8, FrozenA: true, Dropout: 0.5}},
			{Base: qlora.INT8, Adapter: &qlora.AdapterOptions{Rank: 5, VeRA: &qlora.VeRAOptions{}}},
			{DType: snug.BF16, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8, Init: "olora", ModulesToSave: normsOf(c)}},
			{Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8, Init: "loftq"}},
		} {
			for _, sequences := range []int{9, 163, 483} {
				if i > 3 && sequences != 163 || !kerneltest.Taken(i+k, 3) {
					continue
				}
				o.Tiles = 3
				name := fmt.Sprint(c.Family, " ", i, " ", sequences)
				m := newTiny(t, c, o)
				costs, err := m.Costs(sequences, tokens)
				require.NoError(t, err)
				model, err := c.Plan(tokens)
				require.NoError(t, err)
				d, err := plan.DeviceNamed("24GB")
				require.NoError(t, err)
				task, r := plan.Task{Model: model, Device: d, Own: true, Batch: sequences}, plan.Run{Micro: sequences, Window: 1, Compute: m.dtype, Tiles: o.Tiles}
				if a := o.Adapter; a != nil {
					task.Rank, task.DoRA, task.Dropout, r.Frozen = a.Rank, a.DoRA, a.Dropout > 0, 16
					task.FrozenA, task.Init, task.VeRA = a.FrozenA, a.Init, a.VeRA != nil
					saved, err := c.ModulesToSave(a.ModulesToSave)
					require.NoError(t, err)
					for _, s := range saved {
						task.Beside = append(task.Beside, s.Shape)
					}
				}
				if task.Base = o.Base; o.Base == qlora.INT8 {
					r.Frozen = 8
				} else if o.Base != 0 {
					r.Frozen = 4
				}
				planned, err := task.Costs(r)
				require.NoError(t, err)
				stats := int64(0)
				if c.QKNorm && o.Adapter != nil { // see TestPlanOfAdapters
					stats = 4 * int64(sequences) * tokens * int64(c.Heads+c.KVHeads)
				}
				for j, s := range costs.Stages {
					g := planned.Stages[j]
					require.Equal(t, []int64{s.Output, s.Saved, s.ForwardExtra}, []int64{g.Output, g.Saved, g.ForwardExtra}, "%s %s", name, s.Name)
					if j%2 == 1 {
						require.Equal(t, s.BackwardExtra, g.BackwardExtra, "%s %s", name, s.Name)
					}
					require.GreaterOrEqual(t, g.BackwardExtra, s.BackwardExtra, "%s %s", name, s.Name)
					require.LessOrEqual(t, g.BackwardExtra, s.BackwardExtra+stats, "%s %s", name, s.Name)
				}
				b := someBatch(7, c.Vocab, sequences, tokens)
				keep, err := remat.KeepAll(costs)
				require.NoError(t, err)
				again, err := remat.RecomputeAll(costs)
				require.NoError(t, err)
				for _, p := range []remat.Plan{keep, again} {
					require.NoError(t, m.SetPlan(p))
					gradients(t, m, b)
					r.Remat = p
					predicted, err := task.Predict(r)
					require.NoError(t, err)
					have := m.Memory()
					require.Equal(t, predicted.Peak[meter.OnDevice][meter.Weights], have.Weights, name)
					require.LessOrEqual(t, have.Peak, predicted.Peak[meter.OnDevice][meter.Activations], name)
					require.GreaterOrEqual(t, have.Peak, backwardPeak(t, p, costs), name)
				}
			}
		}
	}
}

// TestPlanChoosesTiles: package plan takes tiles where whole MLPs do not fit, as few as are enough, and else none.
func TestPlanChoosesTiles(t *testing.T) {
	c := tiny()
	c.Hidden = 512
	model, err := c.Plan(16 << 10)
	require.NoError(t, err)
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	task := plan.Task{Model: model, Device: d, Batch: 2}
	least := func() int64 {
		_, err := plan.Best(task.Fit(1))
		var miss *plan.MissError
		require.ErrorAs(t, err, &miss)
		return miss.Minimum
	}
	whole := least()
	task.Tiles = []int{1, 2, 8}
	require.Less(t, 2*least(), whole)
	for _, at := range []struct {
		limit int64
		tiles int
	}{{0, 1}, {whole, 0}, {least(), 8}} {
		p, err := plan.Best(task.Fit(at.limit))
		require.NoError(t, err)
		if at.tiles > 0 {
			require.Equal(t, at.tiles, p.Run.Tiles)
		}
		var text strings.Builder
		require.NoError(t, p.WriteTable(&text))
		require.Contains(t, text.String(), fmt.Sprintf("tiles: up to %d, in layers that can run in tiles of rows", p.Run.Tiles))
		again, err := task.Predict(p.Run)
		require.NoError(t, err)
		require.Equal(t, again.Peak, p.Peak)
	}
	_, err = task.Predict(plan.Run{Micro: 2, Window: 1, Tiles: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	task.Tiles = []int{0, -3}
	_, err = plan.Best(task.Fit(0))
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestTilesOnDevices: tiles and checkpoints compute on every device of this build what they compute on the CPU.
func TestTilesOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		c := tiny()
		b := someBatch(4, c.Vocab, 158, 13)
		for _, a := range []*qlora.AdapterOptions{nil, {Rank: 2, Alpha: 4, Dropout: 0.2}} {
			want := gradients(t, newTiny(t, c, Options{Seed: 3, Adapter: a}), b)
			m := newTiny(t, c, Options{Seed: 3, Adapter: a, Device: p.Dev, Tiles: 2, Checkpoints: newShelf()})
			plan, _ := paged(t, m, 158, 13)
			require.NoError(t, m.SetPlan(plan))
			for name, g := range gradients(t, m, b) {
				difference, largest := apart(g, want[name])
				require.LessOrEqual(t, difference, 1e-4*max(largest, 1e-3), name)
			}
		}
	})
}

// TestHeldIsThePeak: the memory of activations is what a batch needs, also where it grows with the square of its sequences' length.
func TestHeldIsThePeak(t *testing.T) {
	for name, plain := range map[string]bool{"tiled attention": false, "plain attention": true} {
		t.Run(name, func(t *testing.T) {
			m, err := New(tinyCustom(), Options{PlainAttention: plain})
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			w := newWindow(t, m)
			require.NoError(t, w.Begin(1))
			_, err = m.Backprop(context.Background(), someBatch(7, m.config.Vocab, 64, 16), 1, w)
			require.NoError(t, err)
			held := m.Memory()
			require.LessOrEqual(t, held.Buffers, held.Peak+held.Peak/16+1<<16)
		})
	}
}
