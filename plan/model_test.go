package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
)

// TestParameters compares with the counts of the models' own programs: Hugging Face's GPT-2,
// Llama's and torchvision's.
func TestParameters(t *testing.T) {
	for name, want := range map[string]int64{
		"gpt2": 124_439_808, "gpt2-xl": 1_557_611_200, "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320,
		"vit-b16": 86_567_656, "vit-l16": 304_326_632, "resnet-18": 11_689_512, "resnet-50": 25_557_032,
		"gpt-1m": 938_240, // which examples/gpt prints
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ModelNamed(name, 0)
			require.NoError(t, err)
			require.Equal(t, want, m.Parameters(), name)
		})
	}
}

// TestMultiplyAdds compares with torchvision's counts of multiply-adds of an image.
func TestMultiplyAdds(t *testing.T) {
	for name, want := range map[string]int64{"resnet-18": 1_814_073_344, "resnet-50": 4_089_184_256} {
		m, err := ModelNamed(name, 0)
		require.NoError(t, err)
		macs := int64(m.Head.Rows * m.Head.Cols * m.Head.Classes)
		for _, l := range m.Layers {
			macs += l.MACs * int64(l.repeat())
		}
		require.Equal(t, want, macs, name)
	}
}

func TestModelNamed(t *testing.T) {
	for _, name := range Models() {
		m, err := ModelNamed(name, 0)
		require.NoError(t, err)
		require.Equal(t, name, m.Name)
	}
	m, err := ModelNamed("gpt2", 256)
	require.NoError(t, err)
	require.EqualValues(t, 256*768, m.Input)
	for _, err := range []error{
		second(ModelNamed("gpt5", 0)), second(ModelNamed("vit-b16", 64)),
	} {
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.ErrorIs(t, second(ModelNamed("gpt2", -1)), snug.ErrShape)
}

// TestContext: a preset with a table of positions keeps it, whatever the context is, and has
// no longer ones; one without takes all.
func TestContext(t *testing.T) {
	for _, name := range Models() {
		g, isGPT := preset(name).(GPT)
		if !isGPT {
			continue
		}
		whole, err := ModelNamed(name, 0)
		require.NoError(t, err)
		require.Equal(t, g.Context, whole.Context)
		for _, context := range []int{1, g.Context / 2, g.Context} {
			m, err := ModelNamed(name, context)
			require.NoError(t, err)
			require.Equal(t, context, m.Context)
			require.Equal(t, whole.Parameters(), m.Parameters(), "%s with a context of %d", name, context)
		}
		for _, context := range []int{g.Context + 1, 100_000} {
			m, err := ModelNamed(name, context)
			if g.Rotary {
				require.NoError(t, err)
				require.Equal(t, whole.Parameters(), m.Parameters(), "%s with a context of %d", name, context)
				continue
			}
			require.ErrorIs(t, err, snug.ErrShape, name)
			require.ErrorContains(t, err, "learned positions")
		}
	}
	g := GPT{Vocab: 10, Dim: 8, Layers: 1, Heads: 2, Context: 4, Positions: 9}
	m, err := g.Model()
	require.NoError(t, err)
	require.Equal(t, []int{9, 8}, m.Params[1])
	g.Rotary = true
	require.ErrorIs(t, second(g.Model()), snug.ErrShape, "a table and none")
}

// TestSizesThatOverflow: products beyond 64 bits are errors, not other numbers.
func TestSizesThatOverflow(t *testing.T) {
	huge := 1 << 28
	for what, m := range map[string]interface{ Model() (Model, error) }{
		"channels":       ViT{Image: 16384, Patch: 1, Channels: huge, Classes: 2, Dim: 16, Layers: 1, Heads: 1},
		"patches":        ViT{Image: 16384, Patch: 16384, Channels: 4096, Classes: 2, Dim: huge, Layers: 1, Heads: 1},
		"convolutions":   CNN{Image: 16384, Classes: 2, Width: 4096, Blocks: []int{1, 1, 1, 1, 1, 1, 1, 1}, Bottleneck: true},
		"a width":        GPT{Vocab: 2, Dim: huge, Layers: 1, Heads: 1, Context: 1},
		"a hidden width": GPT{Vocab: 2, Dim: 1 << 20, Hidden: huge, Layers: 1, Heads: 1, Context: huge},
		"a vocabulary":   GPT{Vocab: huge, Dim: 1 << 24, Layers: 1, Heads: 1, Context: 1},
	} {
		require.ErrorIs(t, second(m.Model()), snug.ErrShape, what)
	}
	for what, m := range map[string]interface{ Model() (Model, error) }{ // which would take the host's memory
		"a GPT": GPT{Vocab: 2, Dim: 16, Layers: 1 << 28, Heads: 1, Context: 1},
		"a ViT": ViT{Image: 16, Patch: 16, Classes: 2, Dim: 16, Layers: 1 << 28, Heads: 1},
	} {
		require.ErrorContains(t, second(m.Model()), "268435456 layers", what)
	}
	wide := Model{Layers: []Layer{{Params: [][]int{{1, 1 << 30}}, Repeat: 1 << 10, Output: 1, Rows: 1 << 30}}}
	_, err := Best(Task{Model: wide, Device: oneMemory(), Batch: 1, Rank: 1 << 16}.Fit(0))
	require.ErrorIs(t, err, snug.ErrShape, "adapters")
	require.Equal(t, int64(math.MaxInt64), meter.Bytes{math.MaxInt64, 1}.Total())
	require.Equal(t, int64(math.MinInt64), meter.Bytes{math.MinInt64, -1}.Total())
	require.Equal(t, int64(math.MaxInt64-1), meter.Bytes{math.MaxInt64, -1}.Total())
}

// TestModelsMadeByHand: what takes a model that nobody has validated counts a layer that is
// repeated at once, and stays at the largest number.
func TestModelsMadeByHand(t *testing.T) {
	often := Layer{Repeat: 1 << 30, Params: [][]int{{1, 3}, {2}}}
	for what, c := range map[string]struct {
		model Model
		want  int64
	}{
		"none":                 {Model{}, 0},
		"a layer":              {Model{Params: [][]int{{7}}, Layers: []Layer{often}, Head: Head{Params: [][]int{{4}}}}, 5<<30 + 11},
		"repeats":              {Model{Layers: []Layer{{Repeat: math.MaxInt, Params: [][]int{{1}}}}}, math.MaxInt},
		"repeats and elements": {Model{Layers: []Layer{{Repeat: math.MaxInt, Params: [][]int{{math.MaxInt, 4}}}}}, math.MaxInt64},
		"dimensions":           {Model{Params: [][]int{{math.MaxInt, math.MaxInt, math.MaxInt}}}, math.MaxInt64},
		"a sum":                {Model{Params: [][]int{{math.MaxInt, 1 << 30, 1 << 30}, {math.MaxInt}}}, math.MaxInt64},
		"a negative dimension": {Model{Params: [][]int{{math.MinInt, math.MaxInt, 1 << 30}}}, math.MinInt64},
	} {
		t.Run(what, func(t *testing.T) {
			require.Equal(t, c.want, c.model.Parameters(), what)
			for _, rank := range []int{0, math.MaxInt} {
				var b strings.Builder
				require.NoError(t, Plan{Task: Task{Model: c.model, Rank: rank}}.WriteTable(&b), what)
				require.Contains(t, b.String(), fmt.Sprint(c.want, " parameters"), what)
			}
			_ = c.model.Validate()
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestImpossibleShapes(t *testing.T) {
	good := GPT{Vocab: 10, Dim: 8, Layers: 1, Heads: 2, Context: 4}
	for what, change := range map[string]func(g *GPT){
		"no vocabulary":      func(g *GPT) { g.Vocab = 0 },
		"negative layers":    func(g *GPT) { g.Layers = -1 },
		"too many layers":    func(g *GPT) { g.Layers = 5000 },
		"heads":              func(g *GPT) { g.Heads = 3 },
		"key heads":          func(g *GPT) { g.Heads, g.KVHeads = 4, 3 },
		"a width too large":  func(g *GPT) { g.Dim, g.Heads = 1<<30, 1 },
		"a context too long": func(g *GPT) { g.Context = 1 << 30 },
	} {
		g := good
		change(&g)
		require.ErrorIs(t, second(g.Model()), snug.ErrShape, what)
	}
	require.NoError(t, second(good.Model()))
	vit := ViT{Image: 32, Patch: 8, Classes: 10, Dim: 8, Layers: 1, Heads: 2}
	require.NoError(t, second(vit.Model()))
	vit.Patch = 7
	require.ErrorIs(t, second(vit.Model()), snug.ErrShape)
	vit.Patch, vit.Image = 1, 1<<20
	require.ErrorIs(t, second(vit.Model()), snug.ErrShape)
	cnn := CNN{Image: 32, Classes: 10, Blocks: []int{1, 1}}
	require.NoError(t, second(cnn.Model()))
	for _, blocks := range [][]int{nil, {0}, {1, -1}, {5000}, make([]int, 40)} {
		cnn.Blocks = blocks
		require.ErrorIs(t, second(cnn.Model()), snug.ErrShape, "%v", blocks)
	}
	chain := Model{Name: "chain", Layers: []Layer{{Name: "one", Output: 4}}}
	require.NoError(t, chain.Validate())
	for what, change := range map[string]func(m *Model){
		"no layers":               func(m *Model) { m.Layers = nil },
		"a negative count":        func(m *Model) { m.Layers[0].Kept = -1 },
		"a count too large":       func(m *Model) { m.Layers[0].Stats = 1 << 41 },
		"too many products":       func(m *Model) { m.Layers[0].MACs = 1<<60 + 1 },
		"a dimension of 0":        func(m *Model) { m.Layers[0].Params = [][]int{{4, 0}} },
		"a parameter too large":   func(m *Model) { m.Layers[0].Params = [][]int{{1 << 30, 1 << 30}} },
		"negative repetitions":    func(m *Model) { m.Layers[0].Repeat = -1 },
		"too many repetitions":    func(m *Model) { m.Layers[0].Repeat = 5000 },
		"heads without dimension": func(m *Model) { m.Layers[0].Attention = Attention{Heads: 1, Queries: 2, Keys: 2} },
		"scores without end": func(m *Model) {
			m.Layers[0].Attention = Attention{Heads: 1 << 20, Queries: 1 << 20, Keys: 1 << 20, Dim: 1}
		},
		"tied to nothing":  func(m *Model) { m.Head.Tied = true },
		"a negative input": func(m *Model) { m.Input = -1 },
	} {
		m := Model{Name: "chain", Layers: []Layer{{Name: "one", Output: 4}}}
		change(&m)
		require.ErrorIs(t, m.Validate(), snug.ErrShape, what)
		_, err := Best(Task{Model: m, Device: devices[0], Batch: 1}.Fit(0))
		require.ErrorIs(t, err, snug.ErrShape, what)
	}
}

func TestReadModel(t *testing.T) {
	for text, parameters := range map[string]int64{
		`{"gpt": {"vocab": 50257, "dim": 768, "layers": 12, "heads": 12, "context": 1024, "bias": true}}`:                                     124_439_808,
		`{"vit": {"image": 224, "patch": 16, "classes": 1000, "dim": 768, "layers": 12, "heads": 12}}`:                                        86_567_656,
		` {"cnn": {"image": 224, "classes": 1000, "blocks": [3,4,6,3], "bottleneck": true}} ` + "\n":                                          25_557_032,
		`{"chain": {"name": "mlp", "input": 784, "layers": [{"name": "linear", "repeat": 4, "params": [[784, 784], [784]], "output": 784}]}}`: 4 * 785 * 784,
	} {
		t.Run(text, func(t *testing.T) {
			m, err := ReadModel(strings.NewReader(text))
			require.NoError(t, err)
			require.Equal(t, parameters, m.Parameters())
		})
	}
	for _, text := range []string{
		"", " ", "null", "[]", "{}", `{"gpt": null}`, `{"gpt": {"vocab": 1}, "vit": {}}`, `{"gpt": {"vocabulary": 1}}`, `{"bert": {}}`,
		`{"gpt": {"vocab": 1.5}}`, `{"gpt": {"vocab": NaN}}`, `{"gpt": {}} {}`, `{"gpt": {}}x`, `{"gpt": {"vocab": 99999999999999999999}}`, "\x00", `{"chain": {"layers": "x"}}`,
		strings.Repeat(" ", maxModelFile) + "{}", `{"GPT": {}}`, `{"gpt": {"Vocab": 1}}`, `{"gpt": {"vocab": 1, "vocab": 2}}`, `{"gpt": {}, "gpt": {}}`,
		`{"gpt": {"vocab": null}}`, `{"gpt": {"vocab": 1e3}}`, `{"gpt": {"name": "\ud800"}}`, "{\"gpt\": {\"name\": \"\xff\"}}", "\ufeff{}",
		`{"cnn": {"blocks": [1, "2"]}}`, `{"chain": {"layers": [{"attention": []}]}}`, strings.Repeat("[", 1<<20), `{"gpt": `,
	} {
		_, err := ReadModel(strings.NewReader(text))
		require.ErrorIs(t, err, snug.ErrCorrupt, "%.60q", text)
		require.NotContains(t, err.Error(), "\n")
	}
	for _, text := range []string{`{"gpt": {}}`, `{"vit": {}}`, `{"cnn": {}}`, `{"chain": {"layers": []}}`, `{"gpt": {"vocab": -1}}`,
		`{"chain": {"name": "a\nb", "layers": [{"output": 1}]}}`, `{"chain": {"name": "\u001b[2J", "layers": [{"output": 1}]}}`,
		`{"chain": {"name": "` + strings.Repeat("n", 101) + `", "layers": [{"output": 1}]}}`, `{"chain": {"context": -1, "layers": [{"output": 1}]}}`} {
		require.ErrorIs(t, second(ReadModel(strings.NewReader(text))), snug.ErrShape, text)
	}
}

// FuzzReadModel: whatever the text is, there is an error or a model that can be planned.
func FuzzReadModel(f *testing.F) {
	f.Add(`{"gpt": {"vocab": 5, "dim": 4, "layers": 2, "heads": 2, "context": 3, "gated": true}}`)
	f.Add(`{"vit": {"image": 8, "patch": 4, "classes": 3, "dim": 4, "layers": 2, "heads": 2}}`)
	f.Add(`{"cnn": {"image": 9, "classes": 3, "width": 2, "blocks": [1, 2]}}`)
	f.Add(`{"chain": {"name": "x", "input": 7, "params": [[3]], "layers": [{"name": "y", "repeat": 2, "params": [[2, 3]], "output": 5, "kept": 1, "stats": 2, "attention": {"heads": 1, "queries": 2, "keys": 3, "dim": 4}}], "head": {"tied": true, "rows": 1, "cols": 1, "classes": 1099511627776}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ReadModel(strings.NewReader(text))
		if err != nil {
			require.True(t, isOne(err, snug.ErrCorrupt, snug.ErrShape), "%v", err)
			return
		}
		task := Task{Model: m, Device: devices[0], Batch: 3}
		p, err := task.Predict(Run{Micro: 2, Window: 2, Tiled: true, Compute: snug.BF16})
		if err != nil {
			require.True(t, isOne(err, snug.ErrShape, snug.ErrConfig), "%v", err)
			return
		}
		for c, n := range p.Peak[meter.OnDevice] {
			require.GreaterOrEqual(t, n, int64(0), meter.Component(c))
		}
		require.GreaterOrEqual(t, p.Seconds, 0.0)
	})
}
