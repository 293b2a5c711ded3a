package quant8

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// loudStorage fails or panics in one of its calls, which are counted from 1.
type loudStorage struct {
	*fakeStorage
	calls, at int
	panics    bool
}

func (l *loudStorage) loud() error {
	if l.calls++; l.calls != l.at {
		return nil
	}
	if l.panics {
		panic(kerneltest.ErrFault)
	}
	return kerneltest.ErrFault
}

func (l *loudStorage) Acquire(key string, size int) ([]byte, error) {
	if err := l.loud(); err != nil {
		return nil, err
	}
	return l.fakeStorage.Acquire(key, size)
}

func (l *loudStorage) Release(key string, dirty bool) error {
	if err := l.fakeStorage.Release(key, dirty); err != nil {
		return err
	}
	return l.loud()
}

// loudCase is an optimizer with a parameter "w" of n elements.
type loudCase struct {
	n     int
	build func(t *testing.T, s Options) *Optimizer
}

func loudCases() map[string]loudCase {
	cases := map[string]loudCase{}
	for name := range rules {
		cases[name] = loudCase{1000, func(t *testing.T, s Options) *Optimizer { return newOf(t, name, s, map[string]int{"w": 1000}) }}
	}
	cases["MaxUpdate"] = loudCase{1000, func(t *testing.T, s Options) *Optimizer {
		s.MaxUpdate = 0.5
		return newOf(t, "Adam coupled", s, map[string]int{"w": 1000})
	}}
	cases["Prodigy"] = loudCase{1000, func(t *testing.T, s Options) *Optimizer {
		return newWith(t, Prodigy{D0: 1e-3}, s, map[string]int{"w": 1000})
	}}
	for name := range matrixRules {
		cases["matrix "+name] = loudCase{30 * 40, func(t *testing.T, s Options) *Optimizer {
			return newMatrices(t, name, s, map[string][2]int{"w": {30, 40}})
		}}
	}
	return cases
}

// TestLoudStorage has every call of a Storage fail, and panic, in a step. The error or the
// panic comes out, nothing stays acquired, and then either the step can be made, by ranges
// where a part of it was, with the bits of one that was not disturbed, or the optimizer
// refuses everything until a state is restored.
//
//check:in race
func TestLoudStorage(t *testing.T) {
	for name, c := range loudCases() {
		t.Run(name, func(t *testing.T) {
			s := Options{MinSize: 1, Block: 128, Chunk: 256}
			calm := c.build(t, s)
			want, g := kerneltest.Normal(1, c.n), kerneltest.Normal(2, c.n)
			advance(calm)
			step(t, calm, "w", want, g, 1)
			advance(calm)
			step(t, calm, "w", want, g, 1)
			repeated, refused := 0, 0
			for _, panics := range []bool{false, true} {
				for at := 1; ; at++ {
					loud := &loudStorage{fakeStorage: newFakeStorage(), panics: panics}
					s.Storage = loud
					a, p := c.build(t, s), kerneltest.Normal(1, c.n)
					advance(a)
					step(t, a, "w", p, g, 1)
					saved, before := bytesOf(a.AppendBinary(nil)), append([]float32(nil), p...)
					advance(a)
					loud.calls, loud.at = 0, at
					err := kerneltest.Recovered(func() error { return a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1) })
					if err == nil {
						break
					}
					require.ErrorIs(t, err, kerneltest.ErrFault)
					require.Empty(t, loud.lent)
					err = a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
					if err != nil && !a.o.hyper.Whole() {
						err = stepRest(a, p, g)
					}
					if err != nil {
						require.ErrorIs(t, err, snug.ErrConfig)
						require.ErrorContains(t, err, "half-way")
						_, err = a.AppendBinary(nil)
						require.ErrorContains(t, err, "half-way")
						require.NoError(t, a.UnmarshalBinary(saved))
						copy(p, before)
						advance(a)
						step(t, a, "w", p, g, 1)
						refused++
					} else {
						repeated++
					}
					require.True(t, equal(want, p), "call %d", at)
					require.Equal(t, stateOf(t, calm), stateOf(t, a))
				}
			}
			if c.n > 0 && calm.StateBytes() > 0 && repeated+refused > 0 {
				require.NotZero(t, repeated)
				require.NotZero(t, refused)
			}
		})
	}
}

// stepRest makes the step of the chunks that were not stepped yet.
func stepRest(a *Optimizer, p, g []float32) error {
	for lo := 0; lo < len(p); lo += a.o.Chunk {
		hi := min(lo+a.o.Chunk, len(p))
		if a.params["w"].marks[lo/a.o.Chunk] != 0 {
			continue
		}
		if err := a.StepRange("w", lo, snug.ViewOf(p[lo:hi]), snug.ViewOf(g[lo:hi]), 1); err != nil {
			return err
		}
	}
	return a.usable()
}

// TestLoudFunctions has the functions of options fail and panic: nothing is changed, and
// the call can be repeated.
//
//check:in race
func TestLoudFunctions(t *testing.T) {
	const n = 1000
	loud := false
	try := func(t *testing.T, call func() error) {
		t.Helper()
		loud = true
		require.ErrorIs(t, kerneltest.Recovered(call), kerneltest.ErrFault)
		loud = false
		require.NoError(t, call())
	}
	check := func() {
		if loud {
			panic(kerneltest.ErrFault)
		}
	}
	options := Options{
		Keep32:   func(string) bool { check(); return false },
		MinSize:  1,
		Params:   func(name string) ParamOptions { check(); return ParamOptions{NoTrust: name == "plain"} },
		SumNorms: func(string, *[2]float64) error { check(); return nil },
	}
	a, err := New(LAMB{}, options)
	require.NoError(t, err)
	p, g := kerneltest.Normal(1, n), kerneltest.Normal(2, n)
	for _, name := range []string{"w", "plain"} {
		try(t, func() error { return a.Add(name, n) })
	}
	advance(a)
	before := append([]float32(nil), p...)
	loud = true
	state := stateOf(t, a)
	require.ErrorIs(t, kerneltest.Recovered(func() error { return a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1) }), kerneltest.ErrFault)
	require.Equal(t, state, stateOf(t, a))
	require.True(t, equal(before, p))
	try(t, func() error { return a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1) })
	requireTwice(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
	loud = true
	step(t, a, "plain", p, g, 1) // has no norms to add
}

// TestLoudBackward: a panic of backward, of Squares or of a Storage under ready comes out,
// also where backward recovers it, and so do errors that backward keeps to itself.
//
//check:in race
func TestLoudBackward(t *testing.T) {
	const n = 600
	p, g := kerneltest.Normal(1, n), kerneltest.Normal(2, n)
	two := func(ready Ready) error {
		return errors.Join(ready("a", snug.ViewOf(p), snug.ViewOf(g)), ready("b", snug.ViewOf(p), snug.ViewOf(g)))
	}
	build := func(s Storage) *Optimizer {
		return newAdamW(t, Options{MinSize: 1, Storage: s}, map[string]int{"a": n, "b": n})
	}
	t.Run("backward", func(t *testing.T) {
		for _, most := range []float64{0, 1} {
			for at := 1; at <= 2; at++ {
				a, calls := build(nil), 0
				a.Advance(1e-3)
				err := kerneltest.Recovered(func() error {
					_, err := a.StepInBackward(BackwardOptions{MaxNorm: most}, func(ready Ready) error {
						if err := ready("a", snug.ViewOf(p), snug.ViewOf(g)); err != nil {
							return err
						}
						if calls++; calls == at {
							panic(kerneltest.ErrFault)
						}
						return ready("b", snug.ViewOf(p), snug.ViewOf(g))
					})
					return err
				})
				if calls < at {
					require.NoError(t, err) // there is one pass without MaxNorm
					continue
				}
				require.ErrorIs(t, err, kerneltest.ErrFault)
				if most == 0 || at == 2 { // "a" is updated, "b" may be
					requireTwice(t, a.Step("a", snug.ViewOf(p), snug.ViewOf(g), 1))
					step(t, a, "b", p, g, 1)
					a.Advance(1e-3)
				}
				_, err = a.StepInBackward(BackwardOptions{MaxNorm: most}, two)
				require.NoError(t, err)
			}
		}
	})
	t.Run("kept", func(t *testing.T) {
		loud := &loudStorage{fakeStorage: newFakeStorage(), at: 2, panics: true}
		a := build(loud)
		a.Advance(1e-3)
		_, err := a.StepInBackward(BackwardOptions{}, func(ready Ready) error {
			_ = kerneltest.Recovered(func() error { return ready("a", snug.ViewOf(p), snug.ViewOf(g)) })
			return nil
		})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, `"a": its work panicked`)
		require.Empty(t, loud.lent)
		for _, o := range []BackwardOptions{{}, {MaxNorm: 1}} {
			a = build(nil)
			a.Advance(1e-3)
			_, err = a.StepInBackward(o, func(ready Ready) error {
				_ = ready("b", snug.ViewOf(p), snug.ViewOf([]float32{1}))
				return nil
			})
			require.ErrorIs(t, err, snug.ErrShape)
		}
	})
	t.Run("late", func(t *testing.T) {
		a, before := build(nil), append([]float32(nil), p...)
		var late Ready
		a.Advance(1e-3)
		_, err := a.StepInBackward(BackwardOptions{}, func(ready Ready) error {
			late = ready
			return nil
		})
		require.NoError(t, err)
		require.ErrorContains(t, late("a", snug.ViewOf(p), snug.ViewOf(g)), "after the end")
		require.True(t, equal(before, p))
	})
	t.Run("nil", func(t *testing.T) {
		_, err := build(nil).StepInBackward(BackwardOptions{}, nil)
		require.ErrorIs(t, err, snug.ErrConfig)
	})
	t.Run("rate", func(t *testing.T) {
		for _, lr := range []float32{-1, nan, inf} {
			a := build(nil)
			a.Advance(lr)
			_, err := a.StepInBackward(BackwardOptions{}, two)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.Zero(t, a.Steps())
		}
		a, before := build(nil), append([]float32(nil), p...)
		_, err := a.StepInBackward(BackwardOptions{}, two)
		require.ErrorContains(t, err, "call Advance first")
		a.Advance(0)
		_, err = a.StepInBackward(BackwardOptions{}, two)
		require.NoError(t, err)
		require.True(t, equal(before, p), "0 is a rate")
	})
}

// TestLoudReaders: a Reader or Writer that panics leaves nothing acquired. A state that was
// read in part cannot be used.
//
//check:in race
func TestLoudReaders(t *testing.T) {
	store := newFakeStorage()
	a := newAdamW(t, Options{Chunk: 1024, Storage: store}, map[string]int{"w": 5000})
	advance(a)
	step(t, a, "w", kerneltest.Normal(1, 5000), kerneltest.Normal(2, 5000), 1)
	data := bytesOf(a.AppendBinary(nil))
	var file bytes.Buffer
	_, err := a.WriteBitsAndBytes(&file, BitsAndBytesFormat{})
	require.NoError(t, err)
	for n := 0; n < len(data); n += 500 {
		require.ErrorIs(t, kerneltest.Recovered(func() error { return second(a.WriteTo(&kerneltest.FaultStream{Left: n})) }), kerneltest.ErrFault)
		require.ErrorIs(t, kerneltest.Recovered(func() error {
			return second(a.WriteBitsAndBytes(&kerneltest.FaultStream{Left: n}, BitsAndBytesFormat{}))
		}), kerneltest.ErrFault)
		require.Empty(t, store.lent)
		require.NoError(t, a.usable(), "writing changes nothing")
	}
	for name, read := range map[string]func(n int) error{
		"stream": func(n int) error {
			return second(a.ReadFrom(&kerneltest.FaultStream{Reader: bytes.NewReader(data), Left: n}))
		},
		"shards": func(n int) error {
			return a.ReadShards(&kerneltest.FaultStream{Reader: bytes.NewReader(data), Left: n})
		},
		"file": func(n int) error {
			return a.ReadBitsAndBytes(&kerneltest.FaultStream{Reader: bytes.NewReader(file.Bytes()), Left: n}, int64(file.Len()), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			unusable := 0
			for n := 0; ; n += 500 {
				before := stateOf(t, a)
				err := kerneltest.Recovered(func() error { return read(n) })
				if err == nil {
					break
				}
				require.ErrorIs(t, err, kerneltest.ErrFault, name)
				require.Empty(t, store.lent)
				if err := a.usable(); err != nil {
					unusable++
					require.ErrorContains(t, err, "restore")
					require.NoError(t, a.UnmarshalBinary(data))
				} else {
					require.Equal(t, before, stateOf(t, a), fmt.Sprint(name, n))
				}
			}
			require.NotZero(t, unusable, name)
		})
	}
}
