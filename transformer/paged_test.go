package transformer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/qlora"
)

// published returns a Config of tiny that can be saved.
func published() *Config {
	c := tiny()
	c.ScoreScale, c.ScoreCap, c.Windows = 0.5, 0, []int{0, 0}
	return c
}

// lossAndGradients returns the loss and the gradients of a batch.
func lossAndGradients(t *testing.T, m *Model, b Batch) (loss float64, grads map[string][]float32) {
	grads = map[string][]float32{}
	for _, p := range m.Params() {
		if p.Trains {
			grads[p.Name] = make([]float32, p.Len())
		}
	}
	l, err := m.Backprop(t.Context(), b, 1, windowFunc(func(name string) (snug.View, snug.Into, error) {
		return snug.ViewOf(grads[name]), snug.Into{Alpha: 1, Beta: 1}, nil
	}))
	require.NoError(t, err)
	return l.Mean(), grads
}

// TestPageFloats: matrices in floats give the same bits from pages and from memory, in training, logits, log-probabilities,
// distillation, generation and files, with adapters of plain LoRA and of PiSSA too.
func TestPageFloats(t *testing.T) {
	adapter := func(init string) *qlora.AdapterOptions { return &qlora.AdapterOptions{Rank: 2, Alpha: 4, Init: init} }
	untied := published()
	untied.Tied = false
	for name, c := range map[string]struct {
		config *Config
		o      Options
	}{
		"qwen3":          {published(), Options{Seed: 3}},
		"untied, bf16":   {untied, Options{Seed: 3, DType: snug.BF16}},
		"gpt2":           {tinyGPT2(GELUTanh), Options{Seed: 3, DType: snug.F16}},
		"adapters":       {published(), Options{Seed: 3, Adapter: adapter("")}},
		"PiSSA":          {tinyGPT2(GELUTanh), Options{Seed: 3, Adapter: adapter("pissa")}},
		"NF4 and floats": {published(), Options{Seed: 3, Base: qlora.NF4, Adapter: adapter("")}},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory := c.o
			inMemory.Pages = nil
			whole, paged := newTiny(t, c.config, inMemory), (*Model)(nil)
			o := c.o
			o.Pages, o.PageFloats = newStore(t), true
			paged = newTiny(t, c.config, o)
			for _, p := range paged.Params() {
				key, dt, n := paged.Paged(p.Name)
				inPages := len(p.Shape) == 2 && p.Quantized == nil && !paged.adapted(&p)
				require.Equal(t, inPages, key != "", p.Name)
				if inPages {
					require.Equal(t, p.Len(), n)
					require.Equal(t, whole.dtype, dt)
					require.Zero(t, p.Value.Len())
				}
			}
			require.Equal(t, whole.Memory().Weights+whole.Memory().Paged, paged.Memory().Weights+paged.Memory().Paged)
			require.Less(t, paged.Memory().Weights, whole.Memory().Weights)

			b := someBatch(5, c.config.Vocab, 2, 7)
			wantLoss, want := lossAndGradients(t, whole, b)
			gotLoss, got := lossAndGradients(t, paged, b)
			require.Equal(t, wantLoss, gotLoss)
			require.Equal(t, want, got)
			both := func(do func(m *Model) any) {
				t.Helper()
				require.Equal(t, do(whole), do(paged))
			}
			both(func(m *Model) any {
				loss, err := m.Evaluate(t.Context(), b)
				require.NoError(t, err)
				return loss
			})
			both(func(m *Model) any {
				logits := make([]float32, 2*c.config.Vocab)
				require.NoError(t, m.Logits(t.Context(), logits, b, nil))
				return logits
			})
			both(func(m *Model) any {
				logp := make([]float32, len(b.Tokens))
				require.NoError(t, m.LogProbs(t.Context(), logp, b))
				return logp
			})
			both(func(m *Model) any {
				loss, err := m.Divergence(t.Context(), b, Distillation{Teacher: newTiny(t, c.config, o)})
				require.NoError(t, err)
				return loss
			})
			both(func(m *Model) any {
				dir := t.TempDir()
				require.NoError(t, m.Save(dir, 0))
				weights, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
				require.NoError(t, err)
				return sha256.Sum256(weights)
			})

			dir := t.TempDir() // what New wrote, read again
			require.NoError(t, whole.Save(dir, 0))
			read := Options{Pages: newStore(t), PageFloats: true}
			opened, err := Open(dir, read)
			require.NoError(t, err)
			again, err := Open(dir, Options{})
			require.NoError(t, err)
			wantLoss, want = lossAndGradients(t, again, b)
			gotLoss, got = lossAndGradients(t, opened, b)
			require.Equal(t, wantLoss, gotLoss)
			require.Equal(t, want, got)
		})
	}
}

// TestJoinSave: one rank writes the model, and the others take part.
func TestJoinSave(t *testing.T) {
	for _, adapter := range []*qlora.AdapterOptions{nil, {Rank: 2, Alpha: 4}} {
		want, got := t.TempDir(), t.TempDir()
		whole, err := New(published(), Options{Seed: 3, Adapter: adapter})
		require.NoError(t, err)
		require.NoError(t, whole.Save(want, 3000))
		reducers, err := accum.Local(t.Context(), 3)
		require.NoError(t, err)
		errs := make([]error, 3)
		var wait sync.WaitGroup
		for rank, r := range reducers {
			wait.Go(func() {
				errs[rank] = func() error {
					pages, err := accum.NewPages(r, accum.PagesOptions{})
					if err != nil {
						return err
					}
					m, err := New(published(), Options{Seed: 3, Adapter: adapter, Pages: pages, PageFloats: true})
					if err != nil {
						return err
					}
					if rank == 1 {
						err = m.Save(got, 3000)
					} else {
						err = m.JoinSave(3000)
					}
					return errors.Join(err, m.Close(), pages.Close())
				}()
			})
		}
		wait.Wait()
		require.NoError(t, errors.Join(errs...))
		entries, err := os.ReadDir(want)
		require.NoError(t, err)
		require.Greater(t, len(entries), 3)
		for _, e := range entries {
			a, err := os.ReadFile(filepath.Join(want, e.Name()))
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(got, e.Name()))
			require.NoError(t, err)
			require.True(t, bytes.Equal(a, b), e.Name())
		}
	}
	m, err := New(published(), Options{})
	require.NoError(t, err)
	require.ErrorIs(t, m.JoinSave(-1), snug.ErrConfig)
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.JoinSave(0), snug.ErrConfig)
	// A Config that cannot be written is an error on all ranks, before one gathers.
	m = newTiny(t, tiny(), Options{})
	saved := m.Save(t.TempDir(), 0)
	require.ErrorContains(t, saved, "ScoreScale")
	require.EqualError(t, m.JoinSave(0), strings.Replace(saved.Error(), "Save", "JoinSave", 1))
	require.NoError(t, m.Close())
}

// shortPages is a Storage whose blobs are too short.
type shortPages struct{ qlora.Storage }

func (s shortPages) Acquire(key string, size int) ([]byte, error) {
	b, err := s.Storage.Acquire(key, size)
	return b[:max(len(b)-4, 0)], err
}

// TestPageFloatsErrors: options that do not go together, and a Storage that fails, are errors.
func TestPageFloatsErrors(t *testing.T) {
	for says, o := range map[string]Options{
		"PageFloats wants Pages": {PageFloats: true},
		"want a Base, or PageFl": {Pages: newStore(t)},
		"DoRA takes matrices in": {Pages: newStore(t), PageFloats: true, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, DoRA: true}},
		"the Storage gives":      {Pages: shortPages{newStore(t)}, PageFloats: true},
	} {
		t.Run(says, func(t *testing.T) {
			_, err := New(tiny(), o)
			require.ErrorContains(t, err, says)
		})
	}
	store := newStore(t)
	m := newTiny(t, tiny(), Options{Pages: store, PageFloats: true})
	require.NoError(t, store.Close())
	b := someBatch(5, m.config.Vocab, 1, 4)
	for name, err := range map[string]error{
		"Evaluate": func() error { _, err := m.Evaluate(context.Background(), b); return err }(),
		"Logits":   m.Logits(t.Context(), make([]float32, m.config.Vocab), b, nil),
		"Save":     m.Save(t.TempDir(), 0),
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, err, name)
		})
	}
}
