package quant8

import (
	"bytes"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/internal/state/statetest"
)

var savedParams = map[string]int{"w": 5000, "b": 70, "empty": 0, "v": 4096}

// trainer runs an optimizer on parameters on some backend.
type trainer struct {
	t testing.TB
	a *Optimizer
	p map[string]*kerneltest.Buf[float32]
}

func newTrainer(t testing.TB, backend kerneltest.Backend, o Options) *trainer {
	tr := &trainer{t, newAdamW(t, o, savedParams), map[string]*kerneltest.Buf[float32]{}}
	for name, n := range savedParams {
		tr.p[name] = kerneltest.Put(t, backend, kerneltest.Normal(1, n))
	}
	return tr
}

func (tr *trainer) step(backend kerneltest.Backend, names ...string) {
	for _, name := range names {
		g := kerneltest.Put(tr.t, backend, kerneltest.Normal(uint64(tr.a.Steps()), savedParams[name]))
		require.NoError(tr.t, tr.a.Step(name, tr.p[name].View, g.View, 0.1))
	}
}

// TestRestoredRun saves in the middle of a step and continues in both the old
// and a new optimizer.
func TestRestoredRun(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, o := range []Options{{Chunk: 1024}, {Chunk: 1024, Bits: 32}, {Block: 33}, {Storage: newFakeStorage()}, {Bits: 4}, {Bits: 16}} {
			if o.Storage != nil && !onCPU(backend) {
				continue
			}
			old := newTrainer(t, backend, o)
			for i := range 3 {
				old.a.Advance(float32(i) * 0.01)
				old.step(backend, "w", "b", "empty", "v")
			}
			old.a.Advance(0.5)
			old.step(backend, "w", "empty")

			var stream bytes.Buffer
			n, err := old.a.WriteTo(&stream)
			require.NoError(t, err)
			require.EqualValues(t, stream.Len(), n)
			data, err := old.a.AppendBinary([]byte("front"))
			require.NoError(t, err)
			require.Equal(t, "front"+stream.String(), string(data))

			if o.Storage != nil {
				o.Storage = newFakeStorage()
			}
			restored := newTrainer(t, backend, o)
			if !onCPU(backend) { // a restore into state that lies on a device
				advance(restored.a)
				restored.step(backend, "v", "w", "b")
			}
			for name := range savedParams {
				restored.p[name] = kerneltest.Put(t, backend, old.p[name].Get())
			}
			stream.WriteString("more")
			n, err = restored.a.ReadFrom(iotest.OneByteReader(&stream))
			require.NoError(t, err)
			require.EqualValues(t, len(data)-5, n)
			require.Equal(t, "more", stream.String(), "nothing beyond is read")

			for _, tr := range []*trainer{old, restored} {
				tr.step(backend, "b", "v")
				advance(tr.a)
				tr.step(backend, "v", "w", "b", "empty")
				require.Equal(t, 5, tr.a.Steps())
			}
			for name := range savedParams {
				require.True(t, equal(old.p[name].Get(), restored.p[name].Get()), name)
			}
			require.Equal(t, stateOf(t, old.a), stateOf(t, restored.a))
		}
	})
}

// TestRestoredMaps restores state of other maps into an optimizer of the default
// ones, and back.
func TestRestoredMaps(t *testing.T) {
	other := Options{Map1: LinearMap(true), Map2: LinearMap(false)}
	for _, o := range [][2]Options{{{}, other}, {other, {}}, {other, other}} {
		old, restored := newTrainer(t, kerneltest.Backend{}, o[0]), newTrainer(t, kerneltest.Backend{}, o[1])
		advance(old.a)
		old.step(kerneltest.Backend{}, "w", "b")
		data, err := old.a.AppendBinary(nil)
		require.NoError(t, err)
		require.NoError(t, restored.a.UnmarshalBinary(data))
		m, v := old.a.Maps()
		gotM, gotV := restored.a.Maps()
		require.Equal(t, m, gotM)
		require.Equal(t, v, gotV)
		restored.p = old.p
		require.Equal(t, data, bytesOf(restored.a.AppendBinary(nil)))
		if o[0].Map1 == nil {
			continue
		}
		for _, entry := range []float32{1.5, float32(math.NaN())} {
			err := restored.a.UnmarshalBinary(edited(t, data, func(h *state.Optimizer) { h.Maps[1][255] = entry }))
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "Map2")
		}
		keeps := newAdamW(t, Options{}, savedParams)
		loose := newAdamW(t, Options{NearestCodes: true, Map1: LinearMap(false)}, savedParams)
		require.ErrorContains(t, keeps.UnmarshalBinary(bytesOf(loose.AppendBinary(nil))), "keeps signs")
	}
}

func bytesOf(b []byte, _ error) []byte { return b }

func TestSaveBeforeTheFirstStep(t *testing.T) {
	a, b := newAdamW(t, Options{}, savedParams), newAdamW(t, Options{}, savedParams)
	data, err := a.AppendBinary(nil)
	require.NoError(t, err)
	require.NoError(t, b.UnmarshalBinary(data))
	require.Zero(t, b.Steps())
	require.Equal(t, make([]byte, b.StateBytes()), stateOf(t, b))
}

// saveAfterSteps returns a saved state and an optimizer in another one.
func saveAfterSteps(t testing.TB) (data []byte, other *trainer) {
	tr := newTrainer(t, kerneltest.Backend{}, Options{})
	for range 2 {
		advance(tr.a)
		tr.step(kerneltest.Backend{}, "w", "b", "v")
	}
	data, err := tr.a.AppendBinary(nil)
	require.NoError(t, err)
	other = newTrainer(t, kerneltest.Backend{}, Options{})
	other.a.Advance(0.1)
	other.step(kerneltest.Backend{}, "w", "b", "v")
	return data, other
}

func headerOf(t testing.TB, data []byte) *state.Optimizer {
	d := state.NewDecoder(bytes.NewReader(data), state.OptimizerMagic)
	h := d.GetOptimizer(SavedNumbers)
	require.NoError(t, d.Err)
	return h
}

// edited returns saved state with another header.
func edited(t testing.TB, data []byte, change func(h *state.Optimizer)) []byte {
	h := headerOf(t, data)
	change(h)
	begin := statetest.Prefix + statetest.HeaderSize(data) + statetest.Checksum
	var b bytes.Buffer
	e := state.NewEncoder(&b, state.OptimizerMagic)
	e.PutOptimizer(h)
	e.Data(int64(len(data) - statetest.Checksum - begin))
	e.Put(data[begin : len(data)-statetest.Checksum])
	_, err := e.Finish()
	require.NoError(t, err)
	return b.Bytes()
}

// TestHeaderOfAnotherStep: a header with its sum in front of the state of another step is
// refused, such as where a file was overwritten in part.
func TestHeaderOfAnotherStep(t *testing.T) {
	a := newAdamW(t, Options{MinSize: 1}, map[string]int{"w": 600})
	p := kerneltest.Normal(1, 600)
	var saved [2][]byte
	for i := range saved {
		advance(a)
		step(t, a, "w", p, p, 1)
		saved[i] = bytesOf(a.AppendBinary(nil))
	}
	require.Equal(t, len(saved[0]), len(saved[1]))
	end := len(saved[0]) - int(a.StateBytes()) - statetest.Checksum
	mixed := append(bytes.Clone(saved[0][:end]), saved[1][end:]...)
	require.ErrorIs(t, a.UnmarshalBinary(mixed), snug.ErrCorrupt)
	_, err := a.ReadFrom(bytes.NewReader(mixed))
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorIs(t, a.ReadShards(bytes.NewReader(mixed)), snug.ErrCorrupt)
	require.NoError(t, a.UnmarshalBinary(saved[0]))
}

func TestDamaged(t *testing.T) {
	data, other := saveAfterSteps(t)
	before := stateOf(t, other.a)
	edit := func(at int, b byte) []byte {
		d := bytes.Clone(data)
		d[at] ^= b
		return d
	}
	change := func(f func(h *state.Optimizer)) []byte { return edited(t, data, f) }
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"empty", nil, snug.ErrCorrupt},
		{"kind", statetest.Seal(edit(0, 1)), snug.ErrCorrupt},
		{"version", statetest.Seal(edit(8, 3)), snug.ErrCorrupt},
		{"header length", edit(14, 0xff), snug.ErrCorrupt},
		{"header too long", edit(15, 0xff), snug.ErrCorrupt},
		{"data length", statetest.Seal(edit(16, 1)), snug.ErrCorrupt},
		{"header", edit(statetest.Prefix+1, 1), snug.ErrCorrupt},
		{"header cut", data[:statetest.Prefix+9], snug.ErrCorrupt},
		{"bits", change(func(h *state.Optimizer) { h.Bits = 32 }), snug.ErrConfig},
		{"block", change(func(h *state.Optimizer) { h.Block++ }), snug.ErrConfig},
		{"chunk", change(func(h *state.Optimizer) { h.Chunk++ }), snug.ErrConfig},
		{"MinSize", change(func(h *state.Optimizer) { h.MinSize++ }), snug.ErrConfig},
		{"no chunk", change(func(h *state.Optimizer) { h.Chunk = 0 }), snug.ErrCorrupt},
		{"step", change(func(h *state.Optimizer) { h.Step = 1 << 31 }), snug.ErrCorrupt},
		{"fold of a whole step", change(func(h *state.Optimizer) { h.Fold.Weight = 1 }), snug.ErrCorrupt},
		{"fold beyond its total", change(func(h *state.Optimizer) { h.Fold = state.OptimizerFold{Micros: 1, Weight: 2, Total: 2} }), snug.ErrCorrupt},
		{"norm", change(func(h *state.Optimizer) { h.Fold.Norm = math.NaN() }), snug.ErrCorrupt},
		{"rate", change(func(h *state.Optimizer) { h.LR = -1 }), snug.ErrCorrupt},
		{"order", change(func(h *state.Optimizer) { slices.Reverse(h.Params) }), snug.ErrCorrupt},
		{"fewer", change(func(h *state.Optimizer) { h.Params = h.Params[1:] }), snug.ErrCorrupt},
		{"count", statetest.Seal(edit(statetest.Prefix+36+2048+40+4+5, 1)), snug.ErrCorrupt},
		{"name length", statetest.Seal(edit(statetest.Prefix+36+2048+40+4+5+7, 1)), snug.ErrCorrupt},
		{"name", change(func(h *state.Optimizer) { h.Params[0].Name = "a" }), snug.ErrConfig},
		{"elements", change(func(h *state.Optimizer) { h.Params[0].Total++ }), snug.ErrConfig},
		{"bytes", change(func(h *state.Optimizer) { h.Params[0].Bytes--; h.Params[1].Bytes++ }), snug.ErrCorrupt},
		{"marks", change(func(h *state.Optimizer) { h.Params[0].Marks = "\x00\x00" }), snug.ErrCorrupt},
		{"state", edit(len(data)-100, 1), snug.ErrCorrupt},
		{"checksum", edit(len(data)-1, 1), snug.ErrCorrupt},
		{"cut", data[:len(data)-50], snug.ErrCorrupt},
		{"longer", append(bytes.Clone(data), 0), snug.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorIs(t, other.a.UnmarshalBinary(c.data), c.want)
			require.Equal(t, before, stateOf(t, other.a), "unchanged")
			require.Equal(t, 1, other.a.Steps())
			other.step(kerneltest.Backend{})
		})
	}
}

// TestFailedStream damages the state, which a stream meets after it has begun
// to write.
func TestFailedStream(t *testing.T) {
	data, other := saveAfterSteps(t)
	bad := bytes.Clone(data)
	bad[len(bad)-100] ^= 1
	_, err := other.a.ReadFrom(bytes.NewReader(bad))
	require.ErrorIs(t, err, snug.ErrCorrupt)
	err = other.a.Step("b", other.p["b"].View, other.p["b"].View, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "restore")
	_, err = other.a.WriteTo(io.Discard)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = other.a.ReadFrom(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, 2, other.a.Steps())
	advance(other.a)
	other.step(kerneltest.Backend{}, "b")
}

func TestOtherConfiguration(t *testing.T) {
	data, _ := saveAfterSteps(t)
	for name, params := range map[string]map[string]int{
		"fewer":    {"w": 5000, "b": 70, "empty": 0},
		"renamed":  {"w": 5000, "b": 70, "empty": 0, "u": 4096},
		"reshaped": {"w": 5001, "b": 70, "empty": 0, "v": 4096},
	} {
		a := newAdamW(t, Options{}, params)
		require.ErrorIs(t, a.UnmarshalBinary(data), snug.ErrConfig, name)
	}
	hyper := newWith(t, AdamW{Beta1: 0.5, WeightDecay: 1, DecayFirst: true}, Options{NearestCodes: true}, savedParams)
	require.NoError(t, hyper.UnmarshalBinary(data), "hyperparameters are the program's")
}

// failing passes n bytes and then fails.
type failing struct{ n int }

var errFull = errors.New("disk full")

func (f *failing) Write(b []byte) (int, error) {
	n := min(len(b), f.n)
	f.n -= n
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func TestInputOutputErrors(t *testing.T) {
	data, other := saveAfterSteps(t)
	for _, n := range []int{0, 100, 1000, len(data) - 1} {
		written, err := other.a.WriteTo(&failing{n})
		require.ErrorIs(t, err, errFull)
		require.EqualValues(t, n, written)
		read, err := other.a.ReadFrom(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(errFull)))
		require.ErrorIs(t, err, errFull)
		require.EqualValues(t, n, read)
		require.NoError(t, other.a.UnmarshalBinary(data))
	}
	store := newFakeStorage()
	stored := newAdamW(t, Options{Storage: store}, savedParams)
	store.fail = errFull
	require.ErrorIs(t, stored.UnmarshalBinary(data), errFull)
	b, err := newAdamW(t, Options{Storage: store}, savedParams).AppendBinary([]byte("x"))
	require.ErrorIs(t, err, errFull)
	require.Equal(t, "x", string(b))
}

// TestStreamMemory saves and restores without holding the state twice.
func TestStreamMemory(t *testing.T) {
	const n = 2 << 20
	a := newAdamW(t, Options{}, map[string]int{"w": n})
	p := snug.ViewOf(make([]float32, n))
	advance(a)
	require.NoError(t, a.Step("w", p, p, 1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, w := io.Pipe()
	go func() {
		_, err := a.WriteTo(w)
		w.CloseWithError(err)
	}()
	b := newAdamW(t, Options{}, map[string]int{"w": n})
	_, err := b.ReadFrom(r)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.TotalAlloc-before.TotalAlloc), b.StateBytes()+1<<19, "the state of b and little else")
}

// anyBytes feeds a reader damaged data, with checksums repaired or not.
func anyBytes(t *rapid.T, data []byte, a *Optimizer) {
	d := bytes.Clone(data)
	for range rapid.IntRange(1, 5).Draw(t, "edits") {
		at := rapid.IntRange(0, 200).Draw(t, "at") // mostly the header
		if rapid.Bool().Draw(t, "anywhere") {
			at = rapid.IntRange(0, len(d)-1).Draw(t, "at")
		}
		d[at] = rapid.Byte().Draw(t, "byte")
	}
	d = d[:rapid.IntRange(0, len(d)).Draw(t, "cut")]
	if rapid.Bool().Draw(t, "whole") {
		d = append(d, data[len(d):]...)
	}
	sealed := rapid.Bool().Draw(t, "sealed")
	if sealed {
		d = statetest.Seal(d)
	}
	for _, err := range []error{a.UnmarshalBinary(d), second(a.ReadFrom(bytes.NewReader(d))), a.ReadShards(bytes.NewReader(d))} {
		if err != nil {
			require.True(t, errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrConfig), err)
		} else if !sealed {
			require.Equal(t, data, d, "damage was not noticed")
		}
	}
}

func second(_ int64, err error) error { return err }

func TestAnyBytes(t *testing.T) {
	data, other := saveAfterSteps(t)
	rapid.Check(t, func(t *rapid.T) { anyBytes(t, data, other.a) })
}

func FuzzAnyBytes(f *testing.F) {
	data, other := saveAfterSteps(f)
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { anyBytes(t, data, other.a) }))
}

// saveShard returns a saved state of shards and other maps, and its optimizer.
func saveShard(t testing.TB) ([]byte, *Optimizer) {
	a := newAdamW(t, Options{Map1: LinearMap(true)}, map[string]int{"b": 10})
	require.NoError(t, a.AddShard("w", 5000, 256, 1024))
	return bytesOf(a.AppendBinary(nil)), a
}

func TestAnyShardBytes(t *testing.T) {
	data, a := saveShard(t)
	rapid.Check(t, func(t *rapid.T) { anyBytes(t, data, a) })
}

func FuzzAnyShardBytes(f *testing.F) {
	data, a := saveShard(f)
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { anyBytes(t, data, a) }))
}

func TestHeaderIsStable(t *testing.T) {
	a := newAdamW(t, Options{}, map[string]int{"b": 1, "a": 2})
	data := bytesOf(a.AppendBinary(nil))
	const size = 36 + 2048 + 40 + 4 + 5 + 4 + 2*(4+1+52+4)
	require.Equal(t, "SNUGOPTI\x01\x00\x00\x00"+ // version 1
		string([]byte{size & 255, size >> 8, 0, 0})+"\x18\x00\x00\x00\x00\x00\x00\x00"+ // 24 bytes of data
		"\x08\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00"+
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", string(data[:statetest.Prefix+36])) // step 0, no rate
	require.Equal(t, "\x05\x00\x00\x00AdamW\x02\x00\x00\x00"+
		"\x01\x00\x00\x00a\x02\x00\x00\x00\x00\x00\x00\x00", string(data[statetest.Prefix+36+2048+40:][:4+5+4+13]))
	require.Len(t, data, statetest.Prefix+size+statetest.Checksum+24+statetest.Checksum)
}
