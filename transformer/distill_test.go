package transformer

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
)

// logSoftmax returns the logarithms of the softmax of a row of logits.
func logSoftmax(z []float32, temperature float64) []float64 {
	largest, sum := math.Inf(-1), 0.0
	for _, x := range z {
		largest = max(largest, float64(x)/temperature)
	}
	for _, x := range z {
		sum += math.Exp(float64(x)/temperature - largest)
	}
	list := make([]float64, len(z))
	for i, x := range z {
		list[i] = float64(x)/temperature - largest - math.Log(sum)
	}
	return list
}

// distillation returns by its definition the loss of a batch, and the divergence.
func distillation(t testing.TB, m *Model, b Batch, d Distillation) (loss, divergence float64) {
	t.Helper()
	ctx, vocab := context.Background(), m.config.Vocab
	var rows []int32
	for i, label := range b.Labels {
		if label >= 0 {
			rows = append(rows, int32(i))
		}
	}
	student, teacher := make([]float32, len(rows)*vocab), make([]float32, len(rows)*vocab)
	require.NoError(t, m.Logits(ctx, student, b, rows))
	require.NoError(t, d.Teacher.Logits(ctx, teacher, b, rows))
	weight, entropy := 0.0, 0.0
	for i, row := range rows {
		w := 1.0
		if b.Weights != nil {
			w = float64(b.Weights[row])
		}
		z := student[i*vocab:][:vocab]
		p, q := logSoftmax(z, float64(d.Temperature)), logSoftmax(teacher[i*vocab:][:vocab], float64(d.Temperature))
		for j := range p {
			divergence += w * math.Exp(q[j]) * (q[j] - p[j])
		}
		entropy -= w * logSoftmax(z, 1)[b.Labels[row]]
		weight += w
	}
	share, t2 := float64(d.Weight), math.Pow(float64(d.Temperature), 2)
	return ((1-share)*entropy + share*t2*divergence) / weight, divergence / weight
}

// TestBackpropDistill: loss and gradients are those of the definition, whatever the heads, on every device.
func TestBackpropDistill(t *testing.T) {
	ctx := context.Background()
	wider := tiny()
	wider.Dim, wider.Hidden, wider.Layers, wider.Windows, wider.Tied = 24, 20, 1, []int{0}, false
	capped := tinyGemma()
	capped.Vocab = tiny().Vocab
	packed := someBatch(8, 11, 1, 11)
	packed.Sequences, packed.Starts = 0, []int{0, 1, 6, 11}
	weighted := someBatch(7, 11, 2, 9)
	for i := range weighted.Labels {
		weighted.Weights = append(weighted.Weights, float32(i%3)*0.7)
	}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for name, teacher := range map[string]*Config{"wider": wider, "capped": capped} {
			for i, b := range []Batch{packed, weighted} {
				m := newTiny(t, tiny(), Options{Seed: 3, LossRows: 4, LossClasses: 4, Device: p.Dev})
				d := Distillation{Teacher: newTiny(t, teacher, Options{Seed: 9, Device: p.Dev, LossRows: 1}), Weight: 0.7, Temperature: 2}
				if i == 1 {
					d.Weight, d.Temperature = 1, 1.5
				}
				var loss fused.Loss
				grads := gradientsOf(t, m, func(w Window) (err error) {
					loss, err = m.BackpropDistill(ctx, b, 1, d, w)
					return err
				})
				want, divergence := distillation(t, m, b, d)
				require.InEpsilon(t, want, loss.Mean(), 1e-5, name)
				require.InEpsilon(t, b.Weight(), loss.Weight, 1e-6)
				kl, err := m.Divergence(ctx, b, d)
				require.NoError(t, err)
				require.InEpsilon(t, divergence, kl.Mean(), 1e-4, name)
				require.Equal(t, loss.Targets, kl.Targets)
				if p.Dev != nil { // differences take a while
					continue
				}
				for _, param := range m.Params() {
					v := param.Value.Float32s()
					for j := 0; j < len(v); j += 1 + len(v)/3 {
						at := func(x float32) float64 {
							old := v[j]
							defer func() { v[j] = old }()
							v[j] += x
							loss, _ := distillation(t, m, b, d)
							return loss
						}
						const h = 1.0 / 256
						want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
						require.InDelta(t, want, grads[param.Name][j], 2e-3*(1+math.Abs(want)), "%s: %s[%d]", name, param.Name, j)
					}
				}
			}
		}
	})
}

// A small share of the divergence leaves the gradients of the cross-entropy, with its smoothing; a student that is its
// teacher has none of the divergence; and the calls leave no tensor in use and allocate nothing.
func TestBackpropDistillLimits(t *testing.T) {
	ctx, b := context.Background(), someBatch(7, 11, 2, 9)
	o := Options{Seed: 3, Smoothing: 0.1, ZLoss: 1e-3}
	m, twin := newTiny(t, tiny(), o), newTiny(t, tiny(), o)
	want := gradients(t, m, b)
	some := func(share float32) map[string][]float32 {
		return gradientsOf(t, m, func(w Window) error {
			_, err := m.BackpropDistill(ctx, b, 1, Distillation{Teacher: twin, Weight: share}, w)
			return err
		})
	}
	for name, g := range some(1e-7) {
		require.InDeltaSlice(t, want[name], g, 1e-5, name)
	}
	for name, g := range some(1) {
		require.InDeltaSlice(t, make([]float32, len(g)), g, 1e-6, name)
	}
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	d := Distillation{Teacher: newTiny(t, tiny(), Options{Seed: 4}), Weight: 0.5, Temperature: 3}
	kerneltest.NoAllocs(t, func() {
		if _, err := m.BackpropDistill(ctx, b, 1, d, w); err != nil {
			panic(err)
		}
	})
	require.Zero(t, m.pass.Used()+d.Teacher.pass.Used())
	require.Nil(t, m.distill.Teacher)

	// A student with adapters over 4 bits, whose head is frozen, and a teacher in 4 bits of another type.
	student := newTiny(t, tiny(), Options{Seed: 3, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}})
	d.Teacher = newTiny(t, tiny(), Options{Seed: 5, DType: snug.BF16, Base: qlora.FP4})
	grads := gradientsOf(t, student, func(w Window) error { _, err := student.BackpropDistill(ctx, b, 1, d, w); return err })
	require.NotContains(t, grads, student.head.Name)
	nobody := b
	nobody.Labels = make([]int32, len(b.Labels))
	for i := range nobody.Labels {
		nobody.Labels[i] = -1
	}
	loss, err := m.BackpropDistill(ctx, nobody, 1, d, refusing{})
	require.NoError(t, err)
	require.Zero(t, loss)
}

func refused(t testing.TB, err, want error, says string) {
	t.Helper()
	require.ErrorIs(t, err, want)
	require.ErrorContains(t, err, says)
}

func TestDistillErrors(t *testing.T) {
	ctx, b := context.Background(), someBatch(7, 11, 2, 9)
	m, teacher, closed := newTiny(t, tiny(), Options{}), newTiny(t, tiny(), Options{Seed: 2}), newTiny(t, tiny(), Options{})
	require.NoError(t, closed.Close())
	other := tiny()
	other.Vocab = 13
	larger := newTiny(t, other, Options{})
	short := b
	short.Labels = b.Labels[1:]
	hot := b
	hot.Temperature = 1
	nan := float32(math.NaN())
	for _, c := range []struct {
		d    Distillation
		b    Batch
		want error
		says string
	}{
		{Distillation{Weight: 1}, b, snug.ErrConfig, "the teacher is nil"},
		{Distillation{Teacher: m, Weight: 1}, b, snug.ErrConfig, "the teacher is the student"},
		{Distillation{Teacher: new(Model), Weight: 1}, b, snug.ErrConfig, "the teacher: the model is closed"},
		{Distillation{Teacher: closed, Weight: 1}, b, snug.ErrConfig, "the teacher: the model is closed"},
		{Distillation{Teacher: larger, Weight: 1}, b, snug.ErrShape, "a vocabulary of 13 tokens, want the student's 11"},
		{Distillation{Teacher: teacher, Weight: 1, Temperature: -1}, b, snug.ErrConfig, "the Temperature is -1"},
		{Distillation{Teacher: teacher, Weight: 1, Temperature: nan}, b, snug.ErrConfig, "the Temperature is NaN"},
		{Distillation{Teacher: teacher, Weight: 1}, short, snug.ErrShape, "labels"},
		{Distillation{Teacher: teacher, Weight: 1}, hot, snug.ErrConfig, "Temperature"},
	} {
		_, err := m.BackpropDistill(ctx, c.b, 1, c.d, newBegun(t, m))
		refused(t, err, c.want, c.says)
		_, err = m.Divergence(ctx, c.b, c.d)
		refused(t, err, c.want, c.says)
	}
	for _, share := range []float32{0, -1, 1.5, nan} {
		_, err := m.BackpropDistill(ctx, b, 1, Distillation{Teacher: teacher, Weight: share}, newBegun(t, m))
		refused(t, err, snug.ErrConfig, "the Weight of the divergence is")
	}
	d := Distillation{Teacher: teacher, Weight: 0.5}
	_, err := m.BackpropDistill(ctx, b, 1, d, nil)
	refused(t, err, snug.ErrConfig, "the window is nil")
	_, err = m.BackpropDistill(ctx, b, nan, d, newBegun(t, m))
	refused(t, err, snug.ErrConfig, "scale is NaN")
	var none context.Context
	_, err = m.BackpropDistill(none, b, 1, d, newBegun(t, m))
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = m.BackpropDistill(ctx, b, 1, d, newBegun(t, m))
	require.NoError(t, err, "both are as before")
}
