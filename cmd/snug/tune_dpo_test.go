package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// preferred is a run of TRL, see testdata/dpo/make.py.
type preferred struct {
	Lines                     []string
	Tokens                    [][3][]int32
	Beta, Smoothing           float64
	Loss, Norm, Ahead, Margin []float64
}

// TestPreferencesMatchTRL: the tokens, the losses, the norms of gradients and the margins of TRL's DPOTrainer.
func TestPreferencesMatchTRL(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "dpo", "golden.json"))
	require.NoError(t, err)
	var golden map[string]preferred
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden, 4)
	for name, g := range golden {
		t.Run(name, func(t *testing.T) { g.test(t) })
	}
}

func (g preferred) test(t *testing.T) {
	dir, ctx := publish(t), context.Background()
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	template, err := chat.Open(tok, chat.Options{})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "pairs.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(g.Lines, "\n")), 0o600))
	end := int32(2)
	data, err := dataset.Open([]string{file}, tok, dataset.Options{Context: 128, EOS: &end, Template: template, Pairs: true})
	require.NoError(t, err)
	m, err := transformer.Open(dir, transformer.Options{DType: snug.F32})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	p := &preferences{Model: m, beta: g.Beta, smoothing: g.Smoothing, refs: make([][pairLength]float32, data.Pairs())}
	pairs := make([]dataset.Batch, data.Pairs()) // by the numbers of the lines
	for b, err := range data.Once(0, 1, len(pairs), 1) {
		require.NoError(t, err)
		n := b.Pairs[0]
		for side, lo := range b.Starts[:pairLength] {
			prompt, whole := g.Tokens[n][0], append(append([]int32{}, g.Tokens[n][0]...), g.Tokens[n][1+side]...)
			hi := b.Starts[side+1]
			require.Equal(t, whole[:len(whole)-1], b.Tokens[lo:hi])
			for i, label := range b.Labels[lo:hi] {
				if want := whole[i+1]; i+1 < len(prompt) {
					require.Negative(t, label)
				} else if label < 0 { // TRL also learns the white space that the template writes behind the end of a turn
					require.Equal(t, len(whole)-1, i+1)
					require.Empty(t, strings.TrimSpace(tok.Decode([]int32{want}, tokenizer.DecodeOptions{})))
					b.Labels[lo+i] = want
				} else {
					require.Equal(t, want, label)
				}
			}
		}
		logp, err := p.logProbs(ctx, b)
		require.NoError(t, err)
		p.refs[n], pairs[n] = answersOf(b, 0, logp), b
	}
	trainer, err := train.New(learner(p), train.Options{Schedule: train.Constant(2e-3)})
	require.NoError(t, err)
	for step := range g.Loss {
		b := joined(pairs[4*step%len(pairs):][:4])
		_, err := p.Evaluate(ctx, b)
		require.NoError(t, err)
		before := p.taken()
		report, err := trainer.Train(ctx, []dataset.Batch{b})
		require.NoError(t, err)
		require.InDelta(t, g.Loss[step], report.Loss, 1e-3*g.Loss[step]+1e-5, "step %d", step)
		require.InDelta(t, g.Norm[step], report.Norm, 2e-3*g.Norm[step]+1e-4, "step %d", step)
		if step > 0 { // at first margins are rounding errors there, and zeros here
			require.InDelta(t, g.Ahead[step], before.Accuracy, 1e-6)
		}
		require.InDelta(t, g.Margin[step], before.Margin, 1e-3*math.Abs(g.Margin[step])+1e-4)
	}
	require.Nil(t, p.taken())
}

// joined returns a micro-batch of the pairs of several.
func joined(list []dataset.Batch) (b dataset.Batch) {
	b.Starts = []int{0}
	for _, x := range list {
		n := len(b.Tokens)
		b.Tokens, b.Labels, b.Pairs = append(b.Tokens, x.Tokens...), append(b.Labels, x.Labels...), append(b.Pairs, x.Pairs...)
		for _, at := range x.Starts[1:] {
			b.Starts = append(b.Starts, n+at)
		}
	}
	return b
}

// pairs writes a file of preferences.
func pairs(t testing.TB, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"prompt": "say %c: ", "chosen": "%[1]c %[1]c", "rejected": "%c x"}`+"\n", letters[i%26], letters[(i+7)%26])
	}
	name := filepath.Join(t.TempDir(), "pairs.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

//check:not bits32
func TestTunePreferences(t *testing.T) {
	model, data := publish(t), pairs(t, 60)
	for _, flags := range [][]string{
		{}, {"-lora", "4", "-base", "nf4", "-label-smoothing", "0.1"}, {"-compute", "f16", "-tiles", "2"}, {"-full", "-compute", "f32", "-memory", "1GiB"}, {"-full", "-fold"},
		{"-full", "-optimizer", "apollo"}, {"-base", "nf4", "-disk", "1GiB"}, {"-dora", "-dropout", "0.1"}, {"-adapter", "pissa", "-loraplus-ratio", "4"},
		{"-adapter", "loftq", "-lora", "4"}, {"-adapter", "vera", "-lora", "24"}, {"-modules-to-save", "norm", "-adapter", "lora-fa"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := append([]string{"tune", "-model", model, "-data", data, "-o", out, "-dpo", "0.5", "-epochs", "2", "-lr", "0.005", "-batch", "6", "-held-out", "0.1", "-json"}, flags...)
			status, stdout, errs := snugged(args...)
			require.Zero(t, status, "%v: %s", flags, errs)
			require.Contains(t, stdout, "54 pairs to train on and 6 held out, answers of 10 tokens at most")
			r := lastLine(t, stdout)
			require.InDelta(t, math.Ln2, r.LossFirst, 1e-12, "the model is the reference")
			require.Equal(t, &preference{}, r.First)
			require.Less(t, r.LossLast, 0.95*r.LossFirst, flags)
			require.GreaterOrEqual(t, r.Last.Accuracy, 0.5, flags)
			require.Positive(t, r.Last.Margin, flags)
			require.LessOrEqual(t, r.Measured, r.Predicted, "%v: %s", flags, stdout)
			require.Greater(t, float64(r.Measured), 0.9*float64(r.Predicted), "%v: %s", flags, stdout)
		})
	}
}

// TestTunePreferencesGoOn: a run goes on to the same bits under another limit, where its reference is computed again, and
// not with another beta. That it measures the loss between steps changes nothing.
//
//check:not bits32
func TestTunePreferencesGoOn(t *testing.T) {
	model, data := publish(t), pairs(t, 25)
	for _, flags := range [][]string{{"-adapter", "olora", "-lora", "2", "-dropout", "0.1"}, {"-full"}} {
		dir := t.TempDir()
		saved := filepath.Join(dir, "saved")
		run := func(out string, more ...string) (int, string, string) {
			args := []string{"tune", "-model", model, "-data", data, "-o", filepath.Join(dir, out), "-steps", "8", "-batch", "5", "-lr", "0.01", "-held-out", "0.1",
				"-save-every", "3", "-checkpoint", saved, "-json"}
			return snugged(append(append(args, flags...), more...)...)
		}
		status, out, errs := run("one", "-dpo", "0.3")
		require.Zero(t, status, errs)
		one := lastLine(t, out)
		require.NoError(t, os.RemoveAll(filepath.Join(saved, "step-00000008")))
		status, _, errs = run("two", "-dpo", "0.1")
		require.Equal(t, 1, status)
		require.Contains(t, errs, "it is of another run: dpo is 0.3 there, 0.1 here")
		status, out, errs = run("two", "-dpo", "0.3", "-memory", "1GiB", "-eval-every", "7")
		require.Zero(t, status, errs)
		require.Contains(t, out, "going on from step 6 of 8")
		two := lastLine(t, out)
		require.Equal(t, []any{one.Loss, one.LossLast, one.Last}, []any{two.Loss, two.LossLast, two.Last})
		require.Nil(t, two.First)
		require.Len(t, two.Between, 1)
		name := map[bool]string{true: "model.safetensors", false: "adapter_model.safetensors"}[flags[0] == "-full"]
		var files [2][]byte
		for i, out := range []string{"one", "two"} {
			var err error
			files[i], err = os.ReadFile(filepath.Join(dir, out, name))
			require.NoError(t, err)
		}
		require.Equal(t, files[0], files[1])
	}
}

// TestTunePreferencesRefused: bad flags and data are one line and status 2.
//
//check:not bits32
func TestTunePreferencesRefused(t *testing.T) {
	model, data, out := publish(t), pairs(t, 5), filepath.Join(t.TempDir(), "out")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"-dpo 0: want a number above 0, up to 1000, such as 0.1", []string{"-dpo", "0"}},
		{"-dpo -1: want", []string{"-dpo", "-1"}},
		{"-dpo NaN: want", []string{"-dpo", "NaN"}},
		{"-dpo Inf: want", []string{"-dpo", "Inf"}},
		{"-z-loss is a term of the loss of tokens", []string{"-dpo", "0.1", "-z-loss", "1e-4"}},
		{"-label-smoothing 0.5: with -dpo want less than 0.5", []string{"-dpo", "0.1", "-label-smoothing", "0.5"}},
		{"line 1: the row has chosen and rejected answers, which are for preferences: tune -dpo", nil},
		{"line 1: the row has no chosen and rejected answers", []string{"-dpo", "0.1", "-data", chats(t, 3)}},
	} {
		t.Run(c.want, func(t *testing.T) {
			status, stdout, errs := snugged(append([]string{"tune", "-model", model, "-o", out}, orData(data, c.args)...)...)
			require.Equal(t, 2, status, "%s: %s", c.want, errs)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			requireNoKind(t, errs)
			require.Empty(t, stdout, c.want)
			require.NoDirExists(t, out)
		})
	}
}

// TestTunePreferencesDryRun: a plan is of pairs, and the run stops before its first step when it is asked to.
//
//check:not bits32
func TestTunePreferencesDryRun(t *testing.T) {
	model, data := publish(t), pairs(t, 20)
	status, out, errs := snugged("tune", "-model", model, "-data", data, "-dpo", "0.1", "-batch", "4", "-dry-run", "-json")
	require.Zero(t, status, errs)
	require.Contains(t, out, "4 samples of 2 sequences of 10 tokens a step")
	require.NotContains(t, out, "reference: ")

	f := tuneFlags{dir: model, files: data, beta: 0.1, batch: 4, compute: "bf16", adapterFlags: adapterFlags{rank: 4}, output: filepath.Join(t.TempDir(), "out"), seed: 1, saveEvery: 1}
	require.NoError(t, f.check())
	m, err := f.gather()
	require.NoError(t, err)
	after, stop := context.WithCancel(context.Background())
	stop()
	r := &tuning{tuneFlags: f, material: m, call: &call{stdout: new(bytes.Buffer)}, stop: console.Stop{After: after, Now: context.Background()}}
	require.NoError(t, r.choose())
	_, err = r.open()
	var interrupted console.Interruption
	require.ErrorAs(t, err, &interrupted)
	require.NoError(t, r.close())
}

// A micro-batch of pairs is divided between pairs.
func TestSplitPairs(t *testing.T) {
	whole := dataset.Batch{Pairs: []int{4, 2, 7}, Batch: transformer.Batch{Tokens: []int32{1, 2, 3, 4, 5, 6, 7, 8}, Labels: []int32{2, 3, 4, 5, 6, 7, 8, 9}, Starts: []int{0, 1, 2, 4, 6, 7, 8}, Draw: 5}}
	a, b, ok := splitBatch(whole)
	require.True(t, ok)
	require.Equal(t, dataset.Batch{Pairs: []int{4}, Batch: transformer.Batch{Tokens: []int32{1, 2}, Labels: []int32{2, 3}, Starts: []int{0, 1, 2}, Draw: 5}}, a)
	require.Equal(t, dataset.Batch{Pairs: []int{2, 7}, Batch: transformer.Batch{Tokens: []int32{3, 4, 5, 6, 7, 8}, Labels: []int32{4, 5, 6, 7, 8, 9}, Starts: []int{0, 2, 4, 5, 6}, Draw: 6}}, b)
	_, _, ok = splitBatch(a)
	require.False(t, ok, "the answers of a pair stay together")
}

// The derivative of the loss of a pair is that of finite differences, and it is finite where exponentials overflow.
func TestPrefer(t *testing.T) {
	for _, s := range []float64{0, 0.1, 0.4} {
		p := &preferences{smoothing: s}
		for _, m := range []float64{-30, -2, -0.1, 0, 0.3, 5, 40} {
			const h = 1e-5
			up, _ := p.prefer(m + h)
			down, _ := p.prefer(m - h)
			_, slope := p.prefer(m)
			require.InDelta(t, (up-down)/(2*h), slope, 1e-8)
		}
		for _, m := range []float64{-1e6, 1e6} {
			loss, slope := p.prefer(m)
			require.InDelta(t, map[bool]float64{true: (1 - s) * 1e6, false: s * 1e6}[m < 0], loss, 1e-3)
			require.InDelta(t, map[bool]float64{true: s - 1, false: s}[m < 0], slope, 1e-12)
		}
	}
}
