package quant8

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// shard returns an optimizer with the shards of a rank after some steps.
func shard(t *testing.T, rule Rule, o Options, lengths map[string]int, s *kerneltest.Sharing, steps int) *Optimizer {
	a, err := New(rule, o)
	require.NoError(t, err)
	for name, n := range lengths {
		lo, hi := s.Range(name, s.Rank())
		require.NoError(t, a.AddShard(name, n, lo, hi))
	}
	for step := range steps {
		a.Advance(0.01)
		for name, n := range lengths {
			lo, hi := s.Range(name, s.Rank())
			p, g := kerneltest.Uniform(uint64(n), n)[lo:hi], kerneltest.Uniform(uint64(n+step), n)[lo:hi]
			require.NoError(t, a.Step(name, snug.ViewOf(p), snug.ViewOf(g), 1))
		}
	}
	return a
}

// TestWriteShards: ranks write the bytes of one optimizer with the whole parameters, and any number of ranks goes on
// from them.
func TestWriteShards(t *testing.T) {
	lengths := map[string]int{"small": 300, "large": 12345, "none": 0, "blocks": 4096}
	for _, rule := range []Rule{AdamW{}, SGD{}, SGD{Momentum: 0.9}, Lion{}, AdEMAMix{}, ScheduleFree{}} {
		for _, bits := range []int{32, 16, 8, 4} {
			o := Options{Bits: bits, Chunk: 1024, MinSize: 1000}
			if bits == 4 {
				o.Block = 128
			}
			if _, err := New(rule, o); err != nil {
				continue // a rule without states of this width
			}
			for _, steps := range []int{0, 2} {
				want, err := shard(t, rule, o, lengths, kerneltest.Share(lengths, 1, 256)[0], steps).AppendBinary(nil)
				require.NoError(t, err)
				for size := 1; size <= 5; size++ {
					got, errs := writeShards(t, rule, o, lengths, size, steps, 0, nil)
					require.NoError(t, errors.Join(errs...))
					require.Equal(t, want, got, "%T, %d bits, %d ranks", rule, bits, size)
					for _, s := range kerneltest.Share(lengths, size, 256) {
						a := shard(t, rule, o, lengths, s, 0)
						require.NoError(t, a.ReadShards(bytes.NewReader(want)))
						b := shard(t, rule, o, lengths, s, steps)
						require.Equal(t, mustBytes(t, b), mustBytes(t, a))
					}
				}
			}
		}
	}
}

// TestElementwise: the rules of which AddShard takes parts.
func TestElementwise(t *testing.T) {
	for _, rule := range []Rule{AdamW{}, Adam{}, AdEMAMix{}, Lion{}, SGD{}, SGD{Momentum: 0.9}, RMSprop{}, Adagrad{}, LAMB{}, LARS{}, Adafactor{}, Muon{}, Apollo{}, GaLore{}, SOAP{}, ScheduleFree{}, Prodigy{}, AdamMini{}} {
		a, err := New(rule, Options{Bits: 32, Params: func(string) ParamOptions { return ParamOptions{Shared: 1} }})
		if err != nil { // only AdamMini has blocks
			a, err = New(rule, Options{Bits: 32})
		}
		require.NoError(t, err)
		require.Equal(t, a.AddShard("w", 512, 0, 256) == nil, TraitsOf(rule).Shards, "%T", rule)
	}
	require.False(t, TraitsOf(MeZO{}).Shards)
	require.False(t, TraitsOf(nil).Shards)
}

func mustBytes(t *testing.T, a *Optimizer) []byte {
	b, err := a.AppendBinary(nil)
	require.NoError(t, err)
	return b
}

// writeShards runs WriteShards on ranks in goroutines. fail is the call of Send that fails on rank 1.
func writeShards(t *testing.T, rule Rule, o Options, lengths map[string]int, size, steps, fail int, w io.Writer) ([]byte, []error) {
	var out bytes.Buffer
	errs, all := make([]error, size), kerneltest.Share(lengths, size, 256)
	var wait sync.WaitGroup
	for rank, s := range all {
		if rank == 1 {
			s.Fail = fail
		}
		a := shard(t, rule, o, lengths, s, steps)
		to := w
		if w == nil {
			to = &out
		}
		if rank > 0 {
			to = nil
		}
		wait.Go(func() { errs[rank] = a.WriteShards(to, s) })
	}
	wait.Wait()
	for _, s := range all {
		require.Equal(t, all[0].Sends, s.Sends)
	}
	return out.Bytes(), errs
}

// TestWriteShardsFails: a rank that fails makes the calls of the others.
func TestWriteShardsFails(t *testing.T) {
	lengths := map[string]int{"small": 300, "large": 12345}
	o := Options{Bits: 8, Chunk: 1024}
	for _, fail := range []int{1, 3} {
		_, errs := writeShards(t, AdamW{}, o, lengths, 3, 1, fail, nil)
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], kerneltest.ErrSend)
		require.NoError(t, errs[2])
	}
	_, errs := writeShards(t, AdamW{}, o, lengths, 3, 1, 0, failingWriter{})
	require.ErrorIs(t, errs[0], kerneltest.ErrSend)
	require.NoError(t, errors.Join(errs[1:]...))

	s := kerneltest.Share(lengths, 1, 256)[0]
	a := shard(t, AdamW{}, o, lengths, s, 1)
	require.ErrorIs(t, a.WriteShards(io.Discard, nil), snug.ErrConfig)
	require.ErrorIs(t, new(Optimizer).WriteShards(io.Discard, s), snug.ErrConfig)
	require.ErrorIs(t, a.WriteShards(nil, s), snug.ErrConfig)
	a.Advance(0.1)
	require.ErrorContains(t, a.WriteShards(io.Discard, s), "step 2 is not complete")
	a = shard(t, AdamW{}, o, lengths, s, 1)
	s.Cuts["large"][0] = 256
	require.ErrorContains(t, a.WriteShards(io.Discard, s), "Range says 256 to 12345")
	m, err := New(Muon{}, Options{})
	require.NoError(t, err)
	require.NoError(t, m.AddMatrix("m", 4, 4))
	require.ErrorContains(t, m.WriteShards(io.Discard, s), "is not a vector")
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, kerneltest.ErrSend }
