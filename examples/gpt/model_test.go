package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
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
func words13(n int) *corpus {
	data := &corpus{vocab: vocabularyOf(nil)}
	for i := range n {
		data.train = append(data.train, uint16(mix(uint64(i))%13))
	}
	data.held = data.train[n/2:]
	return data
}

func trainerOf(t *testing.T, c config) *trainer {
	t.Helper()
	tr, err := newTrainer(snug.CPU(), c, words13(400), t.TempDir(), &checkpoints{})
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
	tr.shape(b.Micro, tr.context)
	n, sum := b.Micro*tr.context, 0.0
	for i := range b.Window {
		require.NoError(t, tr.window.Begin(float64(n)))
		loss, err := tr.backprop(context.Background(), inputs[i*n:(i+1)*n], targets[i*n:(i+1)*n], 1)
		require.NoError(t, err)
		_, err = tr.window.End()
		require.NoError(t, err)
		sum += loss
	}
	out := map[string][]float32{}
	for name, g := range tr.window.Gradients() {
		out[name] = slices.Clone(g.Float32s())
	}
	tr.window.Reset()
	return out, sum / float64(len(targets))
}

func fixedBatch(c config) (inputs, targets []int32) {
	n := c.microBatch * c.window * c.context
	inputs, targets = make([]int32, n), make([]int32, n)
	data := words13(400)
	for lo := 0; lo < n; lo += c.context {
		sequence(inputs[lo:lo+c.context], targets[lo:lo+c.context], data.train, uint64(lo))
	}
	return inputs, targets
}

// amplify makes the weights large enough that no layer is nearly linear.
func amplify(t *testing.T, tr *trainer) {
	for _, p := range tr.params {
		w := make([]float32, p.len())
		require.NoError(t, amp.Cast(w, p.value))
		for i := range w {
			w[i] += float32(math.Sin(float64(p.start+i))) * 0.3
		}
		require.NoError(t, amp.Cast(p.value, w))
	}
}

func referenceOf(t *testing.T, tr *trainer) *reference {
	r := &reference{tr.config, map[string][]float64{}}
	for _, p := range tr.params {
		w := make([]float32, p.len())
		require.NoError(t, amp.Cast(w, p.value))
		for _, x := range w {
			r.w[p.name] = append(r.w[p.name], float64(x))
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
	if testing.Short() {
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
		for i, p := range plain.params {
			require.NoError(t, amp.Cast(p.value, tr.params[i].value))
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
		require.Less(t, peakOf(with)[plan.Activations], peakOf(without)[plan.Activations])
	}
}

// trainAll runs every step and returns the bits of the losses.
func trainAll(t *testing.T, tr *trainer) (losses []float64) {
	for tr.step < tr.steps {
		loss, err := tr.train(context.Background())
		require.NoError(t, err)
		losses = append(losses, loss)
	}
	held, err := tr.heldOutLoss(context.Background())
	require.NoError(t, err)
	return append(losses, held)
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
			want, err := c.predict()
			require.NoError(t, err)
			for part := range components {
				if part == plan.State && on[useOffload] { // pages come and go
					require.LessOrEqual(t, peakOf(tr)[part], want[part])
					require.InEpsilon(t, want[part], peakOf(tr)[part], 0.05, part)
					continue
				}
				require.Equal(t, want[part], peakOf(tr)[part], part)
			}
			require.Zero(t, heldBy(tr)[plan.Activations], "every activation is given back")
		})
	}
}

// An overflow of the loss scale skips the step: the scale shrinks and nothing
// else changes.
func TestOverflowSkipsTheStep(t *testing.T) {
	tr := trainerOf(t, micro(allTechniques(), snug.F16))
	amplify(t, tr)
	before := referenceOf(t, tr).w
	scale := tr.lossScale()
	tr.params[0].value.Float16s()[0] = snug.Float16(0x7c00) // an infinity among the weights
	_, err := tr.train(context.Background())
	require.NoError(t, err)
	require.Equal(t, scale/2, tr.lossScale())
	tr.params[0].value.Float16s()[0] = 0
	after := referenceOf(t, tr).w
	before[tr.params[0].name][0] = 0
	require.Equal(t, before, after)
	require.Zero(t, tr.opt.Steps())
}

func TestNonFiniteGradientWithoutScalerIsAnError(t *testing.T) {
	tr := trainerOf(t, micro(techniques{}, snug.BF16))
	tr.params[3].value.Float32s()[1] = float32(math.NaN())
	_, err := tr.train(context.Background())
	require.ErrorIs(t, err, snug.ErrNonFinite)
}

func TestInterruptedTrainingStops(t *testing.T) {
	tr := trainerOf(t, micro(allTechniques(), snug.BF16))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := tr.train(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, heldBy(tr)[plan.Activations])
}

// peakOf returns the peak of every component.
func peakOf(t *trainer) plan.Bytes {
	_, peak := t.meter.Held()
	return peak[plan.OnDevice]
}

func heldBy(t *trainer) plan.Bytes {
	now, _ := t.meter.Held()
	return now[plan.OnDevice]
}

// TestTypesOfOperations: the policy's low type is for what torch's autocast computes in it,
// and for what reads its results. Losses are sums in float32, as those of package fused are.
func TestTypesOfOperations(t *testing.T) {
	for _, low := range []snug.DType{snug.BF16, snug.F16} {
		for _, on := range []techniques{allTechniques(), {}} {
			want := policyOf(on, low).Compute
			require.Equal(t, on[useAMP], want == low)
			o := &ops{model: &model{config: config{policy: policyOf(on, low)}}}
			for _, op := range []string{"embedding", "layer_norm", "linear", "scaled_dot_product_attention", "softmax", "gelu", "add"} {
				require.Equal(t, want, o.typeOf(op, want), op)
			}
			require.Equal(t, want, o.typeOf("linear", snug.F32, snug.F32))
			require.Equal(t, snug.F32, o.typeOf("cross_entropy_loss", want))
			require.NoError(t, o.err)
		}
	}
}
