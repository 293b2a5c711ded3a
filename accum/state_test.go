package accum

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/internal/state/statetest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func save(t require.TestingT, w *Window) []byte {
	b, err := w.AppendBinary(nil)
	require.NoError(t, err)
	return b
}

// script is a run of a window over a and b, one statement after the other.
func script(t require.TestingT, p kerneltest.Backend, n int) []func(w *Window) {
	tb, _ := t.(testing.TB)
	var steps []func(w *Window)
	for i := range 5 {
		a, b := kerneltest.Uniform(uint64(i), 3), kerneltest.Uniform(uint64(i+10), n)
		va, vb := snug.ViewOf(a), snug.ViewOf(b)
		if p.Dev != nil {
			va, vb = kerneltest.Put(tb, p, a).View, kerneltest.Put(tb, p, b).View
		}
		steps = append(steps,
			func(w *Window) { require.NoError(t, w.Begin(float64(i+1))) },
			func(w *Window) { require.NoError(t, w.Add("a", va)) },
			func(w *Window) { require.NoError(t, w.Add("b", vb)) },
			func(w *Window) {
				full, err := w.End()
				require.NoError(t, err)
				require.Equal(t, i == 2, full)
			})
		if i == 2 {
			steps = append(steps, (*Window).Reset)
		}
	}
	return steps
}

// TestResume saves and restores at every point of a run, in each memory, also
// within a micro-batch, with the parameters in another order.
func TestResume(t *testing.T) {
	n := stageLen + 3
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		steps := script(t, p, n)
		for at := range len(steps) + 1 {
			o := Options{Schedule: Constant(3), Buffer: kerneltest.Put(t, p, make([]float32, n+3)).View}
			w := newWindow(t, []Param{{"a", 3}, {"b", n}}, o)
			for _, step := range steps[:at] {
				step(w)
			}
			saved := save(t, w)
			o.Buffer = kerneltest.Put(t, p, kerneltest.Uniform(9, n+3)).View
			restored := newWindow(t, []Param{{"b", n}, {"a", 3}}, o)
			require.NoError(t, restored.Begin(5))
			require.NoError(t, restored.UnmarshalBinary(saved))
			for _, step := range steps[at:] {
				step(w)
				step(restored)
			}
			require.Equal(t, w.Stats(), restored.Stats())
			require.Equal(t, w.Weight(), restored.Weight())
			again := newWindow(t, []Param{{"a", 3}, {"b", n}}, Options{Schedule: Constant(3)})
			require.NoError(t, again.UnmarshalBinary(save(t, restored)))
			require.Equal(t, save(t, w), save(t, again), "saved after statement %d", at)
		}
	})
}

func TestResumeAfterDrop(t *testing.T) {
	o := Options{Schedule: Constant(2), NonFinite: DropMicro}
	w := one(t, 2, o)
	require.NoError(t, w.Begin(1))
	_, err := w.AddAll(kerneltest.Walk(kerneltest.Slice("w", []float32{1, nan})))
	require.NoError(t, err)
	restored := one(t, 2, o)
	require.NoError(t, restored.UnmarshalBinary(save(t, w)))
	_, err = restored.End()
	require.NoError(t, err)
	require.Equal(t, Stats{Micros: 1, Dropped: 1}, restored.Stats())
	require.Len(t, restored.NonFinite(), 1)
	require.Equal(t, w.NonFinite()[0].String(), restored.NonFinite()[0].String())
	require.Zero(t, restored.Weight())
}

// TestResumeSchedule: a window that was saved before its first micro-batch asks the Schedule
// that it has now, and one that was begun keeps its target.
func TestResumeSchedule(t *testing.T) {
	for begun, want := range map[int]int{0: 9, 1: 4, 3: 4} {
		w := one(t, 1, Options{Schedule: Constant(4)})
		for range begun {
			micro(t, w, 1, 1)
		}
		restored := one(t, 1, Options{Schedule: Constant(9)})
		require.NoError(t, restored.UnmarshalBinary(save(t, w)))
		require.Equal(t, want, restored.Target().Micros)
		for i := begun + 1; i <= want; i++ {
			require.Equal(t, i == want, micro(t, restored, 1, 1))
		}
		restored.Reset()
		require.Equal(t, 9, restored.Target().Micros)
	}
	// What a Schedule learns between windows holds whether the run was restored or not.
	noise, err := NewNoiseScale(NoiseOptions{Min: 1, Max: 64})
	require.NoError(t, err)
	w := one(t, 1, Options{Schedule: noise})
	micro(t, w, 1, 1)
	w.Reset()
	require.NoError(t, noise.Observe(Moments{Squares: 9, Inverse: 1, Total: 4}, math.Sqrt(3)))
	again, err := NewNoiseScale(NoiseOptions{Min: 1, Max: 64})
	require.NoError(t, err)
	restored := one(t, 1, Options{Schedule: again})
	require.NoError(t, restored.UnmarshalBinary(save(t, w)))
	require.Greater(t, w.Target().Weight, 1.0)
	require.Equal(t, w.Target(), restored.Target())
}

func TestStateSize(t *testing.T) {
	w := one(t, 1000, Options{})
	micro(t, w, 1, make([]float32, 1000)...)
	require.Greater(t, len(save(t, w)), 4000)
	w.Reset()
	require.Less(t, len(save(t, w)), 300, "nothing to keep between windows")
}

func TestStateStream(t *testing.T) {
	w := one(t, 10, Options{})
	micro(t, w, 1, kerneltest.Uniform(1, 10)...)
	var b bytes.Buffer
	n, err := w.WriteTo(&b)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), n)
	b.WriteString("tail")
	restored := one(t, 10, Options{})
	m, err := restored.ReadFrom(iotest.HalfReader(&b))
	require.NoError(t, err)
	require.Equal(t, n, m)
	require.Equal(t, "tail", b.String())
	require.Equal(t, kerneltest.Uniform(1, 10), mean(t, restored, "w"))
}

func TestStateErrors(t *testing.T) {
	w := one(t, 3, Options{Schedule: Constant(2)})
	micro(t, w, 2, 1, 2, 3)
	saved := save(t, w)
	other := func() *Window {
		w := one(t, 3, Options{Schedule: Constant(2)})
		micro(t, w, 1, 7, 8, 9)
		return w
	}
	unchanged := save(t, other())
	refuse := func(data []byte, want error, msg string) {
		t.Helper()
		w := other()
		require.ErrorIs(t, w.UnmarshalBinary(data), want, msg)
		require.Equal(t, unchanged, save(t, w), msg)
	}
	for i := range saved {
		damaged := bytes.Clone(saved)
		damaged[i] ^= 1
		refuse(damaged, snug.ErrCorrupt, "a bit differs")
		refuse(saved[:i], snug.ErrCorrupt, "the end is missing")
		for _, data := range [][]byte{damaged, saved[:i]} {
			w := other()
			_, err := w.ReadFrom(bytes.NewReader(data))
			require.ErrorIs(t, err, snug.ErrCorrupt)
			if w.Micros() > 0 {
				require.Equal(t, unchanged, save(t, w))
			}
		}
	}
	refuse(append(bytes.Clone(saved), 0), snug.ErrCorrupt, "a byte too many")

	newer := bytes.Clone(saved)
	newer[state.MagicLen]++
	refuse(statetest.Seal(newer), snug.ErrCorrupt, "newer")
	foreign := bytes.Clone(saved)
	foreign[0] = 'X'
	refuse(statetest.Seal(foreign), snug.ErrCorrupt, "foreign")
	lie := func(change func(*state.Window)) []byte {
		var b bytes.Buffer
		d, e := state.NewDecoder(bytes.NewReader(saved), state.WindowMagic), state.NewEncoder(&b, state.WindowMagic)
		h := d.GetWindow()
		rest := make([]byte, d.Left())
		d.Get(rest)
		size := h.DataSize()
		d.Data(size)
		data := make([]byte, size)
		d.Get(data)
		_, err := d.Finish()
		require.NoError(t, err)
		change(h)
		e.PutWindow(h)
		e.Put(rest)
		e.Data(size)
		e.Put(data)
		_, err = e.Finish()
		require.NoError(t, err)
		return b.Bytes()
	}
	refuse(lie(func(h *state.Window) { h.Step = -1 }), snug.ErrCorrupt, "negative count")
	refuse(lie(func(h *state.Window) { h.Weight = math.NaN() }), snug.ErrCorrupt, "weight")
	refuse(lie(func(h *state.Window) { h.Micro = -1 }), snug.ErrCorrupt, "weight of the micro-batch")
	refuse(lie(func(h *state.Window) { h.Full, h.Open = true, true }), snug.ErrCorrupt, "full and open")
	refuse(lie(func(h *state.Window) { h.Micros, h.Open, h.Full = 0, false, false }), snug.ErrCorrupt, "data that none has")
	refuse(lie(func(h *state.Window) { h.DType = 77 }), snug.ErrCorrupt, "an unknown type")
	refuse(lie(func(h *state.Window) { h.Params[0].Len = 1 << 60 }), snug.ErrCorrupt, "length")
	refuse(lie(func(h *state.Window) { h.Params = append(h.Params, state.WindowParam{Name: "x"}) }), snug.ErrShape, "number of parameters")
	require.NoError(t, other().UnmarshalBinary(lie(func(*state.Window) {})))

	for _, params := range [][]Param{{{"v", 3}}, {{"w", 4}}, {{"w", 3}, {"v", 0}}, nil} {
		w := newWindow(t, params, Options{})
		require.ErrorIs(t, w.UnmarshalBinary(saved), snug.ErrShape, "%v", params)
	}
	broken := errors.New("broken")
	w = other()
	_, err := w.ReadFrom(io.MultiReader(bytes.NewReader(saved[:len(saved)-8]), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.Zero(t, w.Micros(), "the window is empty")
	_, err = w.WriteTo(brokenWriter{broken})
	require.ErrorIs(t, err, broken)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func resumeProperty(t *rapid.T) {
	n := rapid.IntRange(0, 40).Draw(t, "n")
	steps := script(t, kerneltest.Backend{}, n)
	at := rapid.IntRange(0, len(steps)).Draw(t, "at")
	params := []Param{{"a", 3}, {"b", n}}
	w, restored := newWindow(t, params, Options{Schedule: Constant(3)}), newWindow(t, params, Options{Schedule: Constant(3)})
	for _, step := range steps[:at] {
		step(w)
	}
	require.NoError(t, restored.UnmarshalBinary(save(t, w)))
	for _, step := range steps[at:] {
		step(w)
		step(restored)
	}
	require.Equal(t, save(t, w), save(t, restored))
}

//check:in tiers
func TestResumeProperty(t *testing.T) { rapid.Check(t, resumeProperty) }
func FuzzResume(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(resumeProperty)) }

// FuzzRestore reads arbitrary bytes with a right checksum.
func FuzzRestore(f *testing.F) {
	w := one(f, 3, Options{Schedule: Constant(2)})
	micro(f, w, 2, 1, 2, 3)
	saved := save(f, w)
	f.Add(saved)
	f.Fuzz(func(t *testing.T, data []byte) {
		w := one(t, 3, Options{Schedule: Constant(2)})
		if w.UnmarshalBinary(statetest.Seal(data)) == nil {
			save(t, w)
		}
	})
}

// TestClosedDevice closes the device at several moments.
func TestClosedDevice(t *testing.T) {
	start := func(overflow NonFinitePolicy) (*Window, snug.View, *snug.Device) {
		dev, err := snug.Open("opaque:0")
		require.NoError(t, err)
		p := kerneltest.Backend{Name: "opaque", Dev: dev}
		w := one(t, 2, Options{Schedule: Constant(2), NonFinite: overflow, Buffer: kerneltest.Put(t, p, make([]float32, 2)).View})
		require.NoError(t, w.Begin(1))
		return w, kerneltest.Put(t, p, []float32{1, 2}).View, dev
	}
	w, g, dev := start(SkipWindow)
	require.NoError(t, w.Add("w", g))
	saved := save(t, w)
	require.NoError(t, dev.Close())
	require.ErrorIs(t, w.Add("w", g), snug.ErrConfig)
	_, err := w.AppendBinary(nil)
	require.ErrorIs(t, err, snug.ErrDevice)
	require.ErrorIs(t, w.UnmarshalBinary(saved), snug.ErrDevice)

	w, _, dev = start(SkipWindow)
	require.NoError(t, dev.Close())
	_, err = w.End()
	require.ErrorIs(t, err, snug.ErrDevice)

	for _, overflow := range []NonFinitePolicy{SkipWindow, DropMicro} {
		for at := 1; at <= 3; at++ {
			w, g, dev := start(overflow)
			walks := 0
			_, err := w.AddAll(func(yield func(string, snug.View) bool) {
				if walks++; walks == at {
					require.NoError(t, dev.Close())
				}
				yield("w", g)
			})
			if overflow == SkipWindow && at == 3 {
				require.NoError(t, err, "it walks twice only")
				continue
			}
			require.ErrorIs(t, err, snug.ErrDevice, "%v, walk %d", overflow, at)
		}
	}
}

// TestResumeEverything saves and restores at every point of windows with all
// options: the loss scale changes within a window, gradients overflow, a noise
// scale drives the schedule, and both are part of the one state.
//
//check:in ordered
//check:not checked
func TestResumeEverything(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, o := range []Options{{}, {NonFinite: DropMicro}, {DType: snug.BF16, Seed: 3}} {
			resumeEverything(t, p, o)
		}
	})
}

func resumeEverything(t *testing.T, p kerneltest.Backend, o Options) {
	const n = 5000
	if o.DType == 0 {
		o.DType = snug.F32
	}
	made := func() (*Window, *NoiseScale, *fakeScaler) {
		noise, err := NewNoiseScale(NoiseOptions{Min: 6, Max: 9})
		require.NoError(t, err)
		scaler := &fakeScaler{scale: 16}
		o := o
		o.Schedule, o.Scaler, o.Measure = noise, scaler, true
		o.Buffer = kerneltest.PutFloats(t, p, o.DType, make([]float32, n+2)).View
		return newWindow(t, []Param{{"a", 2}, {"b", n}}, o), noise, scaler
	}
	type run struct {
		w      *Window
		noise  *NoiseScale
		scaler *fakeScaler
	}
	var steps []func(r run)
	for i := range 8 {
		a, b := kerneltest.Uniform(uint64(i), 2), kerneltest.Uniform(uint64(i+10), n)
		if i == 4 {
			a[1] = nan
		}
		va, vb := kerneltest.Put(t, p, a).View, kerneltest.Put(t, p, b).View
		steps = append(steps, func(r run) {
			if i%3 == 1 {
				r.scaler.scale /= 2
			}
			require.NoError(t, r.w.Begin(float64(i%3+1)))
		})
		if o.NonFinite == DropMicro {
			steps = append(steps, func(r run) {
				_, err := r.w.AddAll(kerneltest.Walk(kerneltest.Named{Name: "a", View: va}, kerneltest.Named{Name: "b", View: vb}))
				require.NoError(t, err)
			})
		} else {
			steps = append(steps,
				func(r run) { require.NoError(t, r.w.Add("a", va)) },
				func(r run) { require.NoError(t, r.w.Add("b", vb)) })
		}
		steps = append(steps, func(r run) {
			full, err := r.w.End()
			require.NoError(t, err)
			if full {
				require.NoError(t, r.noise.Observe(r.w.Moments(), 1))
				r.w.Reset()
			}
		})
	}
	for at := range len(steps) + 1 {
		var a, b run
		a.w, a.noise, a.scaler = made()
		b.w, b.noise, b.scaler = made()
		for _, step := range steps[:at] {
			step(a)
		}
		require.NoError(t, b.w.UnmarshalBinary(save(t, a.w)))
		for _, step := range steps[at:] {
			step(a)
			step(b)
		}
		require.Equal(t, save(t, a.w), save(t, b.w), "saved after statement %d", at)
		require.Equal(t, a.scaler.scale, b.scaler.scale)
	}
}

func TestStateParts(t *testing.T) {
	with := one(t, 1, Options{Scaler: &fakeScaler{scale: 4}})
	without := one(t, 1, Options{})
	require.ErrorIs(t, without.UnmarshalBinary(save(t, with)), snug.ErrConfig)
	require.ErrorIs(t, with.UnmarshalBinary(save(t, without)), snug.ErrConfig)
	require.ErrorIs(t, one(t, 1, Options{DType: snug.BF16}).UnmarshalBinary(save(t, without)), snug.ErrDType)

	broken := errors.New("broken")
	scaler := &fakeScaler{scale: 4, err: broken}
	w := one(t, 1, Options{Scaler: scaler})
	_, err := w.AppendBinary(nil)
	require.ErrorIs(t, err, broken)
	saved := save(t, with)
	micro(t, w, 1, 5)
	require.ErrorIs(t, w.UnmarshalBinary(saved), broken)
	require.Equal(t, []float32{5}, mean(t, w, "w"), "the window has not changed")
	_, err = w.ReadFrom(bytes.NewReader(saved))
	require.ErrorIs(t, err, broken)
}

// stateProperty reads any bytes, with a right checksum and without: they are
// refused or give a window that works.
func stateProperty(t *rapid.T) {
	source := newWindow(t, []Param{{"a", 3}, {"b", 2}}, Options{Schedule: Constant(2), Measure: true})
	require.NoError(t, source.Begin(2))
	require.NoError(t, source.Add("a", snug.ViewOf([]float32{1, inf, 3})))
	if rapid.Bool().Draw(t, "ended") {
		_, err := source.End()
		require.NoError(t, err)
	}
	data := save(t, source)
	body := bytes.Clone(data)
	for range rapid.IntRange(1, 4).Draw(t, "damages") {
		body[rapid.IntRange(0, len(body)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
	}
	body = body[:len(body)-rapid.SampledFrom([]int{0, 0, 0, 1, 7}).Draw(t, "cut")]
	w := newWindow(t, []Param{{"a", 3}, {"b", 2}}, Options{Schedule: Constant(2), Measure: true})
	if !bytes.Equal(body, data) {
		require.ErrorIs(t, w.UnmarshalBinary(body), snug.ErrCorrupt)
	}
	if err := w.UnmarshalBinary(statetest.Seal(body)); err != nil {
		require.True(t, errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrShape) || errors.Is(err, snug.ErrDType) || errors.Is(err, snug.ErrConfig), err)
		return
	}
	if !w.open && !w.full && w.Begin(1) != nil {
		return // such as a weight too far from 1
	}
	if w.open {
		_ = w.Add("b", snug.ViewOf([]float32{1, 2}))
		_, err := w.End()
		require.NoError(t, err)
	}
	_, err := w.Flush()
	require.NoError(t, err)
	w.Moments()
	w.Reset()
	save(t, w)
}

//check:in tiers
func TestStateProperty(t *testing.T) { rapid.Check(t, stateProperty) }
func FuzzState(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(stateProperty)) }
