package transformer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// TestSpansOfSequences: packed sequences with spans are these sequences alone, spans of one row change nothing, and others do.
func TestSpansOfSequences(t *testing.T) {
	for name, c := range map[string]*Config{"tied": tiny(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh), "sinks": sunkCustom()} {
		t.Run(name, func(t *testing.T) {
			m := newTiny(t, c, Options{Seed: 3})
			b := someBatch(8, 11, 1, 16)
			b.Sequences, b.Starts = 0, []int{0, 1, 7, 16}
			plain := allLogits(t, m, b)
			b.Spans = [][2]int{{0, 1}, {3, 4}, {4, 5}, {15, 16}}
			difference, largest := apart(allLogits(t, m, b), plain)
			require.LessOrEqual(t, difference, 1e-5*largest)
			b.Spans = [][2]int{{2, 6}, {7, 8}, {9, 14}}
			together := allLogits(t, m, b)
			difference, _ = apart(together, plain)
			require.Greater(t, difference, 1e-2*largest)
			alone := [][][2]int{nil, {{1, 5}}, {{0, 1}, {2, 7}}}
			for i, lo := range b.Starts[:3] {
				hi := b.Starts[i+1]
				one := allLogits(t, m, Batch{Tokens: b.Tokens[lo:hi], Spans: alone[i]})
				difference, largest := apart(together[lo*c.Vocab:hi*c.Vocab], one)
				require.LessOrEqual(t, difference, 1e-5*largest)
			}
		})
	}
}

// TestSpansOnDevices: spans give the same on every device and by every plan, their masks are counted, and their batch leaves none behind.
//
//check:in emulated
func TestSpansOnDevices(t *testing.T) {
	b := someBatch(7, 11, 2, 9)
	b.Spans = [][2]int{{1, 6}, {9, 12}, {12, 18}}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELUTanh)} {
			monitor, err := meter.New(meter.Options{})
			require.NoError(t, err)
			cpu, m := newTiny(t, c, Options{Seed: 3}), newTiny(t, c, Options{Seed: 3, Device: p.Dev, Monitor: monitor})
			without := Batch{Tokens: b.Tokens, Sequences: 2}
			_ = allLogits(t, m, without)
			before := m.Memory().Workspace
			want, have := allLogits(t, cpu, b), allLogits(t, m, b)
			masks := int64(1)
			if c.Windows[1] != 0 {
				masks = 2
			}
			require.Equal(t, before+masks*2*(4+512), m.Memory().Workspace) // a tile of each sequence
			now, _ := monitor.Held()
			require.Equal(t, m.Memory().Workspace, now[meter.OnDevice][meter.Workspace])
			_ = allLogits(t, m, without)
			require.Equal(t, before, m.Memory().Workspace)
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
			if p.Dev != nil {
				continue
			}
			costs, err := m.Costs(2, 9)
			require.NoError(t, err)
			for slots := range 2 {
				plan, err := remat.Revolve(costs, slots+1)
				require.NoError(t, err)
				require.NoError(t, m.SetPlan(plan))
				require.Equal(t, grads, gradients(t, m, b))
			}
		}
	})
}

// TestSpansCosts: a batch with spans takes the activations that Costs says.
func TestSpansCosts(t *testing.T) {
	m, b := newTiny(t, tinyGemma(), Options{Seed: 3}), someBatch(7, 11, 2, 9)
	b.Spans = [][2]int{{1, 6}, {9, 12}}
	costs, err := m.Costs(2, 9)
	require.NoError(t, err)
	m.chain.Costs = &costs
	require.NoError(t, m.begin(b))
	m.pass.Window, m.backward = newBegun(t, m), call{head: m.lossOn(b), scale: 1}
	keep, err := remat.KeepAll(costs)
	require.NoError(t, err)
	_, report, err := m.chain.Run(t.Context(), keep, &m.input, m.lossOf)
	require.NoError(t, err)
	require.Empty(t, report.Mismatches)
}

// TestPromptBatchOnDevices: a Generator takes vectors, positions in three axes and spans on every device.
//
//check:in emulated
func TestPromptBatchOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		c := tinyAxes()
		m := newTiny(t, c, Options{Seed: 3, Device: p.Dev})
		g := newGenerator(t, m, GenerateOptions{Context: 16, Chunk: 5})
		b := someBatch(7, 11, 1, 9)
		b.Spans = [][2]int{{1, 5}, {6, 8}}
		b.Embeddings = Embeddings{Rows: []int32{1, 2, 3, 4, 7}, Values: moved(t, kerneltest.Uniform(9, 5*c.Dim), snug.F32, p.Dev)}
		for _, list := range images() {
			b.Positions = append(b.Positions, list[:9])
		}
		require.NoError(t, g.PromptBatch(t.Context(), b))
		for range 3 {
			want := make([]float32, c.Vocab)
			require.NoError(t, m.Logits(t.Context(), want, b, nil))
			token, err := g.Next(t.Context())
			require.NoError(t, err)
			difference, largest := apart(g.Logits(), want)
			require.LessOrEqual(t, difference, 1e-4*largest)
			b.Tokens = append(b.Tokens, token)
			for axis := range b.Positions {
				b.Positions[axis] = append(b.Positions[axis], int32(len(b.Tokens)-3))
			}
		}
	})
}

// TestSpansGenerate: a prompt with spans gives the logits of a batch with them, whatever the chunks.
func TestSpansGenerate(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]*Config{"tied": tiny(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh)} {
		for _, chunk := range []int{4, 5, 64} {
			m := newTiny(t, c, Options{Seed: 3})
			g := newGenerator(t, m, GenerateOptions{Context: 16, Chunk: chunk})
			prompt := someBatch(7, 11, 1, 10)
			prompt.Spans = [][2]int{{1, 3}, {3, 7}, {8, 10}}
			require.NoError(t, g.Prompt(ctx, []int32{4, 2}))
			require.NoError(t, g.PromptBatch(ctx, prompt))
			whole, want := Batch{Spans: [][2]int{{3, 5}, {5, 9}, {10, 12}}}, make([]float32, c.Vocab)
			for i := range 4 {
				whole.Tokens = g.Tokens()
				require.NoError(t, m.Logits(ctx, want, whole, nil))
				_, err := g.Next(ctx)
				require.NoError(t, err)
				difference, largest := apart(g.Logits(), want)
				require.LessOrEqual(t, difference, 1e-5*largest, "%s, chunk %d, token %d", name, chunk, i)
			}
		}
	}
}

func TestSpansRefused(t *testing.T) {
	ctx := context.Background()
	for name, test := range map[string]struct {
		spans [][2]int
		text  string
	}{
		"empty":           {[][2]int{{3, 3}}, "span 0 is rows 3 to 2"},
		"backwards":       {[][2]int{{3, 1}}, "span 0 is rows 3 to 0"},
		"below 0":         {[][2]int{{-1, 2}}, "span 0 is rows -1 to 1"},
		"behind the rows": {[][2]int{{16, 19}}, "span 0 is rows 16 to 18"},
		"overlap":         {[][2]int{{1, 4}, {3, 5}}, "span 1 is rows 3 to 4, want a row or more behind row 3"},
		"out of order":    {[][2]int{{5, 7}, {1, 3}}, "span 1 is rows 1 to 2"},
		"two sequences":   {[][2]int{{1, 2}, {8, 10}}, "span 1 is rows 8 to 9, and sequence 0 ends before row 9"},
	} {
		t.Run(name, func(t *testing.T) {
			m, b := newTiny(t, tiny(), Options{Seed: 3}), someBatch(7, 11, 2, 9)
			b.Spans = test.spans
			_, err := m.Backprop(ctx, b, 1, lostWindow{})
			kerneltest.Error(t, "transformer.Backprop", err)
			require.ErrorIs(t, err, snug.ErrShape)
			require.ErrorContains(t, err, test.text)
			b.Sequences, b.Starts = 0, []int{0, 9, 18}
			require.ErrorIs(t, m.Logits(ctx, make([]float32, 2*11), b, nil), snug.ErrShape)
		})
	}
	b := someBatch(7, 11, 1, 9)
	b.Spans = [][2]int{{1, 6}}
	plain := tiny()
	plain.ScoreCap = 0
	_, err := newTiny(t, plain, Options{PlainAttention: true}).Evaluate(ctx, b)
	require.ErrorIs(t, err, snug.ErrConfig)
	g := newGenerator(t, newTiny(t, tiny(), Options{}), GenerateOptions{Chunk: 4})
	require.ErrorIs(t, g.PromptBatch(ctx, b), snug.ErrConfig)
	require.Empty(t, g.Tokens())
}
