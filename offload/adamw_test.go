package offload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/adam"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

var hyper = AdamWOptions{Beta1: 0.8, Beta2: 0.95, Eps: 1e-6, WeightDecay: 0.1}

// normals returns n pseudo-random float32.
func normals(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// rate and scale of step t.
func rate(t int) float32  { return 0.01 / float32(t) }
func scale(t int) float32 { return 1 / float32(int(1)<<t) }

// inMemory returns what steps of AdamW with whole vectors make of p.
func inMemory(p []float32, steps int) []float32 {
	p = slices.Clone(p)
	m, v := make([]float32, len(p)), make([]float32, len(p))
	for t := 1; t <= steps; t++ {
		adam.Hyper{
			LR: rate(t), Beta1: hyper.Beta1, Beta2: hyper.Beta2, Eps: hyper.Eps, WeightDecay: hyper.WeightDecay,
			Step: t, GradScale: scale(t), DecayFirst: true,
		}.Coef().Update(p, m, v, normals(len(p), uint64(t)))
	}
	return p
}

func requireSameBits(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "element %d: want %g, got %g", i, want[i], got[i])
	}
}

// newAdamW returns an optimizer for parameter "w" of n elements.
func newAdamW(t testing.TB, s *Store, n, pageLen int) *AdamW {
	o := hyper
	o.PageLen = pageLen
	a, err := NewAdamW(s, o)
	require.NoError(t, err)
	require.NoError(t, a.Add("w", n))
	return a
}

// TestPagedEqualsInMemory compares the bits over lengths, page lengths, host
// limits and GOMAXPROCS.
func TestPagedEqualsInMemory(t *testing.T) {
	const steps = 4
	for _, procs := range []int{1, 2} {
		prev := runtime.GOMAXPROCS(procs)
		for _, n := range []int{0, 1, 1000, 20011} {
			want := inMemory(normals(n, 0), steps)
			for _, pageLen := range []int{n/20 + 1, 1000, 10000, 1 << 16} {
				for _, pages := range []int{2, 3, 7, 0} {
					t.Run(fmt.Sprintf("%d/%d/%d/%d", procs, n, pageLen, pages), func(t *testing.T) {
						s := memStore(t, Options{HostLimit: int64(pages) * roundUp(4*int64(pageLen), alignment)})
						a := newAdamW(t, s, n, pageLen)
						p := normals(n, 0)
						for i := 1; i <= steps; i++ {
							a.Advance(rate(i))
							require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(normals(n, uint64(i))), scale(i)))
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

// TestHalfPrecision steps parameters and gradients of every pair of types: the
// update is in float32, and p is rounded after it.
func TestHalfPrecision(t *testing.T) {
	const n, pageLen = 3001, 1024
	types := []snug.DType{snug.F32, snug.F16, snug.BF16}
	for _, pt := range types {
		for _, gt := range types {
			place := kerneltest.Place{Name: "slice"}
			p, g := kerneltest.PutFloats(t, place, pt, normals(n, 0)), kerneltest.PutFloats(t, place, gt, normals(n, 1))
			want, m, v := p.Get(), make([]float32, n), make([]float32, n)
			rounded := kerneltest.PutFloats(t, place, pt, want)
			a := newAdamW(t, memStore(t, Options{HostLimit: 3 * 4 * pageLen}), n, pageLen)
			for i := 1; i <= 3; i++ {
				a.Advance(rate(i))
				require.NoError(t, a.Step("w", p.View, g.View, 1))
				adam.Hyper{
					LR: rate(i), Beta1: hyper.Beta1, Beta2: hyper.Beta2, Eps: hyper.Eps, WeightDecay: hyper.WeightDecay,
					Step: i, GradScale: 1, DecayFirst: true,
				}.Coef().Update(want, m, v, g.Get())
				half.Store(rounded.View, 0, want)
				half.Load(want, rounded.View, 0)
			}
			requireSameBits(t, want, p.Get())
		}
	}
}

func TestStepRange(t *testing.T) {
	const n, pageLen = 2500, 256
	want := inMemory(normals(n, 0), 3)
	s := memStore(t, Options{HostLimit: 8 * 4 * pageLen})
	a := newAdamW(t, s, n, pageLen)
	p := normals(n, 0)
	for i := 1; i <= 3; i++ {
		a.Advance(rate(i))
		g := normals(n, uint64(i))
		var wg sync.WaitGroup
		for _, r := range [][2]int{{1024, 1536}, {1536, n}, {0, 1024}, {512, 512}, {n - n%pageLen, n - n%pageLen}} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := a.StepRange("w", r[0], snug.ViewOf(p[r[0]:r[1]]), snug.ViewOf(g[r[0]:r[1]]), scale(i)); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
	}
	requireSameBits(t, want, p)
	requireWithin(t, s)
}

func TestAdamWErrors(t *testing.T) {
	s := memStore(t, Options{HostLimit: 1 << 20})
	nan := float32(math.NaN())
	for _, o := range []AdamWOptions{
		{Beta1: 1}, {Beta1: -0.1}, {Beta1: nan}, {Beta2: 1}, {Beta2: nan}, {Eps: -1}, {Eps: nan}, {Eps: float32(math.Inf(1))},
		{WeightDecay: -1}, {WeightDecay: nan}, {PageLen: -1}, {PageLen: MaxPage},
	} {
		_, err := NewAdamW(s, o)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", o)
	}
	a, err := NewAdamW(s, AdamWOptions{PageLen: 4})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", 10))
	require.ErrorIs(t, a.Add("w", 10), snug.ErrConfig)
	_, err = Create[float32](s, "x"+secondMoment, 9, 4)
	require.NoError(t, err)
	require.ErrorIs(t, a.Add("x", 10), snug.ErrShape)
	require.False(t, s.Has("x"+firstMoment), "Add is all or nothing")

	p := slices.Repeat([]float32{1}, 10)
	step := func(name string, p, g snug.View, scale float32) error { return a.Step(name, p, g, scale) }
	view := snug.ViewOf(p)
	require.ErrorIs(t, step("w", view, view, 1), snug.ErrConfig, "before Advance")
	for _, lr := range []float32{-1, nan, float32(math.Inf(1))} {
		a.Advance(lr)
		require.ErrorIs(t, step("w", view, view, 1), snug.ErrConfig)
	}
	a.Advance(0.1)
	require.Equal(t, 1, a.Steps())
	short := snug.ViewOf(p[:9])
	require.ErrorIs(t, step("y", view, view, 1), snug.ErrConfig)
	require.ErrorIs(t, step("w", view, view, nan), snug.ErrConfig)
	require.ErrorIs(t, step("w", snug.SliceView(make([]int32, 10)), view, 1), snug.ErrDType)
	require.ErrorIs(t, step("w", view, snug.SliceView(make([]uint8, 10)), 1), snug.ErrDType)
	require.ErrorIs(t, step("w", view, short, 1), snug.ErrShape)
	require.ErrorIs(t, step("w", short, short, 1), snug.ErrShape)
	for _, r := range [][2]int{{-4, 4}, {2, 4}, {4, 3}, {8, 4}, {12, 0}} {
		part := snug.ViewOf(p[:r[1]])
		require.ErrorIs(t, a.StepRange("w", r[0], part, part, 1), snug.ErrShape, r)
	}
	require.ErrorIs(t, a.StepRange("y", 0, view, view, 1), snug.ErrConfig)
	require.Equal(t, slices.Repeat([]float32{1}, 10), p, "nothing was written")
	require.Zero(t, s.Stats().HostPeak, "nor touched")

	for _, place := range kerneltest.Places(t) {
		device := kerneltest.Put(t, place, p)
		host := kerneltest.Put(t, kerneltest.Place{}, p)
		a.Advance(0.1)
		if place.Dev == nil || place.Dev.IsCPU() {
			require.NoError(t, step("w", device.View, host.View, 1), place.Name)
			require.NotEqual(t, p, device.Get())
			require.Equal(t, p, host.Get())
			continue
		}
		require.ErrorIs(t, step("w", device.View, host.View, 1), snug.ErrDevice)
		err := step("w", host.View, device.View, 1)
		require.ErrorIs(t, err, snug.ErrDevice)
		require.ErrorContains(t, err, place.Dev.Name())
		require.Equal(t, p, device.Get())
	}
}

func TestAdamWWithoutRoom(t *testing.T) {
	s := memStore(t, Options{HostLimit: 4 * 64})
	a := newAdamW(t, s, 100, 64)
	a.Advance(0.1)
	p := make([]float32, 100)
	require.ErrorIs(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1), snug.ErrNoMemory)
	require.NoError(t, s.Commit(), "no page is left pinned")
}

// TestAdamWResumes kills a run after a commit and continues it in a new store.
func TestAdamWResumes(t *testing.T) {
	const n, pageLen = 1000, 128
	dir := filestest.New()
	o, err := Options{HostLimit: 4 * 4 * pageLen}.check()
	require.NoError(t, err)
	s, err := open(dir, o)
	require.NoError(t, err)
	a := newAdamW(t, s, n, pageLen)
	p := normals(n, 0)
	step := func(a *AdamW, i int) {
		a.Advance(rate(i))
		require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(normals(n, uint64(i))), scale(i)))
	}
	step(a, 1)
	step(a, 2)
	state, err := a.AppendBinary([]byte("before"))
	require.NoError(t, err)
	state, ok := bytes.CutPrefix(state, []byte("before"))
	require.True(t, ok)
	require.NoError(t, s.Commit())
	saved := slices.Clone(p)
	step(a, 3) // lost
	require.NoError(t, s.Close())

	s, err = open(dir.Crash(rand.New(rand.NewPCG(1, 1))), o)
	require.NoError(t, err)
	b, err := NewAdamW(s, AdamWOptions{})
	require.NoError(t, err)
	require.NoError(t, b.UnmarshalBinary(state))
	require.Equal(t, 2, b.Steps())
	copy(p, saved)
	step(b, 3)
	step(b, 4)
	requireSameBits(t, inMemory(normals(n, 0), 4), p)
	require.NoError(t, s.Close())
}

func TestAdamWStateErrors(t *testing.T) {
	s := memStore(t, Options{})
	a := newAdamW(t, s, 10, 4)
	a.Advance(0.5)
	state, err := a.AppendBinary(nil)
	require.NoError(t, err)
	fresh := func() *AdamW {
		b, err := NewAdamW(s, AdamWOptions{Beta1: 0.5})
		require.NoError(t, err)
		return b
	}
	for bit := range 8 * len(state) {
		b, damaged := fresh(), bytes.Clone(state)
		damaged[bit/8] ^= 1 << (bit % 8)
		require.ErrorIs(t, b.UnmarshalBinary(damaged), snug.ErrCorrupt)
		require.Equal(t, fresh(), b, "unchanged")
	}
	for n := range state {
		require.ErrorIs(t, fresh().UnmarshalBinary(state[:n]), snug.ErrCorrupt)
	}
	const fields = 8 + 4 + 8
	for name, change := range map[string]func(b []byte) []byte{
		"version":    func(b []byte) []byte { b[8] = 3; return b },
		"step":       func(b []byte) []byte { b[19] = 255; return b },
		"beta1":      func(b []byte) []byte { copy(b[fields+4:], []byte{0, 0, 0, 0}); return b },
		"pageLen":    func(b []byte) []byte { copy(b[fields+20:], make([]byte, 8)); return b },
		"parameters": func(b []byte) []byte { b[fields+28] = 2; return b },
		"trailing":   func(b []byte) []byte { return append(b, 0) },
		"twice": func(b []byte) []byte {
			b[fields+28] = 2
			return append(b[:len(b)-4:len(b)-4], b[fields+32:]...)
		},
	} {
		err := fresh().UnmarshalBinary(seal(change(bytes.Clone(state))))
		if name == "pageLen" {
			require.ErrorIs(t, err, snug.ErrShape, name)
			continue
		}
		require.ErrorIs(t, err, snug.ErrCorrupt, name)
	}
	require.ErrorIs(t, new(AdamW).UnmarshalBinary(state), snug.ErrConfig)
	require.NoError(t, s.Delete("w"+secondMoment))
	require.ErrorIs(t, fresh().UnmarshalBinary(state), snug.ErrConfig)
}

func TestStepDoesNotAllocate(t *testing.T) {
	const n, pageLen = 3 * 16384, 16384
	for _, pages := range []int64{0, 3} { // all in memory; all through disk
		dir, err := files.Make(t.TempDir())
		require.NoError(t, err)
		s, err := open(dir, Options{HostLimit: pages * 4 * pageLen})
		require.NoError(t, err)
		a := newAdamW(t, s, n, pageLen)
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
			b.ReportMetric(100*s.Stats().Stall.Seconds()/b.Elapsed().Seconds(), "%stall")
		})
	}
}

// seal replaces the checksum at the end of b.
func seal(b []byte) []byte {
	body := b[:len(b)-4]
	return binary.LittleEndian.AppendUint32(append([]byte(nil), body...), crc32c.Seal(crc32c.Checksum(body)))
}
