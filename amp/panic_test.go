package amp

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// loudStorage fails or panics in one of its calls, which are counted from 1.
type loudStorage struct {
	memory
	lent      map[string]bool
	calls, at int
	panics    bool
}

func newLoudStorage() *loudStorage {
	return &loudStorage{memory: memory{}, lent: map[string]bool{}}
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
	l.lent[key] = true
	return l.memory.Acquire(key, size)
}

func (l *loudStorage) Release(key string, _ bool) error {
	delete(l.lent, key)
	return l.loud()
}

// requireHalf expects a parameter that was half updated to be refused.
func requireHalf(t *testing.T, m *Master, name string, param snug.View) {
	t.Helper()
	says := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "half-way")
	}
	says(m.Update(name, param, func(int, snug.View) error {
		require.Fail(t, "a step of half a parameter")
		return nil
	}))
	_, err := m.WriteTo(io.Discard)
	says(err)
	if m.form == FullMaster {
		says(m.Copy(name, param))
	}
}

var allForms = []MasterForm{FullMaster, SplitMaster, NoMaster}

// TestLoudMaster has every call of a Storage and of step fail, and panic. Nothing stays
// acquired, and either the update can be repeated, with the bits of one that was not
// disturbed, or the parameter is refused.
//
//check:in race
func TestLoudMaster(t *testing.T) {
	const n = 5
	start := []float32{1, 2, 3, 4, 5}
	for _, form := range allForms {
		run := func(l *loudStorage, stepAt int, panics bool) (m *Master, p snug.View, update func() error) {
			m = newMaster(t, MasterOptions{Form: form, Storage: l, Chunk: 2})
			p = snug.ViewOf(make([]snug.BFloat16, n))
			require.NoError(t, m.AddFrom("w", p, fillWith(start)))
			return m, p, func() error {
				return m.Update("w", p, func(lo int, v snug.View) error {
					if stepAt--; stepAt == 0 && !panics {
						return kerneltest.ErrFault // with w as it was
					}
					for i := range v.Float32s() {
						v.Float32s()[i] *= 1.001
					}
					if stepAt == 0 {
						panic(kerneltest.ErrFault)
					}
					return nil
				})
			}
		}
		calm, want, update := run(newLoudStorage(), 0, false)
		require.NoError(t, update())
		wanted, saved := append([]snug.BFloat16(nil), want.BFloat16s()...), saveMaster(t, calm)
		repeated, half := 0, 0
		check := func(l *loudStorage, m *Master, p snug.View, update func() error) {
			require.Empty(t, l.lent)
			if !m.params["w"].half {
				repeated++
				require.NoError(t, update())
				require.Equal(t, wanted, p.BFloat16s())
				require.Equal(t, saved, saveMaster(t, m))
				return
			}
			half++
			requireHalf(t, m, "w", p)
			require.Empty(t, l.lent)
			if form == FullMaster {
				_, err := m.ReadFrom(bytes.NewReader(saved))
				require.NoError(t, err)
				require.NoError(t, m.Copy("w", p))
				require.Equal(t, wanted, p.BFloat16s())
			}
		}
		for _, panics := range []bool{false, true} {
			for at := 1; ; at++ {
				l := newLoudStorage()
				l.panics = panics
				m, p, update := run(l, 0, false)
				l.calls, l.at = 0, at
				err := kerneltest.Recovered(update)
				if err == nil {
					break
				}
				require.ErrorIs(t, err, kerneltest.ErrFault)
				check(l, m, p, update)
			}
			for at := 1; at <= 3; at++ {
				l := newLoudStorage()
				m, p, update := run(l, at, panics)
				require.ErrorIs(t, kerneltest.Recovered(update), kerneltest.ErrFault)
				require.Equal(t, at > 1 || panics && form == FullMaster, m.params["w"].half, "%v, chunk %d", form, at)
				check(l, m, p, update)
			}
		}
		require.NotZero(t, repeated)
		require.NotZero(t, half)
	}
}

func saveMaster(t *testing.T, m *Master) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	require.NoError(t, err)
	return b
}

// TestLoudFill: a fill or a Storage that panics leaves nothing registered or acquired.
//
//check:in race
func TestLoudFill(t *testing.T) {
	for _, form := range allForms {
		for at := 1; at <= 3; at++ {
			l := newLoudStorage()
			m := newMaster(t, MasterOptions{Form: form, Storage: l, Chunk: 2})
			p, calls := snug.ViewOf(make([]snug.BFloat16, 5)), 0
			fill := func(int, []float32) error {
				if calls++; calls == at {
					panic(kerneltest.ErrFault)
				}
				return nil
			}
			require.ErrorIs(t, kerneltest.Recovered(func() error { return m.AddFrom("w", p, fill) }), kerneltest.ErrFault)
			require.Empty(t, l.lent)
			require.Zero(t, m.Bytes())
			if form == FullMaster {
				calls = 0
				require.ErrorIs(t, kerneltest.Recovered(func() error { return m.Add("w", 5, fill) }), kerneltest.ErrFault)
				require.Empty(t, l.lent)
			}
			l.calls, l.at, l.panics = 0, at, true
			if err := kerneltest.Recovered(func() error { return m.AddFrom("w", p, nil) }); form != NoMaster {
				require.ErrorIs(t, err, kerneltest.ErrFault)
				require.Empty(t, l.lent)
				l.at = 0
				require.NoError(t, m.AddFrom("w", p, nil))
			}
		}
	}
}

//check:in race
func TestLoudMasterStreams(t *testing.T) {
	l := newLoudStorage()
	m := newMaster(t, MasterOptions{Storage: l, Chunk: 10})
	require.NoError(t, m.Add("w", 100, func(int, []float32) error { return nil }))
	data := saveMaster(t, m)
	for n := 0; n < len(data); n += 30 {
		require.ErrorIs(t, kerneltest.Recovered(func() error { _, err := m.WriteTo(&kerneltest.FaultStream{Left: n}); return err }), kerneltest.ErrFault)
		require.Empty(t, l.lent)
		require.Equal(t, data, saveMaster(t, m))
		other := newMaster(t, MasterOptions{Storage: l, Chunk: 10})
		require.NoError(t, other.Add("w", 100, nil))
		require.ErrorIs(t, kerneltest.Recovered(func() error {
			_, err := other.ReadFrom(&kerneltest.FaultStream{Reader: bytes.NewReader(data), Left: n})
			return err
		}), kerneltest.ErrFault)
		require.Empty(t, l.lent)
		require.NoError(t, other.UnmarshalBinary(data))
		require.Equal(t, data, saveMaster(t, other))
	}
}

// TestMasterWithin: a call of a Master from a function that it calls is an error, since both
// would have the same memory.
func TestMasterWithin(t *testing.T) {
	m := newMaster(t, MasterOptions{Form: NoMaster})
	p, q := snug.ViewOf(make([]snug.BFloat16, 3)), snug.ViewOf(make([]snug.BFloat16, 3))
	require.NoError(t, m.AddFrom("w", p, nil))
	require.NoError(t, m.AddFrom("v", q, nil))
	require.NoError(t, m.Update("w", p, func(int, snug.View) error {
		for _, err := range []error{
			m.Update("v", q, func(int, snug.View) error { return nil }),
			m.AddFrom("u", q, nil),
			m.UnmarshalBinary(nil),
			second(m.WriteTo(io.Discard)),
			m.Close(),
		} {
			require.Error(t, err)
		}
		return nil
	}))
	require.NoError(t, m.Update("v", q, func(int, snug.View) error { return nil }))
}

func second(_ int64, err error) error { return err }

// loudWalk panics, or stops, at its call number at, before gradient number before.
func loudWalk(at, before int, panics bool, grads ...[]float32) iter.Seq2[string, snug.View] {
	calls := 0
	return func(yield func(string, snug.View) bool) {
		calls++
		for i, g := range grads {
			if calls == at && i == before {
				if panics {
					panic(kerneltest.ErrFault)
				}
				return
			}
			if !yield(string(rune('a'+i)), snug.ViewOf(g)) {
				return
			}
		}
	}
}

// TestLoudWalk: a walk that panics or stops while it unscales or clips leaves gradients that
// are not taken until Update.
//
//check:in race
func TestLoudWalk(t *testing.T) {
	for _, panics := range []bool{false, true} {
		for at := 1; at <= 2; at++ {
			for before := range 2 {
				for _, op := range []string{"Unscale", "Clip", "ClipValue", "Step"} {
					s, err := NewScaler(ScalerOptions{Init: 4})
					require.NoError(t, err)
					s.Scale()
					good := func() iter.Seq2[string, snug.View] {
						return loudWalk(0, 0, false, []float32{4}, []float32{8})
					}
					bad := loudWalk(at, before, panics, []float32{4}, []float32{8})
					call := func(grads iter.Seq2[string, snug.View]) error {
						switch op {
						case "Unscale":
							_, err := s.Unscale("sgd", grads)
							return err
						case "Step":
							_, err := s.Step("sgd", grads, func() error { return nil })
							return err
						case "Clip":
							_, err := s.Clip("sgd", grads, 0.1)
							return err
						}
						_, err := s.ClipValue("sgd", grads, 0.1)
						return err
					}
					if op == "Clip" || op == "ClipValue" {
						_, err := s.Unscale("sgd", good())
						require.NoError(t, err)
					}
					err = kerneltest.Recovered(func() error { return call(bad) })
					require.Error(t, err)
					require.True(t, errors.Is(err, kerneltest.ErrFault) == panics, err)
					if at == 1 && panics || before == 0 { // nothing was changed
						require.NoError(t, call(good()), "%s, walk %d, gradient %d", op, at, before)
						continue
					}
					if at == 1 { // the first walk had less than the second
						require.ErrorIs(t, err, snug.ErrConfig)
					}
					for _, err := range []error{call(good()), call(nil)} {
						require.ErrorIs(t, err, snug.ErrConfig)
						require.ErrorContains(t, err, "half-way")
					}
					stepped, err := s.Step("sgd", nil, func() error { return nil })
					require.ErrorContains(t, err, "half-way")
					require.False(t, stepped)
					require.NoError(t, s.Update())
					require.Equal(t, float32(4), s.Scale(), "nothing to learn from")
					_, err = s.Unscale("sgd", good())
					require.NoError(t, err)
				}
			}
		}
	}
}

// TestLoudStep: a step that panics is not noted as made.
//
//check:in race
func TestLoudStep(t *testing.T) {
	s, err := NewScaler(ScalerOptions{})
	require.NoError(t, err)
	s.Scale()
	grads := loudWalk(0, 0, false, []float32{4})
	require.ErrorIs(t, kerneltest.Recovered(func() error {
		_, err := s.Step("sgd", grads, func() error { panic(kerneltest.ErrFault) })
		return err
	}), kerneltest.ErrFault)
	stepped, err := s.Step("sgd", nil, func() error { return nil })
	require.NoError(t, err)
	require.True(t, stepped)
	require.NoError(t, s.Update())
}

// TestDeafWalk goes on after it was told to stop: the error stays.
func TestDeafWalk(t *testing.T) {
	_, err := Measure(func(yield func(string, snug.View) bool) {
		yield("a", snug.SliceView([]uint8{1}))
		yield("b", snug.ViewOf([]float32{1}))
	})
	require.ErrorIs(t, err, snug.ErrDType)
	err = CastAll(func(yield func(string, CastPair) bool) {
		yield("a", CastPair{snug.ViewOf([]float32{1}), snug.ViewOf([]float32{1, 2})})
		yield("b", CastPair{snug.ViewOf([]float32{1}), snug.ViewOf([]float32{1})})
	}, CastOptions{})
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorIs(t, kerneltest.Recovered(func() error {
		return CastAll(func(func(string, CastPair) bool) { panic(kerneltest.ErrFault) }, CastOptions{})
	}), kerneltest.ErrFault)
	require.NoError(t, CastAll(func(func(string, CastPair) bool) {}, CastOptions{}))
}

// TestZeroAmp calls all methods of zero values, and functions with zero and extreme
// arguments. None panics, and those of values that want a constructor return errors.
func TestZeroAmp(t *testing.T) {
	kerneltest.Zero(t,
		new(Scaler), new(Master), new(Policy), new(Ops), new(Stats), new(Weights), new(LostUpdates), MasterForm(255), Mode(-1), Rule(-1), ScalerOptions{},
		NewScaler, NewMaster, ParsePolicy, SaveWeights, SaveShards, WriteWeights, Measure, Clip, ClipValue, ClipCoef, CastAll,
		Cast[[]float32, []snug.Float16], Cast[snug.View, snug.View], CastWith[[]snug.BFloat16, []float32], CastWith[snug.View, snug.View],
		MatMul[[]float32, []float32, []float32], MatMul[snug.View, snug.View, snug.View],
	)
	for _, x := range []any{new(Scaler), new(Master), new(Policy), new(Ops), new(Stats), new(MasterForm), new(Mode), new(LostUpdates), new(CastOptions), new(MatMulOptions), new(ScalerOptions)} {
		v := reflect.ValueOf(x)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			for _, number := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
				args := []reflect.Value{v}
				for j := 1; j < m.Type.NumIn(); j++ {
					arg := reflect.New(m.Type.In(j)).Elem()
					if arg.CanInt() {
						arg.SetInt(number)
					}
					args = append(args, arg)
				}
				var results []reflect.Value
				call := m.Func.Call
				if m.Type.IsVariadic() {
					call = m.Func.CallSlice
				}
				require.NotPanics(t, func() { results = call(args) }, "%T.%s", x, m.Name)
				n := m.Type.NumOut()
				if n == 0 || m.Type.Out(n-1) != reflect.TypeFor[error]() || m.Name == "Close" {
					continue
				}
				switch x.(type) {
				case *Scaler, *Master:
					err, _ := results[n-1].Interface().(error)
					require.Error(t, err, "%T.%s", x, m.Name)
				}
			}
		}
	}
	for _, k := range []int{math.MinInt, -1, 0, 1, math.MaxInt} {
		_ = MatMul([]float32{}, []float32{}, []float32{}, MatMulOptions{M: k, N: k, K: k})
		_, err := NewMaster(MasterOptions{Chunk: k, Device: new(snug.Device)})
		if k < 0 || k == math.MaxInt {
			require.ErrorIs(t, err, snug.ErrConfig)
		}
		m, err := NewMaster(MasterOptions{})
		require.NoError(t, err)
		if k < 0 || k == math.MaxInt {
			require.ErrorIs(t, m.Add("w", k, func(int, []float32) error { return nil }), snug.ErrShape)
		}
	}
	require.Error(t, Cast(snug.View{}, snug.View{}))
	_, err := Measure(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.True(t, math.IsNaN(float64(ClipCoef(-1, 1))))
}
