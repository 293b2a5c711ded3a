package transformer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// tinyAxes has a rope with positions in three axes.
func tinyAxes() *Config {
	c := tiny()
	c.HeadDim, c.ScoreCap, c.ScoreScale = 8, 0, 0.35
	c.Rope = Rope{Kind: RopeDefault, Theta: 100, Dim: 8, Sections: [3]int{2, 1, 1}}
	return c
}

// countedPositions returns the positions that a batch has without Positions.
func countedPositions(b Batch) (list []int32) {
	starts := b.Starts
	if starts == nil {
		for i := range max(1, b.Sequences) + 1 {
			starts = append(starts, i*len(b.Tokens)/max(1, b.Sequences))
		}
	}
	for i, lo := range starts[:len(starts)-1] {
		for j := range starts[i+1] - lo {
			list = append(list, int32(j))
		}
	}
	return list
}

// images returns positions in three axes of two sequences of nine tokens: an image of 2 × 2 behind a token, and text.
func images() [][]int32 {
	return [][]int32{
		{0, 1, 1, 1, 1, 3, 4, 5, 6, 0, 1, 2, 2, 2, 2, 4, 5, 6},
		{0, 1, 1, 2, 2, 3, 4, 5, 6, 0, 1, 2, 2, 3, 3, 4, 5, 6},
		{0, 1, 2, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 2, 3, 4, 5, 6},
	}
}

// TestPositions: positions that count give the bits of a batch without any, in one axis and in three.
func TestPositions(t *testing.T) {
	spread := tinyAxes()
	spread.Rope.Sections, spread.Rope.Spread = [3]int{2, 1, 1}, true
	packed := someBatch(8, 11, 1, 16)
	packed.Sequences, packed.Starts = 0, []int{0, 1, 7, 16}
	for name, c := range map[string]*Config{"tied": tiny(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh), "axes": tinyAxes(), "spread": spread} {
		t.Run(name, func(t *testing.T) {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				m := newTiny(t, c, Options{Seed: 3, DType: dt, Tiles: 2})
				for _, b := range []Batch{someBatch(7, 11, 2, 8), packed} {
					loss, want := lossAndGradients(t, m, b)
					list := countedPositions(b)
					if b.Positions = [][]int32{list}; c.Rope.Sections != [3]int{} {
						b.Positions = [][]int32{list, list, slices.Clone(list)}
					}
					again, have := lossAndGradients(t, m, b)
					require.Equal(t, loss, again)
					require.Equal(t, want, have)
				}
			}
		})
	}
}

// TestLearnedPositionsOfABatch: a batch chooses rows of the table of positions, whose gradient lands there.
func TestLearnedPositionsOfABatch(t *testing.T) {
	c := tinyGPT2(GELUTanh)
	m, turned := newTiny(t, c, Options{Seed: 3}), newTiny(t, c, Options{Seed: 3})
	last, dim := c.Context-1, c.Dim
	from, to := m.table.Positions.Value.Float32s(), turned.table.Positions.Value.Float32s()
	for r := range c.Context {
		copy(to[(last-r)*dim:][:dim], from[r*dim:][:dim])
	}
	b := someBatch(7, 11, 2, 9)
	loss, want := lossAndGradients(t, m, b)
	list := countedPositions(b)
	for i := range list {
		list[i] = int32(last) - list[i]
	}
	b.Positions = [][]int32{list}
	again, have := lossAndGradients(t, turned, b)
	require.Equal(t, loss, again)
	name := m.table.Positions.Name
	for r := range c.Context {
		require.Equal(t, want[name][r*dim:][:dim], have[name][(last-r)*dim:][:dim])
	}
	delete(want, name)
	delete(have, name)
	require.Equal(t, want, have)
}

// TestPositionsShifted: a rope turns by differences of positions alone.
func TestPositionsShifted(t *testing.T) {
	m, b := newTiny(t, tinyAxes(), Options{Seed: 3}), someBatch(7, 11, 2, 9)
	b.Positions = images()
	want := allLogits(t, m, b)
	for axis := range b.Positions {
		for i := range b.Positions[axis] {
			b.Positions[axis][i] += int32(5 + axis)
		}
	}
	difference, largest := apart(allLogits(t, m, b), want)
	require.LessOrEqual(t, difference, 1e-5*largest)
	b.Positions = nil
	difference, _ = apart(allLogits(t, m, b), want)
	require.Greater(t, difference, 1e-2*largest)
}

// TestAxes: three axes give the same on every device and by every plan, the model counts what it holds for them, and a step
// allocates nothing.
//
//check:in emulated
func TestAxes(t *testing.T) {
	c, b := tinyAxes(), someBatch(7, 11, 2, 9)
	b.Positions = images()
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		monitor, err := meter.New(meter.Options{})
		require.NoError(t, err)
		cpu, m := newTiny(t, c, Options{Seed: 3}), newTiny(t, c, Options{Seed: 3, Device: p.Dev, Monitor: monitor})
		_ = allLogits(t, m, Batch{Tokens: b.Tokens, Sequences: 2})
		before := m.Memory().Workspace
		want, have := allLogits(t, cpu, b), allLogits(t, m, b)
		require.Equal(t, before+int64(4*len(b.Tokens)*c.HeadDim), m.Memory().Workspace)
		now, _ := monitor.Held()
		require.Equal(t, m.Memory().Workspace, now[meter.OnDevice][meter.Workspace])
		tolerance := 1e-4
		if p.Dev == nil || p.Dev.IsCPU() || p.Name == "opaque" {
			tolerance = 0
		}
		difference, largest := apart(have, want)
		require.LessOrEqual(t, difference, tolerance*largest)
		grads := gradients(t, cpu, b)
		for name, g := range gradients(t, m, b) {
			difference, largest := apart(g, grads[name])
			require.LessOrEqual(t, difference, tolerance*max(largest, 0.1), name)
		}
	})
	m := newTiny(t, c, Options{Seed: 3})
	want := gradients(t, m, b)
	costs, err := m.Costs(2, 9)
	require.NoError(t, err)
	plan, err := remat.Revolve(costs, 1)
	require.NoError(t, err)
	require.NoError(t, m.SetPlan(plan))
	require.Equal(t, want, gradients(t, m, b))
	other := b
	other.Positions = images()
	slices.Reverse(other.Positions)
	require.NotEqual(t, want, gradients(t, m, other))
	for axis, list := range b.Positions {
		copy(list, other.Positions[axis]) // in the same memory
	}
	require.Equal(t, gradients(t, m, other), gradients(t, m, b))
	w := newBegun(t, m)
	kerneltest.NoAllocs(t, func() { _, err = m.Backprop(t.Context(), b, 1, w) })
	require.NoError(t, err)
}

// TestPositionsGenerate: tokens after a prompt with positions go on behind the last of them.
func TestPositionsGenerate(t *testing.T) {
	ctx, axes := context.Background(), [][]int32{{2, 3, 3, 3, 3, 5}, {2, 3, 3, 4, 4, 5}, {2, 3, 4, 3, 6, 5}}
	for name, test := range map[string]struct {
		c         *Config
		positions [][]int32
	}{
		"axes": {tinyAxes(), axes}, "rope": {tinyGemma(), axes[2:]}, "learned": {tinyGPT2(GELUTanh), axes[2:]},
	} {
		for _, chunk := range []int{1, 4, 64} {
			m := newTiny(t, test.c, Options{Seed: 3})
			g := newGenerator(t, m, GenerateOptions{Context: 16, Chunk: chunk})
			for range 2 {
				prompt := someBatch(7, 11, 1, 6)
				prompt.Positions = test.positions
				require.NoError(t, g.Prompt(ctx, []int32{4, 2}))
				require.NoError(t, g.PromptBatch(ctx, prompt))
				whole, want := Batch{}, make([]float32, test.c.Vocab)
				for _, list := range test.positions {
					whole.Positions = append(whole.Positions, slices.Concat([]int32{0, 1}, list))
				}
				for i := range 5 {
					if i == 3 {
						require.NoError(t, g.Prompt(ctx, []int32{1, 5, 6}))
					}
					for len(whole.Positions[0]) < len(g.Tokens()) {
						for axis := range whole.Positions {
							whole.Positions[axis] = append(whole.Positions[axis], int32(6+len(whole.Positions[axis])-8))
						}
					}
					whole.Tokens = g.Tokens()
					require.NoError(t, m.Logits(ctx, want, whole, nil))
					_, err := g.Next(ctx)
					require.NoError(t, err)
					difference, largest := apart(g.Logits(), want)
					require.LessOrEqual(t, difference, 1e-5*largest, "%s, chunk %d, token %d", name, chunk, i)
				}
				g.Reset()
			}
		}
	}
}

func TestPositionsRefused(t *testing.T) {
	ctx := context.Background()
	m, b := newTiny(t, tinyAxes(), Options{Seed: 3}), someBatch(7, 11, 2, 9)
	b.Positions, b.Spans = images(), [][2]int{{2, 1}} // which is refused when the positions have their place
	require.ErrorIs(t, m.Logits(ctx, make([]float32, 2*11), b, nil), snug.ErrShape)
	require.NoError(t, m.Reserve(1, 4))
	for name, test := range map[string]struct {
		c         *Config
		positions [][]int32
		want      error
		text      string
	}{
		"two axes":          {tinyAxes(), images()[:2], snug.ErrShape, "positions in 2 axes, want 1 or 3"},
		"no axis":           {tinyAxes(), [][]int32{}, snug.ErrShape, "positions in 0 axes, want 1 or 3"},
		"a short list":      {tinyAxes(), [][]int32{images()[0], images()[1], images()[2][:17]}, snug.ErrShape, "axis 2 has 17 positions, want one for each of 18 rows"},
		"below 0":           {tinyAxes(), [][]int32{{17: -1}}, snug.ErrShape, "position 17 of axis 0 is -1, want 0 to 31"},
		"above the context": {tinyAxes(), [][]int32{{17: 32}}, snug.ErrShape, "position 17 of axis 0 is 32, want 0 to 31"},
		"above the table":   {tinyGPT2(GELU), [][]int32{{17: 16}}, snug.ErrShape, "position 17 of axis 0 is 16, want 0 to 15"},
		"without sections":  {tiny(), images(), snug.ErrConfig, "no rope with Sections"},
		"learned":           {tinyGPT2(GELU), images(), snug.ErrConfig, "no rope with Sections"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTiny(t, test.c, Options{Seed: 3})
			b := someBatch(7, 11, 2, 9)
			b.Positions = test.positions
			for _, err := range []error{
				func() error { _, err := m.Backprop(ctx, b, 1, lostWindow{}); return err }(),
				m.Logits(ctx, make([]float32, 2*11), b, nil),
			} {
				kerneltest.Error(t, "transformer.Backprop", err)
				require.ErrorIs(t, err, test.want)
				require.ErrorContains(t, err, test.text)
			}
			g := newGenerator(t, m, GenerateOptions{})
			if b.Sequences = 1; len(b.Tokens) <= g.options.Context {
				require.ErrorIs(t, g.PromptBatch(ctx, b), test.want)
			}
			require.Empty(t, g.Tokens())
		})
	}
}

// TestSections: config.json of families whose layers are those of models of images has them, and no other's.
func TestSections(t *testing.T) {
	c := tinyAxes()
	c.DType, c.QKVBias, c.OutBias, c.Windows, c.ScoreScale = snug.BF16, false, false, []int{0, 0}, 1/math8
	for _, spread := range []bool{false, true} {
		c.Rope.Spread = spread
		dir := t.TempDir()
		require.NoError(t, c.Write(dir))
		read, err := ReadConfig(dir)
		require.NoError(t, err)
		require.Equal(t, c.Rope, read.Rope)
	}
	c.Family, c.QKNorm = "llama", false
	_, err := New(c, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "Rope.Sections")
}

const math8 = 2.8284271247461903 // √8

// TestSectionsOfFolders has the spellings of published and of saved folders, and sections that do not fit.
func TestSectionsOfFolders(t *testing.T) {
	for rope, want := range map[string]string{
		`"rope_scaling":{"type":"mrope","mrope_section":[16,24,24]}`:                                                           "",
		`"rope_scaling":{"type":"default","rope_type":"default","mrope_section":[16,24,24]}`:                                   "",
		`"rope_parameters":{"rope_type":"default","rope_theta":1000000.0,"mrope_section":[16,24,24]}`:                          "",
		`"rope_scaling":{"rope_type":"default","mrope_section":[24,20,20],"mrope_interleaved":true}`:                           "",
		`"rope_scaling":{"rope_type":"default","mrope_section":[16,24,25]}`:                                                    "want 64 pairs of elements in all",
		`"rope_scaling":{"rope_type":"default","mrope_section":[10,27,27],"mrope_interleaved":true}`:                           "every third of 64 pairs",
		`"rope_scaling":{"rope_type":"default","mrope_section":[16,24]}`:                                                       "mrope_section",
		`"rope_scaling":{"type":"mrope"}`:                                                                                      "want default, linear",
		`"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768,"mrope_section":[16,24,24]}`: "",
	} {
		dir := t.TempDir()
		text := `{"model_type":"qwen2","hidden_size":3584,"num_attention_heads":28,"num_key_value_heads":4,"rope_theta":1000000.0,` + rope + `}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600))
		c, err := ReadConfig(dir)
		if want != "" {
			require.ErrorIs(t, err, snug.ErrConfig, rope)
			require.ErrorContains(t, err, want, rope)
			continue
		}
		require.NoError(t, err, rope)
		require.NotZero(t, c.Rope.Sections, rope)
		require.Empty(t, c.Ignored)
	}
}
