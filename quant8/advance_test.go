package quant8

import (
	"bytes"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state/statetest"
)

// requireTwice expects the error of a second update in a step.
func requireTwice(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "already has an update in step")
}

// TestAdvance: no step without a rate that is a finite number from 0 on, and no second
// update without Advance, with nothing written.
func TestAdvance(t *testing.T) {
	const n = 5000
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range widths {
			a, p, g := build(Options{Bits: bits}, map[string]int{"w": n, "v": n}), kerneltest.Normal(1, n), kerneltest.Normal(2, n)
			refused := func(says string) {
				t.Helper()
				before, params := stateOf(t, a), append([]float32(nil), p...)
				err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, says)
				require.True(t, equal(params, p))
				require.Equal(t, before, stateOf(t, a))
			}
			refused(`step of "w": call Advance first`)
			for i, rate := range []float32{-1, float32(math.Copysign(1e-30, -1)), nan, inf, -inf} {
				a.Advance(rate)
				refused("learning rate")
				require.Equal(t, 0, a.Steps(), i)
			}
			a.Advance(0)
			require.Equal(t, 1, a.Steps())
			step(t, a, "w", p, g, 1)
			refused("already has an update")
			step(t, a, "v", p, g, 1)
			advance(a)
			require.Equal(t, 2, a.Steps())
			step(t, a, "w", p, g, 1)
			a.Advance(-1)
			refused("learning rate")
			require.Equal(t, 2, a.Steps(), "no step has begun")
		}
	})
}

// TestRateZero moves the state and not the parameter.
func TestRateZero(t *testing.T) {
	a, p, g := newWith(t, AdamW{WeightDecay: 0.1}, Options{}, map[string]int{"w": 5000}), kerneltest.Normal(1, 5000), kerneltest.Normal(2, 5000)
	before := append([]float32(nil), p...)
	a.Advance(0)
	step(t, a, "w", p, g, 1)
	require.True(t, equal(before, p))
	m, _ := moments(t, a, "w")
	require.NotEqual(t, make([]float32, 5000), m)
}

// TestOncePerStep: ranges that overlap one which was updated are refused as a whole, and
// what failed before it wrote may be repeated.
func TestOncePerStep(t *testing.T) {
	const n, chunk = 5000, 1024
	for _, s := range []Storage{nil, newFakeStorage()} {
		a := newAdamW(t, Options{Chunk: chunk, Storage: s}, map[string]int{"w": n})
		b := newAdamW(t, Options{Chunk: chunk}, map[string]int{"w": n})
		p, g := kerneltest.Normal(1, n), kerneltest.Normal(2, n)
		want := append([]float32(nil), p...)
		part := func(lo, hi int, g []float32) error {
			return a.StepRange("w", lo, snug.ViewOf(p[lo:hi]), snug.ViewOf(g[lo:hi]), 1)
		}
		advance(a)
		require.NoError(t, part(chunk, 2*chunk, g))
		for _, r := range [][2]int{{0, n}, {chunk, 2 * chunk}, {0, 2 * chunk}, {chunk, n}} {
			before := append([]float32(nil), p...)
			requireTwice(t, part(r[0], r[1], g))
			require.True(t, equal(before, p))
		}
		bad := append([]float32(nil), g...)
		bad[2*chunk] = nan
		require.ErrorIs(t, part(2*chunk, n, bad), snug.ErrNonFinite)
		require.NoError(t, part(2*chunk, n, g))
		require.NoError(t, part(0, chunk, g))
		requireTwice(t, part(4*chunk, n, g))
		advance(b)
		step(t, b, "w", want, g, 1)
		require.True(t, equal(want, p))
		require.Equal(t, stateOf(t, b), stateOf(t, a))
	}
}

// TestConcurrentRanges: of all calls for one range, one is made.
//
//check:in race
func TestConcurrentRanges(t *testing.T) {
	const chunks, chunk, callers = 20, 256, 4
	a := newAdamW(t, Options{Chunk: chunk, MinSize: 1}, map[string]int{"w": chunks * chunk})
	b := newAdamW(t, Options{Chunk: chunk, MinSize: 1}, map[string]int{"w": chunks * chunk})
	p, g := kerneltest.Normal(1, chunks*chunk), kerneltest.Normal(2, chunks*chunk)
	want := append([]float32(nil), p...)
	for range 3 {
		advance(a)
		var wg sync.WaitGroup
		var made, refused sync.Map
		for c := range callers {
			wg.Go(func() {
				for i := range chunks {
					lo := (i + c) % chunks * chunk
					err := a.StepRange("w", lo, snug.ViewOf(p[lo:lo+chunk]), snug.ViewOf(g[lo:lo+chunk]), 1)
					if err == nil {
						made.Store([2]int{c, lo}, true)
					} else {
						refused.Store([2]int{c, lo}, err)
					}
				}
			})
		}
		wg.Wait()
		count := func(m *sync.Map) (n int) {
			m.Range(func(any, any) bool { n++; return true })
			return n
		}
		require.Equal(t, chunks, count(&made))
		require.Equal(t, (callers-1)*chunks, count(&refused))
		advance(b)
		step(t, b, "w", want, g, 1)
		require.True(t, equal(want, p))
	}
}

// TestRestoredInStep saves between the ranges of a step: the restored optimizer makes the
// others, and refuses those that were made.
func TestRestoredInStep(t *testing.T) {
	const n, chunk = 5000, 1024
	params := map[string]int{"w": n, "b": 100, "none": 0}
	o := Options{Chunk: chunk}
	a := newAdamW(t, o, params)
	p, g := kerneltest.Normal(1, n), kerneltest.Normal(2, n)
	advance(a)
	step(t, a, "w", p, g, 1)
	step(t, a, "b", kerneltest.Normal(1, 100), kerneltest.Normal(2, 100), 1)
	require.Empty(t, headerOf(t, bytesOf(a.AppendBinary(nil))).Params[2].Marks, "after a step")
	advance(a)
	require.NoError(t, a.StepRange("w", 0, snug.ViewOf(p[:chunk]), snug.ViewOf(g[:chunk]), 1))
	data := bytesOf(a.AppendBinary(nil))
	require.Equal(t, "\x01", headerOf(t, data).Params[2].Marks)
	rest := func(a *Optimizer, p []float32) {
		requireTwice(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
		requireTwice(t, a.StepRange("w", 0, snug.ViewOf(p[:chunk]), snug.ViewOf(g[:chunk]), 1))
		require.NoError(t, a.StepRange("w", chunk, snug.ViewOf(p[chunk:]), snug.ViewOf(g[chunk:]), 1))
		step(t, a, "b", kerneltest.Normal(1, 100), kerneltest.Normal(2, 100), 1)
		requireTwice(t, a.Step("b", snug.ViewOf(kerneltest.Normal(1, 100)), snug.ViewOf(kerneltest.Normal(2, 100)), 1))
	}
	for _, restore := range []func(b *Optimizer) error{
		func(b *Optimizer) error { return b.UnmarshalBinary(data) },
		func(b *Optimizer) error { return second(b.ReadFrom(bytes.NewReader(data))) },
		func(b *Optimizer) error { return b.ReadShards(bytes.NewReader(data)) },
	} {
		b, q := newAdamW(t, o, params), append([]float32(nil), p...)
		require.NoError(t, restore(b))
		rest(b, q)
	}
	other := newAdamW(t, Options{Chunk: 4096}, params)
	before := stateOf(t, other)
	err := other.ReadShards(bytes.NewReader(data))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "in the middle of step 2, with elements 0 to 4095 partly updated: restore it with a Chunk of 1024")
	require.Equal(t, before, stateOf(t, other))
	finer := newAdamW(t, Options{Chunk: 512}, params)
	require.NoError(t, finer.ReadShards(bytes.NewReader(data)))
	rest(finer, append([]float32(nil), p...))
	rest(a, p)
}

// TestAnyStepBytes damages a state that was saved in a step.
func TestAnyStepBytes(t *testing.T) {
	a := newAdamW(t, Options{Chunk: 256}, map[string]int{"w": 1000, "b": 10})
	p := kerneltest.Normal(1, 1000)
	advance(a)
	require.NoError(t, a.StepRange("w", 0, snug.ViewOf(p[:256]), snug.ViewOf(p[:256]), 1))
	data := bytesOf(a.AppendBinary(nil))
	header := len(data) - int(a.StateBytes()) - statetest.Checksum
	for at := statetest.Prefix; at < header-statetest.Checksum; at++ {
		for _, x := range []byte{0x01, 0x40, 0xff} {
			d := bytes.Clone(data)
			d[at] ^= x
			d = statetest.Seal(d)
			if err := a.UnmarshalBinary(d); err == nil && a.Steps() > 0 {
				require.Equal(t, d, bytesOf(a.AppendBinary(nil)), "byte %d", at)
			}
		}
	}
}
