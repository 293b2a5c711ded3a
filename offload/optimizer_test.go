package offload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/quant8"
)

// The tests of this package train with AdamW of package quant8 and float32 state, in a Store
// or, as the definition of what is right, in memory.

var (
	_ quant8.Storage = (*Store)(nil)
	_ Stepper        = (*quant8.Optimizer)(nil)
)

// adamW returns an optimizer whose state lies in s, in blobs of chunk elements, or in memory
// for nil.
func adamW(s quant8.Storage, chunk int) (*quant8.Optimizer, error) {
	return quant8.New(quant8.AdamW{Beta1: 0.8, Beta2: 0.95, Eps: 1e-6, WeightDecay: 0.1}, quant8.Options{
		Bits: 32, Block: quant8.MinBlock, Chunk: chunk, Storage: s,
	})
}

// newAdamW returns an optimizer for parameter "w" of n elements.
func newAdamW(t testing.TB, s quant8.Storage, n, chunk int) *quant8.Optimizer {
	a, err := adamW(s, chunk)
	require.NoError(t, err)
	require.NoError(t, a.Add("w", n))
	return a
}

// normals returns n pseudo-random float32.
func normals(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func requireSameBits(t testing.TB, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "element %d: want %g, got %g", i, want[i], got[i])
	}
}

// stepW makes step number i of parameter "w".
func stepW(t testing.TB, a *quant8.Optimizer, i int, p []float32) {
	a.Advance(0.01 / float32(i))
	g := normals(len(p), uint64(i))
	require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1/float32(int(1)<<i)))
}

// inMemory returns what steps with the state in memory make of p.
func inMemory(t testing.TB, p []float32, steps int) []float32 {
	p = slices.Clone(p)
	a := newAdamW(t, nil, len(p), 0)
	for i := 1; i <= steps; i++ {
		stepW(t, a, i, p)
	}
	return p
}

// TestPagedEqualsInMemory compares the bits over lengths, chunks, host limits and GOMAXPROCS.
func TestPagedEqualsInMemory(t *testing.T) {
	const steps = 4
	for _, procs := range []int{1, 2} {
		prev := runtime.GOMAXPROCS(procs)
		for _, n := range []int{0, 1, 1000, 20011} {
			want := inMemory(t, normals(n, 0), steps)
			for _, chunk := range []int{roundUp(n/20+1, quant8.MinBlock), 1024, 1 << 16} {
				for _, blobs := range []int{1, 2, 7, 32, 0} { // that fit; of 32 some are held together
					t.Run(fmt.Sprintf("%d/%d/%d/%d", procs, n, chunk, blobs), func(t *testing.T) {
						s := memStore(t, Options{HostLimit: int64(blobs) * 8 * int64(chunk)})
						a := newAdamW(t, s, n, chunk)
						p := normals(n, 0)
						for i := 1; i <= steps; i++ {
							stepW(t, a, i, p)
						}
						requireSameBits(t, want, p)
						requireWithin(t, s)
					})
				}
			}
		}
		runtime.GOMAXPROCS(prev)
	}
}

// TestStepRange steps ranges of a parameter in goroutines.
func TestStepRange(t *testing.T) {
	const n, chunk = 2500, 256
	want := inMemory(t, normals(n, 0), 3)
	s := memStore(t, Options{HostLimit: 4 * 8 * chunk})
	a := newAdamW(t, s, n, chunk)
	p := normals(n, 0)
	for i := 1; i <= 3; i++ {
		a.Advance(0.01 / float32(i))
		g := normals(n, uint64(i))
		var wg sync.WaitGroup
		for _, r := range [][2]int{{1024, 1536}, {1536, n}, {0, 1024}, {512, 512}, {n - n%chunk, n - n%chunk}} {
			wg.Go(func() {
				err := a.StepRange("w", r[0], snug.ViewOf(p[r[0]:r[1]]), snug.ViewOf(g[r[0]:r[1]]), 1/float32(int(1)<<i))
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	requireSameBits(t, want, p)
	requireWithin(t, s)
}

// TestStepWithoutMemory: a step that finds no memory for its first blob changes nothing,
// leaves nothing pinned, and is made later.
func TestStepWithoutMemory(t *testing.T) {
	const chunk = 64
	s := memStore(t, Options{HostLimit: 8 * chunk})
	a := newAdamW(t, s, 100, chunk)
	other, err := Create[float32](s, "other", chunk, chunk)
	require.NoError(t, err)
	held, err := other.Pin(t.Context(), 0)
	require.NoError(t, err)
	a.Advance(0.1)
	p := make([]float32, 100)
	require.ErrorIs(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1), snug.ErrNoMemory)
	require.NoError(t, held.Unpin(false))
	require.NoError(t, s.Commit(), "no page is left pinned")
	require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1))
	require.ErrorContains(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1), "already has an update")
}

// TestStateIsCommitted cuts the power after a commit, and goes on in a new store with the
// moments of the commit.
func TestStateIsCommitted(t *testing.T) {
	const n, chunk = 1000, 128
	dir := filestest.New()
	o, err := Options{HostLimit: 2 * 8 * chunk}.check()
	require.NoError(t, err)
	s, err := open(dir, o)
	require.NoError(t, err)
	a, p := newAdamW(t, s, n, chunk), normals(n, 0)
	stepW(t, a, 1, p)
	stepW(t, a, 2, p)
	require.NoError(t, s.Commit())
	saved := slices.Clone(p)
	stepW(t, a, 3, p) // lost
	require.NoError(t, s.Close())

	s, err = open(dir.Crash(rand.New(rand.NewPCG(1, 1))), o)
	require.NoError(t, err)
	b := newAdamW(t, s, n, chunk)
	b.Advance(0)
	b.Advance(0)
	copy(p, saved)
	stepW(t, b, 3, p)
	stepW(t, b, 4, p)
	requireSameBits(t, inMemory(t, normals(n, 0), 4), p)
	require.NoError(t, s.Close())
}

func TestStepDoesNotAllocate(t *testing.T) {
	const n, chunk = 3 * 16384, 16384
	for _, blobs := range []int64{0, 2} { // all in memory; all through disk
		dir, err := files.Make(t.TempDir())
		require.NoError(t, err)
		s, err := open(dir, Options{HostLimit: blobs * 8 * chunk})
		require.NoError(t, err)
		a := newAdamW(t, s, n, chunk)
		p := make([]snug.BFloat16, n)
		step := func() {
			a.Advance(0.1)
			if err := a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			step()
		}
		kerneltest.NoAllocs(t, step)
		require.NoError(t, s.Close())
	}
}

// BenchmarkStep updates 4 Mi parameters in memory whose state is paged through limits.
func BenchmarkStep(b *testing.B) {
	const n = 1 << 22
	for _, share := range []int64{0, 8, 2} {
		b.Run(fmt.Sprintf("limit=1/%d", share), func(b *testing.B) {
			limit := int64(0)
			if share > 0 {
				limit = 8 * n / share
			}
			s, err := Open(b.TempDir(), Options{HostLimit: limit})
			require.NoError(b, err)
			defer s.Close()
			a := newAdamW(b, s, n, 0)
			p, g := normals(n, 0), normals(n, 1)
			b.SetBytes(28 * n)
			for b.Loop() {
				a.Advance(1e-3)
				if err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1); err != nil {
					b.Fatal(err)
				}
			}
			st := s.Stats()
			b.ReportMetric(100*st.Stall.Seconds()/b.Elapsed().Seconds(), "%stall")
			b.ReportMetric(float64(st.ReadBytes+st.WriteBytes)/float64(b.N)/(8*n), "traffic/state")
		})
	}
}
