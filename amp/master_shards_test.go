package amp

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

// shardedMaster returns a Master with the shards of a rank after some updates, and the parameters.
func shardedMaster(t *testing.T, o MasterOptions, lengths map[string]int, s *kerneltest.Sharing, updates int) (*Master, map[string][]snug.BFloat16) {
	m := newMaster(t, o)
	params := map[string][]snug.BFloat16{}
	for name, n := range lengths {
		lo, hi := s.Range(name, s.Rank())
		p := make([]snug.BFloat16, n)
		require.NoError(t, Cast(p, kerneltest.Uniform(uint64(n), n)))
		params[name] = p[lo:hi]
		require.NoError(t, m.AddShard(name, n, lo, snug.ViewOf(p[lo:hi]), nil))
		for k := range updates {
			g := kerneltest.Uniform(uint64(n+k+1), n)[lo:hi]
			require.NoError(t, m.Update(name, snug.ViewOf(p[lo:hi]), func(lo int, w snug.View) error {
				for i := range w.Float32s() {
					w.Float32s()[i] -= 1e-3 * g[lo+i]
				}
				return nil
			}))
		}
	}
	return m, params
}

// TestMasterWriteShards: shards are updated as the whole is, ranks write the bytes of one Master with the whole
// parameters, and any number of ranks goes on from them.
func TestMasterWriteShards(t *testing.T) {
	lengths := map[string]int{"small": 30, "large": 12345, "none": 0}
	for _, o := range []MasterOptions{
		{Form: FullMaster}, {Form: SplitMaster}, {Form: NoMaster, Seed: 3}, {Form: Split24Master}, {Form: Split24Master, Stochastic: true, Seed: 4},
	} {
		o.Chunk = 100
		alone, values := shardedMaster(t, o, lengths, kerneltest.Share(lengths, 1, 8)[0], 3)
		want, err := alone.AppendBinary(nil)
		require.NoError(t, err)
		for size := 1; size <= 5; size++ {
			var out bytes.Buffer
			errs := masterShards(t, o, lengths, size, 0, &out, values)
			require.NoError(t, errors.Join(errs...))
			require.Equal(t, want, out.Bytes(), "%v, %d ranks", o.Form, size)
			for _, s := range kerneltest.Share(lengths, size, 8) {
				a, params := shardedMaster(t, o, lengths, s, 0)
				for name := range lengths {
					lo, hi := s.Range(name, s.Rank())
					copy(params[name], values[name][lo:hi])
				}
				_, err := a.ReadFrom(bytes.NewReader(want))
				require.NoError(t, err)
				if size > 1 {
					_, err := a.AppendBinary(nil)
					require.ErrorContains(t, err, "use WriteShards")
				}
				for name := range lengths {
					same := func(m *Master, p []snug.BFloat16) (w []float32) {
						require.NoError(t, m.Update(name, snug.ViewOf(p), func(_ int, v snug.View) error {
							w = append(w, v.Float32s()...)
							return nil
						}))
						return w
					}
					lo, hi := s.Range(name, s.Rank())
					b, own := shardedMaster(t, o, lengths, s, 3)
					require.Equal(t, values[name][lo:hi], own[name])
					require.Equal(t, same(b, own[name]), same(a, params[name]))
				}
			}
		}
	}
}

// masterShards runs WriteShards on ranks in goroutines. fail is the call of Send that fails on rank 1.
func masterShards(t *testing.T, o MasterOptions, lengths map[string]int, size, fail int, w io.Writer, want map[string][]snug.BFloat16) []error {
	errs, all := make([]error, size), kerneltest.Share(lengths, size, 8)
	var wait sync.WaitGroup
	for rank, s := range all {
		if rank == 1 {
			s.Fail = fail
		}
		m, params := shardedMaster(t, o, lengths, s, 3)
		for name, p := range params {
			lo, hi := s.Range(name, rank)
			require.Equal(t, want[name][lo:hi], p, "%q on rank %d of %d", name, rank, size)
		}
		to := w
		if rank > 0 {
			to = nil
		}
		wait.Go(func() { errs[rank] = m.WriteShards(to, s) })
	}
	wait.Wait()
	for _, s := range all {
		require.Equal(t, all[0].Sends, s.Sends)
	}
	return errs
}

// TestMasterWriteShardsFails: a rank that fails makes the calls of the others.
func TestMasterWriteShardsFails(t *testing.T) {
	lengths, o := map[string]int{"small": 30, "large": 12345}, MasterOptions{Form: SplitMaster, Chunk: 100}
	_, values := shardedMaster(t, o, lengths, kerneltest.Share(lengths, 1, 8)[0], 3)
	errs := masterShards(t, o, lengths, 3, 1, io.Discard, values)
	require.NoError(t, errors.Join(errs[0], errs[2]))
	require.ErrorIs(t, errs[1], kerneltest.ErrSend)
	errs = masterShards(t, o, lengths, 3, 0, nil, values)
	require.ErrorIs(t, errs[0], snug.ErrConfig)
	require.NoError(t, errors.Join(errs[1:]...))

	s := kerneltest.Share(lengths, 1, 8)[0]
	m, _ := shardedMaster(t, o, lengths, s, 1)
	require.ErrorIs(t, m.WriteShards(io.Discard, nil), snug.ErrConfig)
	require.ErrorIs(t, new(Master).WriteShards(io.Discard, s), snug.ErrConfig)
	for name, cuts := range map[string][]int{"Range says 8 to 12345": {8, 12345}, "Range says 0 to 12000": {0, 12000}} {
		s.Cuts["large"] = cuts
		require.ErrorContains(t, m.WriteShards(io.Discard, s), name)
	}
	p := snug.ViewOf(make([]snug.BFloat16, 8))
	for _, at := range [][2]int{{7, 0}, {8, 1}, {100, -1}, {100, 93}, {-1, 0}} {
		require.ErrorIs(t, newMaster(t, o).AddShard("w", at[0], at[1], p, nil), snug.ErrShape, at)
	}
}
