package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/text"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/stretchr/testify/require"
)

// micro is a model small enough for finite differences.
func micro(on techniques, low snug.DType) config {
	return config{
		preset: preset{
			name: "micro", vocab: 13, dim: 8, layers: 3, heads: 2, context: 6, microBatch: 2, window: 2,
			steps: 4, lr: 1e-2, lossRows: 5, chunk: 512, hostShare: 4, heldOut: 2, sampled: 4,
		},
		on: on, policy: policyOf(on, low), seed: 7,
	}
}

// words13 is a text of 13 tokens without meaning.
func words13(n int) *text.Corpus {
	data := &text.Corpus{Vocabulary: text.NewVocabulary(nil, 256)}
	for i := range n {
		data.Train = append(data.Train, uint16(text.Mix(uint64(i))%13))
	}
	data.Held = data.Train[n/2:]
	return data
}

func trainerOf(t *testing.T, c config) *trainer {
	t.Helper()
	tr, err := newTrainer(snug.CPU(), c, words13(400), t.TempDir(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// gradientsOf runs the micro-batches of one window over 4 fixed sequences and
// returns the gradients of the mean loss by name, and the loss.
func gradientsOf(t *testing.T, tr *trainer) (map[string][]float32, float64) {
	t.Helper()
	inputs, targets := fixedBatch(tr.config)
	b := tr.batch()
	var list []accum.Param
	for _, p := range tr.model.Params() {
		list = append(list, accum.Param{Name: p.Name, Len: p.Len()})
	}
	w, err := accum.New(list, accum.Options{Schedule: accum.Constant(b.Window)})
	require.NoError(t, err)
	n := b.Micro * tr.context
	for i := range b.Window {
		require.NoError(t, w.Begin(float64(n)))
		micro := transformer.Batch{Tokens: inputs[i*n : (i+1)*n], Labels: targets[i*n : (i+1)*n], Sequences: b.Micro}
		_, err := tr.model.Backprop(context.Background(), micro, 1, w)
		require.NoError(t, err)
		_, err = w.End()
		require.NoError(t, err)
	}
	sum, err := tr.losses.Take()
	require.NoError(t, err)
	out := map[string][]float32{}
	for name, g := range w.Gradients() {
		out[name] = slices.Clone(g.Float32s())
	}
	return out, sum / float64(len(targets))
}

func fixedBatch(c config) (inputs, targets []int32) {
	for i := range c.microBatch * c.window {
		inputs, targets = text.AppendSequence(inputs, targets, words13(400).Train, c.context, uint64(i*c.context))
	}
	return inputs, targets
}

// amplify makes the weights large enough that no layer is nearly linear.
func amplify(t *testing.T, tr *trainer) {
	start := 0
	for _, p := range tr.model.Params() {
		w := make([]float32, p.Len())
		require.NoError(t, amp.Cast(w, p.Value))
		for i := range w {
			w[i] += float32(math.Sin(float64(start+i))) * 0.3
		}
		require.NoError(t, amp.Cast(p.Value, w))
		start += p.Len()
	}
}

func referenceOf(t *testing.T, tr *trainer) *reference {
	r := &reference{tr.config, map[string][]float64{}}
	for _, p := range tr.model.Params() {
		w := make([]float32, p.Len())
		require.NoError(t, amp.Cast(w, p.Value))
		for _, x := range w {
			r.w[p.Name] = append(r.w[p.Name], float64(x))
		}
	}
	return r
}

// Gradients of every parameter agree with central differences of the float64
// reference, for every technique that does not round to 16 bits.
func TestGradientsAgainstFiniteDifferences(t *testing.T) {
	plain := trainerOf(t, micro(techniques{}, snug.BF16))
	amplify(t, plain)
	ref := referenceOf(t, plain)
	inputs, targets := fixedBatch(plain.config)
	want := finiteDifferences(ref, inputs, targets)
	for _, list := range [][]technique{{}, {useAccum}, {useRemat, useAttention}, {useAccum, useRemat, useAttention}} {
		var on techniques
		for _, i := range list {
			on[i] = true
		}
		t.Run(on.String(), func(t *testing.T) {
			tr := trainerOf(t, micro(on, snug.BF16))
			amplify(t, tr)
			got, loss := gradientsOf(t, tr)
			require.InDelta(t, ref.loss(inputs, targets), loss, 1e-6)
			for name, differences := range want {
				for i, d := range differences {
					require.InDelta(t, d, got[name][i], 1e-6+1e-4*math.Abs(d), "%s[%d]", name, i)
				}
			}
		})
	}
}

// finiteDifferences returns the gradient of some elements of every parameter.
func finiteDifferences(ref *reference, inputs, targets []int32) map[string]map[int]float64 {
	points := 40
	if !kerneltest.Full() {
		points = 5
	}
	want := map[string]map[int]float64{}
	for name, w := range ref.w {
		want[name] = map[int]float64{}
		for i := 0; i < len(w); i += max(1, len(w)/points) {
			const h = 1e-4
			keep := w[i]
			w[i] = keep + h
			up := ref.loss(inputs, targets)
			w[i] = keep - h
			down := ref.loss(inputs, targets)
			w[i] = keep
			want[name][i] = (up - down) / (2 * h)
		}
	}
	return want
}

// In 16 bits the gradients point where those in float32 do.
func TestLowPrecisionGradients(t *testing.T) {
	for _, low := range []snug.DType{snug.BF16, snug.F16} {
		on := allTechniques()
		tr := trainerOf(t, micro(on, low))
		amplify(t, tr)
		got, _ := gradientsOf(t, tr)

		plain := trainerOf(t, micro(techniques{}, low))
		for i, p := range plain.model.Params() {
			require.NoError(t, amp.Cast(p.Value, tr.model.Params()[i].Value))
		}
		want, _ := gradientsOf(t, plain)
		dot, a, b := 0.0, 0.0, 0.0
		for name, g := range want {
			for i, x := range g {
				y := got[name][i]
				dot += float64(x) * float64(y)
				a += float64(x) * float64(x)
				b += float64(y) * float64(y)
			}
		}
		bound := map[snug.DType]float64{snug.BF16: 0.9995, snug.F16: 0.99999}[low]
		require.Greater(t, dot/math.Sqrt(a*b), bound, "cosine, %v", low)
	}
}

func TestRematerializationKeepsEveryBit(t *testing.T) {
	for _, low := range []snug.DType{snug.F32, snug.BF16} {
		on := allTechniques()
		on[useAMP] = low != snug.F32
		with := trainerOf(t, micro(on, low))
		on[useRemat] = false
		without := trainerOf(t, micro(on, low))
		a, lossA := gradientsOf(t, with)
		b, lossB := gradientsOf(t, without)
		require.Equal(t, lossB, lossA)
		require.Equal(t, b, a)
		require.Less(t, peakOf(with)[meter.Activations], peakOf(without)[meter.Activations])
	}
}

// step trains one step.
func step(ctx context.Context, tr *trainer) (train.Report, error) {
	r, err := tr.Train(ctx, tr.batches(tr.Step()))
	return r, errors.Join(err, tr.count())
}

// trainAll runs every step and returns the bits of the losses.
func trainAll(t *testing.T, tr *trainer) (losses []float64) {
	for tr.Step() < tr.steps {
		r, err := step(context.Background(), tr)
		require.NoError(t, err)
		losses = append(losses, r.Loss)
	}
	held, err := tr.Evaluate(context.Background(), tr.heldOut)
	require.NoError(t, err)
	return append(losses, held.Sum/float64(held.Targets))
}

func TestSameLossesForAnyGOMAXPROCS(t *testing.T) {
	for _, on := range []techniques{{}, allTechniques()} {
		var want []float64
		for _, procs := range []int{1, 2, 3} {
			old := runtime.GOMAXPROCS(procs)
			got := trainAll(t, trainerOf(t, micro(on, snug.BF16)))
			runtime.GOMAXPROCS(old)
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, "%v with GOMAXPROCS %d", on, procs)
		}
	}
}

func TestPagedStateChangesNothing(t *testing.T) {
	on := allTechniques()
	want := trainAll(t, trainerOf(t, micro(on, snug.BF16)))
	on[useOffload] = false
	require.Equal(t, want, trainAll(t, trainerOf(t, micro(on, snug.BF16))))
}

// Every component's measured peak is what was predicted, for every technique
// set that -compare runs and for all but one.
func TestPredictionIsExact(t *testing.T) {
	list := sets()
	for i := range numTechniques {
		on := allTechniques()
		on[i] = false
		list = append(list, on)
	}
	tiny, err := presetNamed("tiny")
	require.NoError(t, err)
	tiny.steps = 2
	for _, on := range list {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			c := config{preset: tiny, on: on, policy: policyOf(on, snug.BF16), seed: 1}
			tr := trainerOf(t, c)
			trainAll(t, tr)
			_, want, err := c.predict()
			require.NoError(t, err)
			for part := range components {
				if part == meter.State && on[useOffload] { // pages come and go
					require.LessOrEqual(t, peakOf(tr)[part], want[part])
					require.InEpsilon(t, want[part], peakOf(tr)[part], 0.05, part)
					continue
				}
				require.Equal(t, want[part], peakOf(tr)[part], part)
			}
			require.Zero(t, heldBy(tr)[meter.Activations], "every activation is given back")
		})
	}
}

// An overflow of the loss scale skips the step: the scale shrinks and nothing
// else changes.
func TestOverflowSkipsTheStep(t *testing.T) {
	tr := trainerOf(t, micro(allTechniques(), snug.F16))
	amplify(t, tr)
	before := referenceOf(t, tr).w
	scale, first := tr.Scale(), tr.model.Params()[0]
	first.Value.Float16s()[0] = snug.Float16(0x7c00) // an infinity among the weights
	r, err := step(context.Background(), tr)
	require.NoError(t, err)
	require.NotEmpty(t, r.Skipped)
	require.Equal(t, scale/2, tr.Scale())
	first.Value.Float16s()[0] = 0
	after := referenceOf(t, tr).w
	before[first.Name][0] = 0
	require.Equal(t, before, after)
}

func TestNonFiniteGradientWithoutScalerIsAnError(t *testing.T) {
	tr := trainerOf(t, micro(techniques{}, snug.BF16))
	tr.model.Params()[3].Value.Float32s()[1] = float32(math.NaN())
	_, err := step(context.Background(), tr)
	require.ErrorIs(t, err, snug.ErrNonFinite)
}

func TestInterruptedTrainingStops(t *testing.T) {
	tr := trainerOf(t, micro(allTechniques(), snug.BF16))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := step(ctx, tr)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, heldBy(tr)[meter.Activations])
}

// peakOf returns the peak of every component.
func peakOf(t *trainer) meter.Bytes {
	_, peak := t.meter.Held()
	return peak[meter.OnDevice]
}

func heldBy(t *trainer) meter.Bytes {
	now, _ := t.meter.Held()
	return now[meter.OnDevice]
}

// TestTypesOfOperations: the type of the weights is the type in which torch's autocast computes the
// operations of the model from them, and from their results. Losses are sums in float32, as those of
// package fused are.
func TestTypesOfOperations(t *testing.T) {
	for _, low := range []snug.DType{snug.BF16, snug.F16} {
		for _, on := range []techniques{allTechniques(), {}} {
			want := policyOf(on, low).Compute
			require.Equal(t, on[useAMP], want == low)
			for _, p := range trainerOf(t, micro(on, low)).model.Params() {
				require.Equal(t, want, p.Value.DType())
			}
			typeOf := func(op string, inputs ...snug.DType) snug.DType {
				dt, err := amp.CPUOps().Type(op, want, inputs...)
				require.NoError(t, err)
				return dt
			}
			for _, op := range []string{"embedding", "layer_norm", "linear", "scaled_dot_product_attention", "softmax", "gelu", "add"} {
				require.Equal(t, want, typeOf(op, want), op)
			}
			require.Equal(t, want, typeOf("linear", snug.F32, snug.F32))
			require.Equal(t, snug.F32, typeOf("cross_entropy_loss", want))
		}
	}
}
