package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// averaging is a toy with a running average of the samples that it has seen, which it changes before it may fail.
type averaging struct {
	*toy
	average []float32
	calls   int
}

func newAveraging(t testing.TB) *averaging {
	return &averaging{toy: newToy(t, snug.F32, snug.F32), average: []float32{1, 1}}
}

func (a *averaging) Buffers() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield("average", snug.ViewOf(a.average)) }
}

func (a *averaging) Backprop(ctx context.Context, b []int, scale float32, w Window) (fused.Loss, error) {
	a.calls++
	a.average[0] = a.average[0]*3/4 + float32(b[0])/4
	a.average[1]++
	return a.toy.Backprop(ctx, b, scale, w)
}

// TestBuffers: each micro-batch of a step that is made changes buffers once, also where the step fails first, or has passes that only
// measure.
func TestBuffers(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Options
		step  [][]int
		calls int
	}{
		{name: "window", step: [][]int{{1, 2}, {3}}, calls: 2},
		{name: "measured before", o: Options{Gradients: plan.InBackward, Clip: 1e-3}, step: [][]int{{1, 2}}, calls: 2},
		{name: "folded", o: Options{Gradients: plan.Folded, Clip: 1e-3}, step: [][]int{{1, 2}, {3}}, calls: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newAveraging(t)
			c.o.Schedule = Constant(1e-3)
			tr, err := New[[]int](m, c.o)
			require.NoError(t, err)
			want := []float32{1, 1}
			for range 3 {
				m.fail = errors.New("interrupted")
				_, err = tr.Train(t.Context(), c.step)
				require.ErrorIs(t, err, m.fail)
				require.Equal(t, want, m.average)
				m.fail, m.calls = nil, 0
				_, err = tr.Train(t.Context(), c.step)
				require.NoError(t, err)
				require.Equal(t, c.calls, m.calls)
				for _, b := range c.step {
					want = []float32{want[0]*3/4 + float32(b[0])/4, want[1] + 1}
				}
				require.Equal(t, want, m.average)
			}
			require.NoError(t, tr.Close())
		})
	}
}

// TestBuffersDivided: micro-batches that are divided when memory runs out count once each.
func TestBuffersDivided(t *testing.T) {
	m := newAveraging(t)
	tr, err := New[[]int](m, Options{Schedule: Constant(1e-3)})
	require.NoError(t, err)
	require.NoError(t, tr.SplitBy(func(b []int) (x, y []int, ok bool) { return b[:len(b)/2], b[len(b)/2:], len(b) > 1 }))
	m.most = 2
	_, err = tr.Train(t.Context(), [][]int{{1, 2}, {3, 4, 5, 6}})
	require.NoError(t, err)
	require.Equal(t, float32(1+4), m.average[1])
	require.NoError(t, tr.Close())
}

// TestBuffersRanks: after a step all ranks have the mean of their averages, whatever they have seen, and checkpoints have it.
func TestBuffersRanks(t *testing.T) {
	for _, shard := range []plan.Sharding{plan.Replicate, plan.ShardGradients} {
		dir := t.TempDir()
		for resumed := range 2 {
			reducers, err := accum.Local(t.Context(), 3)
			require.NoError(t, err)
			errs := make(chan error)
			for rank, r := range reducers {
				go func() {
					errs <- func() error {
						m := newAveraging(t)
						tr, err := New[[]int](m, Options{Schedule: Constant(1e-3), Checkpoints: Checkpoints{Dir: dir}, Ranks: Ranks{Reducer: r, Shard: shard}})
						if err != nil {
							return err
						}
						defer tr.Close()
						want := float32(1)
						if resumed > 0 {
							want += 2 // of ranks with 3, 2 and 1 micro-batches
						}
						if m.average[1] != want {
							return fmt.Errorf("rank %d has %v, want %v", rank, m.average, want)
						}
						if _, err := tr.Train(t.Context(), [][]int{{1}, {2}, {3}}[rank:]); err != nil {
							return err
						}
						if m.average[1] != want+2 {
							return fmt.Errorf("rank %d has %v after a step, want %v", rank, m.average, want+2)
						}
						return tr.Save(t.Context())
					}()
				}()
			}
			for range reducers {
				require.NoError(t, <-errs)
			}
		}
	}
	reducers, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	errs := make(chan error)
	for rank, r := range reducers {
		go func() {
			m := newAveraging(t)
			m.average[0] = float32(rank)
			_, err := New[[]int](m, Options{Schedule: Constant(1e-3), Ranks: Ranks{Reducer: r}})
			errs <- err
		}()
	}
	for range reducers {
		require.ErrorContains(t, <-errs, "other values of parameters than rank 0, or of buffers")
	}
}

// TestBuffersSaved: a checkpoint has the buffers of a model that has some, and a damaged part changes nothing.
func TestBuffersSaved(t *testing.T) {
	m := newAveraging(t)
	alone, err := newRanks(nil)
	require.NoError(t, err)
	tr := &Trainer[[]int]{model: m, ranks: alone}
	require.NoError(t, tr.collectBuffers())
	var b bytes.Buffer
	m.average = append(m.average[:0], 3, 4)
	require.NoError(t, tr.buffers.write(&b))
	m.average[0] = 7
	for i := range b.Bytes() {
		damaged := bytes.Clone(b.Bytes())
		damaged[i] ^= 0x10
		require.ErrorIs(t, tr.buffers.read(bytes.NewReader(damaged)), snug.ErrCorrupt)
		require.ErrorIs(t, tr.buffers.read(bytes.NewReader(damaged[:i])), snug.ErrCorrupt)
		require.Equal(t, []float32{7, 4}, m.average)
	}
	require.NoError(t, tr.buffers.read(bytes.NewReader(b.Bytes())))
	require.Equal(t, []float32{3, 4}, m.average)
	tr.buffers.list[0].name = "other"
	require.ErrorIs(t, tr.buffers.read(bytes.NewReader(b.Bytes())), snug.ErrCorrupt)

	dir := t.TempDir()
	open := func(m Model[[]int]) (*Trainer[[]int], error) {
		return New(m, Options{Optimizer: quant8.SGD{}, Schedule: Constant(1e-3), Checkpoints: Checkpoints{Dir: dir}})
	}
	tr, err = open(m)
	require.NoError(t, err)
	_, err = tr.Train(t.Context(), [][]int{{1}})
	require.NoError(t, err)
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())
	_, err = open(m.toy)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "parts")
	again := newAveraging(t)
	tr, err = open(again)
	require.NoError(t, err)
	require.Equal(t, m.average, again.average)
	require.NoError(t, tr.Close())
}

// TestBuffersOfEmptyPasses: passes that other ranks wait for leave buffers as they are, and what keep noted too.
func TestBuffersOfEmptyPasses(t *testing.T) {
	m := newAveraging(t)
	tr, err := New[[]int](m, Options{Schedule: Constant(1e-3)})
	require.NoError(t, err)
	_, err = tr.Train(t.Context(), [][]int{{1}})
	require.NoError(t, err)
	m.average[0] = 5
	nothing := func() error { return nil }
	into := checkWindow{"w": make([]float32, toyIn*toyOut), "b": make([]float32, toyOut)}
	require.NoError(t, tr.emptyPasses(t.Context(), 2, []int{3}, into, func([]int) error { return nil }, nothing))
	require.Equal(t, 3, m.calls)
	require.Equal(t, []float32{5, 2}, m.average)
	require.NoError(t, tr.buffers.restore())
	require.Equal(t, []float32{1, 1}, m.average)
	require.NoError(t, tr.Close())
}
