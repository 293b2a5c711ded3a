package vision_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// goldenModels are the folders of models.py.
var goldenModels = []string{"llava", "llava-mistral", "gemma3", "paligemma", "paligemma2", "idefics3", "smolvlm", "llava_next", "qwen2_5_vl", "qwen3_vl", "qwen2_vl"}

// goldenModel has what transformers computes for two sequences.
type goldenModel struct {
	Tokens [][]int32
	Grids  [][3]int   // of the images; none: all are squares
	Tiles  []int      // of the images; none: one each
	Lines  []struct { // of the images of LLaVA-NeXT
		Size          [2]int // height and width
		Rows, Columns int    // of tiles
	}
	Logits  []float64
	Written []struct { // behind the tokens, by generate, with the logits of the last token
		Tokens []int32
		Logits []float64
	}
	Deep      map[string]float64 // the loss where other blocks are added to the text
	Loss      float64
	Gradients map[string][2]float64
}

func openGoldenModel(t *testing.T, name string, o vision.ModelOptions) (*vision.Model, goldenModel, vision.Batch) {
	data, err := os.ReadFile(filepath.Join("testdata/models", name, "golden.json"))
	require.NoError(t, err)
	var g goldenModel
	require.NoError(t, json.Unmarshal(data, &g))
	m, err := vision.OpenModel(filepath.Join("testdata/models", name), o)
	require.NoError(t, err)
	b := vision.Batch{Text: transformer.Batch{Starts: []int{0}}}
	for _, tokens := range g.Tokens {
		b.Text.Tokens = append(b.Text.Tokens, tokens...)
		for _, next := range append(tokens[1:len(tokens):len(tokens)], -100) {
			if next == m.Token() {
				next = -100
			}
			b.Text.Labels = append(b.Text.Labels, next)
		}
		b.Text.Starts = append(b.Text.Starts, len(b.Text.Tokens))
	}
	if strings.HasPrefix(name, "paligemma") {
		for i, lo := range b.Text.Starts[:2] { // as in models.py
			hi := b.Text.Starts[i+1]
			for hi--; b.Text.Tokens[hi] != m.Token(); hi-- {
			}
			b.Text.Spans = append(b.Text.Spans, [2]int{lo, hi + 2})
		}
	}
	c := m.Encoder.Config()
	for i := range 3 {
		l := vision.Layout{Shape: []int{1, c.Channels, c.Image, c.Image}}
		if g.Tiles != nil {
			l.Shape[0] = g.Tiles[i]
		}
		if g.Lines != nil {
			of := g.Lines[i]
			l.Rows, l.Columns, l.OriginalHeight, l.OriginalWidth = of.Rows, of.Columns, of.Size[0], of.Size[1]
			l.Shape[0] = of.Rows*of.Columns + 1
		}
		x := vision.Pixels{Layout: l, Values: numbers(1000+i, l.Len())}
		if g.Grids != nil {
			grid := g.Grids[i]
			x.Layout = vision.Layout{Grid: grid, Merge: 2}
			x.Values = numbers(1000+i, grid[0]*grid[1]*grid[2]*c.Channels*2*c.Patch*c.Patch)
		}
		b.Images = append(b.Images, x)
	}
	return m, g, b
}

// TestModelGolden: logits, the loss and all gradients of two packed sequences with images are those of transformers.
func TestModelGolden(t *testing.T) {
	for _, name := range goldenModels {
		t.Run(name, func(t *testing.T) {
			m, golden, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
			matches(t, m, &golden, b)
		})
	}
}

// matches compares the logits, the loss and the gradients of two sequences with those of transformers.
func matches(t *testing.T, m *vision.Model, golden *goldenModel, b vision.Batch) {
	ctx, vocab := context.Background(), m.Text.Config().Vocab
	logits := make([]float32, 2*vocab)
	require.NoError(t, m.Logits(ctx, logits, b, []int32{int32(b.Text.Starts[1] - 1), int32(b.Text.Starts[2] - 1)}))
	near(t, golden.Logits, logits, 6e-6)
	loss, err := m.Evaluate(ctx, b)
	require.NoError(t, err)
	require.InEpsilon(t, golden.Loss, loss.Mean(), 5e-6)
	w := sums{}
	for name, v := range m.Trainable() {
		w[name] = make([]float32, v.Len())
	}
	loss, err = m.Backprop(ctx, b, 1, w)
	require.NoError(t, err)
	require.InEpsilon(t, golden.Loss, loss.Mean(), 5e-6)
	names := map[string]string{} // of the folder
	for name := range w {
		names[golden.inFolder(name)] = name
	}
	require.Len(t, golden.Gradients, len(w))
	number := 0
	for _, folder := range slices.Sorted(maps.Keys(golden.Gradients)) {
		square, dot, of := 0., 0., w[names[folder]]
		require.NotNil(t, of, folder)
		for i, v := range numbers(2000+number, len(of)) {
			g := float64(of[i])
			square, dot = square+g*g, dot+g*float64(v)
		}
		want := golden.Gradients[folder]
		require.InDelta(t, want[0], math.Sqrt(square), 1e-5*want[0], folder)
		require.InDelta(t, want[1], dot, 1e-5*want[0], folder)
		number++
	}
}

// inFolder returns the name in the folder of a parameter that trains.
func (g *goldenModel) inFolder(name string) string {
	body := strings.TrimPrefix(name, "model.")
	for _, in := range []string{name, "model." + name, "language_model." + name, "model.language_model." + body, "model.text_model." + body} {
		if _, has := g.Gradients[in]; has {
			return in
		}
	}
	return name
}

// tuneGolden trains adapters of a text in 4 bits, and the projector, and returns the losses.
func tuneGolden(t *testing.T, m *vision.Model, b vision.Batch, o train.Options) (losses []float64) {
	o.Schedule, o.Seed = train.Constant(5e-3), 1
	tr, err := train.New(m, o)
	require.NoError(t, err)
	for range 20 {
		r, err := tr.Train(context.Background(), []vision.Batch{b})
		require.NoError(t, err)
		losses = append(losses, r.Loss)
	}
	return losses
}

// TestModelTunes: QLoRA of the text with a projector that trains learns, also with updates in the backward pass, and its adapter goes
// on from a folder. PEFT gives the same logits: SNUG_SAVE=DIR, and testdata/models.py adapter DIR.
func TestModelTunes(t *testing.T) {
	options := vision.ModelOptions{Text: transformer.Options{
		DType: snug.F32, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}, Seed: 2,
	}}
	for of, how := range map[string]train.Options{"llava": {}, "qwen2_5_vl": {Gradients: plan.InBackward, StateBits: 8}, "qwen3_vl": {Gradients: plan.InBackward}} {
		t.Run(of, func(t *testing.T) {
			m, _, b := openGoldenModel(t, of, options)
			losses := tuneGolden(t, m, b, how)
			require.Less(t, losses[19], losses[0]/2)
			dir := filepath.Join(t.TempDir(), "adapter")
			require.NoError(t, m.SaveAdapter(dir))
			resumed := options
			resumed.Text.Adapter, resumed.Text.AdapterDir = nil, dir
			again, _, _ := openGoldenModel(t, of, resumed)
			want, err := m.Evaluate(context.Background(), b)
			require.NoError(t, err)
			got, err := again.Evaluate(context.Background(), b)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, again.SaveAdapter(dir))
		})
	}
}

// TestModelAdapterForPEFT writes adapters of a text in floats with the logits that PEFT must give.
func TestModelAdapterForPEFT(t *testing.T) {
	to := os.Getenv("SNUG_SAVE")
	if to == "" {
		t.Skip("SNUG_SAVE names no folder")
	}
	for _, name := range goldenModels {
		m, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}, Seed: 2}})
		tuneGolden(t, m, b, train.Options{})
		require.NoError(t, m.SaveAdapter(filepath.Join(to, name)))
		writeLogits(t, m, b, filepath.Join(to, name))
	}
}

// TestModelSaves: a model with merged adapters opens again with the same loss. transformers gives the same logits: SNUG_SAVE=DIR, and
// testdata/models.py saved DIR.
func TestModelSaves(t *testing.T) {
	for _, name := range goldenModels {
		t.Run(name, func(t *testing.T) {
			m, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}, Seed: 2}})
			tuneGolden(t, m, b, train.Options{})
			dir := filepath.Join(t.TempDir(), "saved")
			if to := os.Getenv("SNUG_SAVE"); to != "" {
				dir = filepath.Join(to, name)
			}
			require.NoError(t, m.Save(dir, 0))
			again, err := vision.OpenModel(dir, vision.ModelOptions{})
			require.NoError(t, err)
			want, err := m.Evaluate(context.Background(), b)
			require.NoError(t, err)
			got, err := again.Evaluate(context.Background(), b)
			require.NoError(t, err)
			require.InEpsilon(t, want.Mean(), got.Mean(), 1e-5)
			require.NoError(t, again.Save(dir, 0)) // over itself
			writeLogits(t, m, b, dir)
		})
	}
}

// TestModelWrites: what follows a prompt with images is what transformers' generate writes, also if the prompt comes in two parts.
func TestModelWrites(t *testing.T) {
	for _, name := range []string{"qwen2_vl", "qwen2_5_vl", "qwen3_vl"} {
		t.Run(name, func(t *testing.T) { writes(t, name) })
	}
}

func writes(t *testing.T, name string) {
	m, golden, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	ctx := context.Background()
	g, err := m.Text.Generate(transformer.GenerateOptions{Chunk: 5})
	require.NoError(t, err)
	for i, tokens := range golden.Tokens {
		images := [][]vision.Pixels{b.Images[:2], b.Images[2:]}[i]
		end := slices.Index(tokens, m.Token()) // of the text before the first image, and then of the image
		for _, cut := range []int{0, end, end + golden.Grids[2*i][1]*golden.Grids[2*i][2]/4} {
			before := 0
			if cut > end {
				before = 1
			}
			if g.Reset(); cut > 0 {
				require.NoError(t, m.Prompt(ctx, g, vision.Batch{Text: transformer.Batch{Tokens: tokens[:cut]}, Images: images[:before]}))
			}
			require.NoError(t, m.Prompt(ctx, g, vision.Batch{Text: transformer.Batch{Tokens: tokens[cut:]}, Images: images[before:]}))
			_, next, err := vision.Positions(tokens, vision.Axes{Image: m.Token(), Video: m.VideoToken()}, []vision.Layout{images[0].Layout, images[len(images)-1].Layout}[:len(images)])
			require.NoError(t, err)
			require.Equal(t, int(next), g.Position())
			for _, want := range golden.Written[i].Tokens {
				token, err := g.Next(ctx)
				require.NoError(t, err)
				require.Equal(t, want, token)
			}
			near(t, golden.Written[i].Logits, g.Logits(), 5e-6)
			require.Equal(t, int(next)+6, g.Position())
		}
	}
}

// writeLogits writes the logits of the last rows, which testdata/models.py compares, if SNUG_SAVE names a folder.
func writeLogits(t *testing.T, m *vision.Model, b vision.Batch, dir string) {
	if os.Getenv("SNUG_SAVE") == "" {
		return
	}
	logits := make([]float32, 2*m.Text.Config().Vocab)
	require.NoError(t, m.Logits(context.Background(), logits, b, []int32{int32(b.Text.Starts[1] - 1), int32(b.Text.Starts[2] - 1)}))
	text, err := json.Marshal(logits)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "want.json"), text, 0o644))
}

// TestModelWithoutImages: a batch without images is one of the text, in whose windows the projector has a gradient of 0.
func TestModelWithoutImages(t *testing.T) {
	m, _, b := openGoldenModel(t, "llava", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	text := vision.Batch{Text: transformer.Batch{Tokens: []int32{1, 7, 8, 2}, Labels: []int32{7, 8, 2, -100}}}
	ctx := context.Background()
	want, err := m.Text.Evaluate(ctx, text.Text)
	require.NoError(t, err)
	got, err := m.Evaluate(ctx, text)
	require.NoError(t, err)
	require.Equal(t, want, got)
	// A step of both batches, and one whose gradients are kept one at a time.
	for name, how := range map[string]train.Options{"sums": {}, "in backward": {Gradients: plan.InBackward}} {
		t.Run(name, func(t *testing.T) {
			how.Schedule = train.Constant(1e-3)
			tr, err := train.New(m, how)
			require.NoError(t, err)
			batches := []vision.Batch{text, b}
			if name == "in backward" {
				batches = batches[:1]
			}
			var w []float32
			for name, v := range m.Trainable() {
				if name == "multi_modal_projector.linear_1.weight" {
					w = v.Float32s()
				}
			}
			before := slices.Clone(w)
			_, err = tr.Train(ctx, batches)
			require.NoError(t, err)
			require.Equal(t, name == "in backward", slices.Equal(before, w))
		})
	}
}

// TestModelListOfOneLayer: a list of one layer is that layer.
func TestModelListOfOneLayer(t *testing.T) {
	m, err := vision.OpenModel(edited(t, "models/llava", map[string]string{"vision_feature_layer": "[-2]"}), vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	require.NoError(t, err)
	want, _, b := openGoldenModel(t, "llava", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	ctx, vocab := context.Background(), m.Text.Config().Vocab
	got, same := make([]float32, 2*vocab), make([]float32, 2*vocab)
	require.NoError(t, m.Logits(ctx, got, b, nil))
	require.NoError(t, want.Logits(ctx, same, b, nil))
	require.Equal(t, same, got)
	g, err := want.Text.Generate(transformer.GenerateOptions{Context: 64})
	require.NoError(t, err)
	require.ErrorIs(t, m.Prompt(ctx, g, b), snug.ErrConfig) // of another model
	require.Equal(t, want.Text, g.Model())
}

// TestModelPrompts: logits behind a prompt with images are those of the model, of which a PaliGemma takes all of it for a prefix.
func TestModelPrompts(t *testing.T) {
	for _, name := range goldenModels {
		t.Run(name, func(t *testing.T) {
			m, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
			n := b.Text.Starts[1]
			b = vision.Batch{Text: transformer.Batch{Tokens: b.Text.Tokens[:n]}, Images: b.Images[:2]}
			g, err := m.Text.Generate(transformer.GenerateOptions{Context: 128, Chunk: 96})
			require.NoError(t, err)
			ctx := context.Background()
			require.NoError(t, m.Prompt(ctx, g, b))
			if strings.HasPrefix(name, "paligemma") {
				b.Text.Spans = [][2]int{{0, n}}
			}
			want := make([]float32, m.Text.Config().Vocab)
			require.NoError(t, m.Logits(ctx, want, b, nil))
			near(t, float64s(want), g.Logits(), 5e-6)
		})
	}
}

// TestModelPrefixes: images of a PaliGemma are in prefixes.
func TestModelPrefixes(t *testing.T) {
	m, _, b := openGoldenModel(t, "paligemma", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	second := b.Text.Starts[1]
	for name, spans := range map[string][][2]int{
		"none": {}, "learned": nil, "one": b.Text.Spans[:1], "short": {{0, 5}, b.Text.Spans[1]}, "late": {{1, 40}, b.Text.Spans[1]}, "both": {{0, len(b.Text.Tokens)}},
		"twice": {b.Text.Spans[0], {second, second + 2}, {second + 2, second + 18}}, "backwards": {b.Text.Spans[1], b.Text.Spans[0]}, "negative": {{0, -1}, b.Text.Spans[1]},
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			b.Text.Spans = spans
			_, err := m.Evaluate(context.Background(), b)
			require.True(t, errors.Is(err, snug.ErrShape) || errors.Is(err, snug.ErrConfig), err)
		})
	}
	// Without Spans a prefix ends before the first token that is learned.
	ctx := context.Background()
	for i, s := range b.Text.Spans {
		for at := s[0]; at < s[1]-1; at++ {
			b.Text.Labels[at] = -100
		}
		require.Positive(t, b.Text.Labels[b.Text.Spans[i][1]-1])
	}
	want, err := m.Evaluate(ctx, b)
	require.NoError(t, err)
	b.Text.Spans = nil
	got, err := m.Evaluate(ctx, b)
	require.NoError(t, err)
	require.Equal(t, want, got)
	b.Images, b.Text = nil, transformer.Batch{Tokens: []int32{1, 2, 3}, Labels: []int32{-100, 3, -100}} // text alone
	got, err = m.Evaluate(ctx, b)
	require.NoError(t, err)
	b.Text.Spans = [][2]int{{0, 2}}
	want, err = m.Text.Evaluate(ctx, b.Text)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestModelTiles: an image of several tiles has the Layout of a processor.
func TestModelTiles(t *testing.T) {
	m, _, b := openGoldenModel(t, "smolvlm", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	rows, err := m.Rows(b.Images[0].Layout)
	require.NoError(t, err)
	require.Equal(t, 3*4, rows)
	next, _, lines := openGoldenModel(t, "llava_next", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	for name, change := range map[string]func(l *vision.Layout){
		"no size": func(l *vision.Layout) { l.OriginalHeight = 0 }, "negative": func(l *vision.Layout) { l.OriginalWidth = -1 }, "other lines": func(l *vision.Layout) { l.OriginalHeight, l.OriginalWidth = 40, 10 },
		"most": func(l *vision.Layout) { l.Rows, l.Columns = math.MaxInt, math.MaxInt }, "no tiles": func(l *vision.Layout) { l.Rows = 0 }, "others": func(l *vision.Layout) { l.Columns++ },
		"many": func(l *vision.Layout) { l.Rows, l.Columns, l.Shape[0] = 1<<12, 1<<12, 1<<24+1 }, "none": func(l *vision.Layout) { *l = vision.Layout{} },
	} {
		t.Run(name, func(t *testing.T) {
			b := lines
			b.Images = slices.Clone(b.Images)
			b.Images[0].Layout.Shape = slices.Clone(b.Images[0].Layout.Shape)
			change(&b.Images[0].Layout)
			_, err := next.Evaluate(context.Background(), b)
			require.ErrorIs(t, err, snug.ErrShape)
		})
	}
	for name, shape := range map[string][]int{
		"none": nil, "no tiles": {0, 3, 16, 16}, "fewer": {2, 3, 16, 16}, "larger": {3, 3, 32, 16}, "patches": {48, 48}, "most": {math.MaxInt, 3, 16, 16}, "negative": {-3, 3, 16, 16},
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			b.Images = slices.Clone(b.Images)
			b.Images[0].Layout.Shape = shape
			_, err := m.Evaluate(context.Background(), b)
			require.ErrorIs(t, err, snug.ErrShape)
		})
	}
}

// TestModelLines: the rows of an image of LLaVA-NeXT are as many as its processor says, for images of all sizes.
func TestModelLines(t *testing.T) {
	dir := edited(t, "models/llava_next", nil)
	for name, text := range map[string]string{
		"preprocessor_config.json": `{"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 13}, "crop_size": 13, "image_grid_pinpoints": [[13, 26], [26, 13], [26, 26], [13, 39]]}`,
		"processor_config.json":    `{"processor_class": "LlavaNextProcessor", "patch_size": 4, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}`,
		"tokenizer_config.json":    `{}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	p, err := vision.OpenProcessor(dir)
	require.NoError(t, err)
	m, err := vision.OpenModel(dir, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	require.NoError(t, err)
	for width := 1; width < 90; width += 3 {
		for height := 1; height < 90; height += 4 {
			l, err := p.Layout(width, height)
			require.NoError(t, err)
			rows, err := m.Rows(l)
			require.NoError(t, err)
			require.Equal(t, l.Tokens, rows, "%d by %d", width, height)
		}
	}
	x, err := p.Process(&vision.Image{Width: 40, Height: 10, Pix: make([]byte, 3*40*10)})
	require.NoError(t, err)
	b := vision.Batch{Text: transformer.Batch{Tokens: slices.Repeat([]int32{m.Token()}, x.Tokens)}, Images: []vision.Pixels{x}}
	require.NoError(t, m.Logits(context.Background(), make([]float32, m.Text.Config().Vocab), b, nil))
}

// TestModelBadBatches: what does not fit is refused before anything is computed.
func TestModelBadBatches(t *testing.T) {
	m, _, b := openGoldenModel(t, "gemma3", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	for name, of := range map[string]func(b *vision.Batch){
		"an image too few":      func(b *vision.Batch) { b.Images = b.Images[:2] },
		"an image too many":     func(b *vision.Batch) { b.Images = append(b.Images[:3:3], b.Images[0]) },
		"a placeholder too few": func(b *vision.Batch) { b.Text.Tokens = slices.Clone(b.Text.Tokens); b.Text.Tokens[2] = 3 },
		"pixels of another size": func(b *vision.Batch) {
			b.Images = []vision.Pixels{b.Images[0], {Values: b.Images[1].Values[1:]}, b.Images[2]}
		},
		"nil pixels":      func(b *vision.Batch) { b.Images = make([]vision.Pixels, 3) },
		"own spans":       func(b *vision.Batch) { b.Text.Spans = [][2]int{{0, 2}} },
		"own embeddings":  func(b *vision.Batch) { b.Text.Embeddings.Rows = []int32{1} },
		"no tokens":       func(b *vision.Batch) { b.Text.Tokens = nil },
		"labels too few":  func(b *vision.Batch) { b.Text.Labels = b.Text.Labels[1:] },
		"starts too late": func(b *vision.Batch) { b.Text.Starts = []int{1, len(b.Text.Tokens)} },
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			of(&b)
			w := sums{}
			for name, v := range m.Trainable() {
				w[name] = make([]float32, v.Len())
			}
			_, err := m.Backprop(context.Background(), b, 1, w)
			require.Error(t, err)
			require.True(t, errors.Is(err, snug.ErrShape) || errors.Is(err, snug.ErrConfig), err)
			for name, g := range w {
				require.Equal(t, make([]float32, len(g)), g, name)
			}
		})
	}
	for _, b := range []vision.Batch{b, {Text: transformer.Batch{Tokens: []int32{1, 2}, Labels: []int32{2, -100}}}} {
		_, err := m.Backprop(context.Background(), b, 1, nil)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestModelSavesBuffers: tensors of integers among a tower's, which old versions of transformers wrote, are left out.
func TestModelSavesBuffers(t *testing.T) {
	w, err := amp.OpenWeights("testdata/models/llava")
	require.NoError(t, err)
	dir := edited(t, "models/llava", nil)
	require.NoError(t, amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, info := range w.Tensors() {
			v, _, err := snug.MakeView(snug.CPU(), info.ElementType(), info.Len())
			require.NoError(t, err)
			require.NoError(t, w.Load(info.Name, v))
			if !yield(info, v) {
				return
			}
		}
		ids := amp.Tensor{Name: "vision_tower.embeddings.position_ids", DType: "I64", Shape: []int{1, 2}}
		yield(ids, snug.ViewOf8(make([]uint8, 16)))
	}, nil))
	require.NoError(t, w.Close())
	m, err := vision.OpenModel(dir, vision.ModelOptions{})
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), "saved")
	require.NoError(t, m.Save(to, 0))
	again, err := vision.OpenModel(to, vision.ModelOptions{})
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
