package gomlx_test

import (
	stdcontext "context"
	"fmt"
	"io"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/stretchr/testify/require"
)

// flaky is a dataset with an error or a panic at certain batches, once each.
type flaky struct {
	*stream
	n     int // batches asked for
	fails map[int]func() error
}

func (f *flaky) Yield() (any, []*tensors.Tensor, []*tensors.Tensor, error) {
	f.n++
	if do := f.fails[f.n]; do != nil {
		delete(f.fails, f.n)
		if err := do(); err != nil {
			return nil, nil, nil, err
		}
	}
	return f.stream.Yield()
}

// TestRunFails: after an error of the dataset Run goes on, and leaves out as many batches as before.
func TestRunFails(t *testing.T) {
	clean, ctx := newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{})
	require.NoError(t, clean.Run(t.Context(), &stream{end: 7}, 6, 3, nil))
	want := values(t, ctx)

	o := gomlx.Options{Checkpoints: gomlx.Checkpoints{Dir: t.TempDir()}}
	tr, _ := newTrainer(t, noisy, batch(0, 0, rows), o)
	require.NoError(t, tr.Run(t.Context(), &stream{end: 7}, 3, 3, nil))
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())
	for name, fail := range map[string]func() error{"error": func() error { return io.ErrUnexpectedEOF }, "panic": func() error { panic("no data") }} {
		for _, at := range []int{1, 2, 5, 9} { // 9 batches are left out
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				tr, ctx := newTrainer(t, noisy, batch(0, 0, rows), o)
				ds := &flaky{stream: &stream{end: 7}, fails: map[int]func() error{at: fail}}
				require.Error(t, tr.Run(t.Context(), ds, 6, 3, nil))
				require.Equal(t, 3, tr.Step())
				require.NoError(t, tr.Run(t.Context(), ds, 6, 3, nil))
				require.Equal(t, want, values(t, ctx))
				require.NoError(t, tr.Close())
			})
		}
	}

	// The batches of a step that fails are gone: 18 batches and those of the failed step.
	tr, _ = newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{})
	ds := &flaky{stream: &stream{end: 70}, fails: map[int]func() error{9: func() error { return io.ErrUnexpectedEOF }}}
	require.ErrorIs(t, tr.Run(t.Context(), ds, 6, 3, nil), io.ErrUnexpectedEOF)
	require.Equal(t, 2, tr.Step())
	require.NoError(t, tr.Run(t.Context(), ds, 6, 3, nil))
	require.Equal(t, 6, tr.Step())
	require.Equal(t, 20, ds.at)
}

// TestRunCancelled: the end of the context ends Run where it leaves out batches, too.
func TestRunCancelled(t *testing.T) {
	o := gomlx.Options{Checkpoints: gomlx.Checkpoints{Dir: t.TempDir()}}
	tr, _ := newTrainer(t, noisy, batch(0, 0, rows), o)
	require.NoError(t, tr.Run(t.Context(), &stream{end: 7}, 5, 1, nil))
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())
	tr, _ = newTrainer(t, noisy, batch(0, 0, rows), o)
	ctx, cancel := stdcontext.WithCancel(t.Context())
	ds := &flaky{stream: &stream{end: 7}, fails: map[int]func() error{2: func() error { cancel(); return nil }}}
	require.ErrorIs(t, tr.Run(ctx, ds, 6, 1, nil), stdcontext.Canceled)
	require.Equal(t, 2, ds.n)
}

// TestRunArguments: what a dataset throws is an error, and so is a context or a dataset that is nil.
func TestRunArguments(t *testing.T) {
	tr, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{})
	require.ErrorIs(t, tr.Run(nil, &stream{end: 3}, 1, 1, nil), snug.ErrConfig) //lint:ignore SA1012 it must be an error
	var none *stream
	require.ErrorIs(t, tr.Run(t.Context(), none, 1, 1, nil), snug.ErrConfig)
	require.ErrorIs(t, tr.Run(t.Context(), owner{&stream{end: 3}}, 1, 1, nil), snug.ErrConfig)
	require.ErrorIs(t, tr.Run(t.Context(), nameless{&stream{}}, 1, 1, nil), snug.ErrConfig)
	require.Equal(t, 0, tr.Step())
}

type owner struct{ *stream }

func (owner) IsOwnershipTransferred() bool { panic("owner") }

type nameless struct{ *stream }

func (nameless) Name() string { panic("no name") }

// autoencoder is a dataset whose label is the input.
type autoencoder struct{ *stream }

func (a autoencoder) Yield() (any, []*tensors.Tensor, []*tensors.Tensor, error) {
	s, x, _, err := a.stream.Yield()
	return s, x, x, err
}

// TestRunSharedTensors: one tensor as an input and a label is finalized once.
func TestRunSharedTensors(t *testing.T) {
	b, err := gomlx.Next(autoencoder{&stream{end: 3}})
	require.NoError(t, err)
	tr, _ := newTrainer(t, func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		return []*graph.Node{graph.Mul(perceptron(ctx, s, x)[0], graph.OnesLike(x[0]))}
	}, b, gomlx.Options{})
	require.NoError(t, tr.Run(t.Context(), autoencoder{&stream{end: 3}}, 3, 2, nil))
}

// TestZeroTrainer: the methods of a Trainer that New did not make return errors or zeros.
func TestZeroTrainer(t *testing.T) {
	for _, tr := range []*gomlx.Trainer{nil, {}} {
		_, err := tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, rows)})
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = tr.Evaluate(t.Context(), each())
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorIs(t, tr.Run(t.Context(), &stream{end: 1}, 1, 1, nil), snug.ErrConfig)
		require.ErrorIs(t, tr.Save(t.Context()), snug.ErrConfig)
		require.ErrorIs(t, tr.Average(), snug.ErrConfig)
		require.NoError(t, tr.Close())
		require.Zero(t, tr.Step())
		require.Zero(t, tr.Bytes())
		require.Zero(t, tr.Scale())
		require.Nil(t, tr.Notes())
		tr.SetNotes("notes")
		tr.ForgetLostUpdates()
		for range tr.LostUpdates() {
			t.Fatal("a variable")
		}
	}
	tr, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{})
	_, err := tr.Evaluate(t.Context(), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, tr.Close())
	require.NoError(t, tr.Close())
	require.Zero(t, tr.Bytes())
	_, err = tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, rows)})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, tr.Run(t.Context(), &stream{end: 3}, 2, 1, nil), snug.ErrConfig)
}
