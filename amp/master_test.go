package amp

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/internal/state/statetest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var forms = []MasterForm{FullMaster, SplitMaster, NoMaster, Split24Master}

var errBroken = errors.New("broken")

// diary is a Storage that notes its calls and can fail.
type diary struct {
	memory
	log     []string
	failing string // the call that fails
	cut     int    // bytes that Acquire returns too few
	shift   int    // bytes by which it is not aligned
	bytes   int    // of all keys
}

func newDiary() *diary { return &diary{memory: memory{}} }

func (d *diary) note(call string) error {
	d.log = append(d.log, call)
	if call == d.failing {
		return errBroken
	}
	return nil
}

func (d *diary) Acquire(key string, size int) ([]byte, error) {
	if err := d.note("acquire " + key); err != nil {
		return nil, err
	}
	if d.shift > 0 {
		memory := make([]float32, size/4+1)
		return unsafe.Slice((*byte)(unsafe.Pointer(&memory[0])), size+4)[d.shift : d.shift+size], nil
	}
	if _, old := d.memory[key]; !old {
		d.bytes += size
	}
	b, err := d.memory.Acquire(key, size)
	return b[:len(b)-d.cut], err
}

func (d *diary) Release(key string, dirty bool) error {
	if dirty {
		key += " dirty"
	}
	return d.note("release " + key)
}

func newMaster(t require.TestingT, o MasterOptions) *Master {
	m, err := NewMaster(o)
	require.NoError(t, err)
	return m
}

// fillWith fills masters from x.
func fillWith(x []float32) func(int, []float32) error {
	return func(lo int, w []float32) error {
		copy(w, x[lo:])
		return nil
	}
}

// weights returns all masters of a parameter.
func weights(t require.TestingT, m *Master, name string, n int) []float32 {
	out := make([]float32, n)
	require.NoError(t, m.Copy(name, snug.ViewOf(out)))
	return out
}

func TestMasterUpdate(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, n := range []int{0, 1, 10, 25} {
				start := kerneltest.Uniform(5, n)
				m := newMaster(t, MasterOptions{Chunk: 10})
				require.NoError(t, m.Add("w", n, fillWith(start)))
				param := kerneltest.PutFloats(t, p, dt, make([]float32, n))
				require.NoError(t, m.Copy("w", param.View))
				require.Equal(t, roundAll(dt, start), param.Get())
				want := make([]float32, n)
				for range 3 {
					next := 0
					require.NoError(t, m.Update("w", param.View, func(lo int, v snug.View) error {
						w := v.Float32s()
						require.Equal(t, next, lo)
						require.LessOrEqual(t, len(w), 10)
						next += len(w)
						for i := range w {
							w[i] += 1e-4
							want[lo+i] = w[i]
						}
						return nil
					}))
					require.Equal(t, n, next)
					require.Equal(t, roundAll(dt, want), param.Get())
				}
				require.Equal(t, want, weights(t, m, "w", n))
				require.Equal(t, int64(4*n), m.Bytes())
			}
		}
	})
}

// TestMasterKeepsSmallUpdates is what masters are for.
func TestMasterKeepsSmallUpdates(t *testing.T) {
	m := newMaster(t, MasterOptions{})
	require.NoError(t, m.Add("w", 1, fillWith([]float32{1})))
	param := []snug.BFloat16{0}
	for range 1000 {
		require.NoError(t, m.Update("w", snug.ViewOf(param), func(_ int, w snug.View) error {
			w.Float32s()[0] += 0x1p-10
			return nil
		}))
	}
	require.Equal(t, snug.ToBFloat16(1+1000*0x1p-10), param[0])
}

func TestMasterStorageCalls(t *testing.T) {
	d := newDiary()
	m := newMaster(t, MasterOptions{Storage: d, Chunk: 2})
	require.NoError(t, m.Add("w", 3, fillWith([]float32{1, 2, 3})))
	require.Equal(t, []string{"acquire master/w/0", "release master/w/0 dirty", "acquire master/w/1", "release master/w/1 dirty"}, d.log)
	d.log = nil
	require.Equal(t, []float32{1, 2, 3}, weights(t, m, "w", 3))
	require.Equal(t, []string{"acquire master/w/0", "release master/w/0", "acquire master/w/1", "release master/w/1"}, d.log)
}

func TestMasterStorageErrors(t *testing.T) {
	nop := func(int, []float32) error { return nil }
	for _, failing := range []string{"acquire master/w/1", "release master/w/1 dirty"} {
		d := newDiary()
		m := newMaster(t, MasterOptions{Storage: d, Chunk: 2})
		d.failing = failing
		require.ErrorIs(t, m.Add("w", 4, nop), errBroken)
		require.Zero(t, m.Bytes(), "not registered")
		d.failing = ""
		require.NoError(t, m.Add("w", 4, nop))
		d.failing = failing
		require.ErrorIs(t, m.Update("w", snug.ViewOf(make([]float32, 4)), func(int, snug.View) error { return nil }), errBroken)
	}
	d := newDiary()
	m := newMaster(t, MasterOptions{Storage: d})
	d.cut = 1
	require.ErrorIs(t, m.Add("w", 4, nop), snug.ErrConfig, "too few bytes")
	d.cut, d.shift = 0, 2
	require.ErrorIs(t, m.Add("w", 4, nop), snug.ErrConfig, "not aligned")
}

func TestMasterStepError(t *testing.T) {
	d := newDiary()
	m := newMaster(t, MasterOptions{Storage: d, Chunk: 2})
	require.NoError(t, m.Add("w", 4, fillWith([]float32{1, 2, 3, 4})))
	d.log = nil
	param := []float32{1, 2, 3, 4}
	err := m.Update("w", snug.ViewOf(param), func(lo int, v snug.View) error {
		w := v.Float32s()
		w[0] = -w[0]
		if lo == 2 {
			return errBroken
		}
		return nil
	})
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, "release master/w/1 dirty", d.log[len(d.log)-1])
	require.Equal(t, []float32{-1, 2, 3, 4}, param)
	requireHalf(t, m, "w", snug.ViewOf(param))
	m.params["w"].half = false
	require.Equal(t, []float32{-1, 2, -3, 4}, weights(t, m, "w", 4))
}

func TestMasterErrors(t *testing.T) {
	nop := func(int, []float32) error { return nil }
	_, err := NewMaster(MasterOptions{Chunk: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	m := newMaster(t, MasterOptions{})
	require.NoError(t, m.Add("w", 3, nop))
	require.ErrorIs(t, m.Add("w", 3, nop), snug.ErrConfig, "taken")
	require.ErrorIs(t, m.Add(strings.Repeat("x", state.MaxName+1), 3, nop), snug.ErrConfig, "long name")
	require.ErrorIs(t, m.Add("v", -1, nop), snug.ErrShape)
	require.ErrorIs(t, m.Add("v", math.MaxInt/2, nop), snug.ErrShape)
	require.ErrorIs(t, m.Add("v", 3, func(int, []float32) error { return errBroken }), errBroken)
	x := snug.ViewOf(make([]float32, 3))
	require.ErrorIs(t, m.Update("w", x, nil), snug.ErrConfig, "no step")
	tests := []struct {
		name, param string
		view        snug.View
		want        error
	}{
		{"unknown", "v", x, snug.ErrConfig},
		{"type", "w", snug.SliceView(make([]int32, 3)), snug.ErrDType},
		{"length", "w", snug.ViewOf(make([]snug.Float16, 4)), snug.ErrShape},
		{"device", "w", kerneltest.Closed(t, snug.F16, 3), snug.ErrDevice},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.ErrorIs(t, m.Update(test.param, test.view, func(int, snug.View) error { panic("stepped") }), test.want)
			require.ErrorIs(t, m.Copy(test.param, test.view), test.want)
		})
	}
}

func TestMasterState(t *testing.T) {
	m := newMaster(t, MasterOptions{Chunk: 7})
	b, a := kerneltest.Uniform(7, 30), append(kerneltest.Uniform(8, 5), nan, inf)
	require.NoError(t, m.Add("b", len(b), fillWith(b)))
	require.NoError(t, m.Add("a", len(a), fillWith(a)))
	require.NoError(t, m.Add("empty", 0, fillWith(nil)))
	saved, err := m.AppendBinary([]byte("prefix"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(saved, []byte("prefix")))
	saved = saved[len("prefix"):]

	var stream bytes.Buffer
	n, err := m.WriteTo(&stream)
	require.NoError(t, err)
	require.Equal(t, int64(len(saved)), n)
	require.Equal(t, saved, stream.Bytes())
	stream.WriteString("tail")

	other := newMaster(t, MasterOptions{Chunk: 4, Storage: newDiary()})
	for name, n := range map[string]int{"a": len(a), "b": len(b), "empty": 0} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, other.Add(name, n, nil))
		})
	}
	n, err = other.ReadFrom(iotest.OneByteReader(&stream))
	require.NoError(t, err)
	require.Equal(t, int64(len(saved)), n)
	require.Equal(t, "tail", stream.String(), "it reads no further")
	requireSame(t, a, weights(t, other, "a", len(a)))
	requireSame(t, b, weights(t, other, "b", len(b)))
	again, err := other.AppendBinary(nil)
	require.NoError(t, err)
	require.Equal(t, saved, again)

	require.ErrorIs(t, newMaster(t, MasterOptions{}).UnmarshalBinary(saved), snug.ErrConfig, "no parameters were added")
	for _, c := range []struct {
		name string
		n    int
		want error
	}{{"b", len(b) + 1, snug.ErrShape}, {"c", len(b), snug.ErrConfig}} {
		m := newMaster(t, MasterOptions{})
		require.NoError(t, m.Add("a", len(a), fillWith(a)))
		require.NoError(t, m.Add(c.name, c.n, nil))
		require.NoError(t, m.Add("empty", 0, nil))
		require.ErrorIs(t, m.UnmarshalBinary(saved), c.want)
		requireSame(t, a, weights(t, m, "a", len(a)))
	}
}

// masterOf returns a Master with a parameter "w".
func masterOf(t require.TestingT, o MasterOptions, w ...float32) *Master {
	m := newMaster(t, o)
	require.NoError(t, m.AddFrom("w", snug.ViewOf(make([]snug.BFloat16, len(w))), fillWith(w)))
	return m
}

func TestMasterStateDamage(t *testing.T) {
	for _, form := range forms {
		saved, err := masterOf(t, MasterOptions{Form: form, Chunk: 2}, 1, 2, 3).AppendBinary(nil)
		require.NoError(t, err)
		for i := range saved {
			fresh := masterOf(t, MasterOptions{Form: form}, 4, 5, 6)
			before, err := fresh.AppendBinary(nil)
			require.NoError(t, err)
			damaged := bytes.Clone(saved)
			damaged[i] ^= 0x40
			require.ErrorIs(t, fresh.UnmarshalBinary(damaged), snug.ErrCorrupt)
			require.Equal(t, before, saveMasters(t, fresh), "unchanged")
			for _, data := range [][]byte{damaged, saved[:i]} {
				_, err = fresh.ReadFrom(bytes.NewReader(data))
				require.ErrorIs(t, err, snug.ErrCorrupt, "%s: byte %d of %d", form, i, len(data))
				if fresh.params["w"].half {
					require.Greater(t, i, len(saved)-4-int(fresh.Bytes())-4, "damage of the header changes nothing")
					_, err = fresh.WriteTo(io.Discard)
					require.ErrorIs(t, err, snug.ErrConfig)
				} else {
					require.Equal(t, before, saveMasters(t, fresh))
				}
			}
			require.NoError(t, fresh.UnmarshalBinary(saved))
			require.Equal(t, saved, saveMasters(t, fresh))
		}
	}
}

func saveMasters(t testing.TB, m *Master) []byte {
	b, err := m.AppendBinary(nil)
	require.NoError(t, err)
	return b
}

func TestMasterStateErrors(t *testing.T) {
	m := masterOf(t, MasterOptions{Chunk: 2}, 1, 2, 3)
	saved, err := m.AppendBinary(nil)
	require.NoError(t, err)
	fresh := masterOf(t, MasterOptions{}, 4, 5, 6)
	require.ErrorIs(t, fresh.UnmarshalBinary(append(bytes.Clone(saved), 0)), snug.ErrCorrupt)
	_, err = fresh.ReadFrom(io.MultiReader(bytes.NewReader(saved[:20]), iotest.ErrReader(errBroken)))
	require.ErrorIs(t, err, errBroken)

	d := newDiary()
	stored := masterOf(t, MasterOptions{Storage: d}, 4, 5, 6)
	d.failing = "acquire master/w/0"
	_, err = stored.ReadFrom(bytes.NewReader(saved))
	require.ErrorIs(t, err, errBroken)

	m = newMaster(t, MasterOptions{Storage: d})
	d.failing = ""
	require.NoError(t, m.Add("w", 3, fillWith([]float32{1, 2, 3})))
	_, err = m.WriteTo(brokenWriter{})
	require.ErrorIs(t, err, errBroken)
	d.failing = "acquire master/w/0"
	_, err = m.AppendBinary(nil)
	require.ErrorIs(t, err, errBroken)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// TestMasterStateLies has well-formed state that says more than it holds.
func TestMasterStateLies(t *testing.T) {
	lying := func(form MasterForm, name string, n uint64, params uint32) []byte {
		e := state.NewHeader(state.MastersMagic)
		e.Put(uint32(form))
		e.Put(uint64(0)) // seed
		e.Put(params)
		for range 2 {
			e.Put(uint32(len(name)))
			e.Put([]byte(name))
			e.Put([]uint64{n, 3})
		}
		b, err := e.Bytes()
		require.NoError(t, err)
		return b
	}
	for _, form := range forms {
		for name, data := range map[string][]byte{
			"length":     lying(form, "w", 1<<61, 2),
			"much":       lying(form, "w", 1<<40, 2),
			"repetition": lying(form, "w", 0, 2),
			"fewer":      lying(form, "w", 0, 1),
			"more":       lying(form, "w", 0, 1<<31),
			"name":       lying(form, strings.Repeat("x", state.MaxName+1), 0, 2),
		} {
			err := masterOf(t, MasterOptions{Form: form}, 1).UnmarshalBinary(data)
			require.ErrorIs(t, err, snug.ErrCorrupt, "%s, %s", form, name)
		}
	}
	require.ErrorIs(t, newMaster(t, MasterOptions{}).UnmarshalBinary(lying(9, "w", 0, 2)), snug.ErrCorrupt, "form")
}

// masterProperty saves a run in its middle and requires that it goes on with the
// same bits, in chunks of another size.
func masterProperty(t *rapid.T) {
	form := rapid.SampledFrom(forms).Draw(t, "form")
	lengths := rapid.SliceOfN(rapid.IntRange(0, 50), 0, 4).Draw(t, "lengths")
	seed := rapid.Uint64().Draw(t, "seed")
	m := newMaster(t, MasterOptions{Form: form, Seed: seed, Chunk: rapid.IntRange(1, 20).Draw(t, "chunk")})
	params := make([][]snug.BFloat16, len(lengths))
	change := func(m *Master, params [][]snug.BFloat16) {
		for i, param := range params {
			require.NoError(t, m.Update(string(rune('a'+i)), snug.ViewOf(param), func(_ int, v snug.View) error {
				for j, x := range v.Float32s() {
					v.Float32s()[j] = x * 0.999
				}
				return nil
			}))
		}
	}
	for i, n := range lengths {
		params[i] = make([]snug.BFloat16, n)
		require.NoError(t, m.AddFrom(string(rune('a'+i)), snug.ViewOf(params[i]), fillWith(kerneltest.Uniform(uint64(i), n))))
	}
	change(m, params)
	saved, err := m.AppendBinary(nil)
	require.NoError(t, err)
	other := newMaster(t, MasterOptions{Form: form, Seed: seed, Chunk: rapid.IntRange(1, 20).Draw(t, "other chunk")})
	copies := make([][]snug.BFloat16, len(params))
	for i, param := range slices.Backward(params) {
		copies[i] = slices.Clone(param)
		require.NoError(t, other.AddFrom(string(rune('a'+i)), snug.ViewOf(copies[i]), nil))
	}
	require.NoError(t, other.UnmarshalBinary(saved))
	change(m, params)
	change(other, copies)
	for i := range params {
		name := string(rune('a' + i))
		require.Equal(t, params[i], copies[i])
		requireSame(t, read(t, m, name, snug.ViewOf(params[i])), read(t, other, name, snug.ViewOf(copies[i])))
	}
}

//check:in tiers
func TestMasterProperty(t *testing.T) { rapid.Check(t, masterProperty) }
func FuzzMaster(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(masterProperty)) }

// FuzzRestore feeds arbitrary bytes, with a right checksum, to all that reads
// saved state.
func FuzzRestore(f *testing.F) {
	scaler, err := newScaler(f, ScalerOptions{}).AppendBinary(nil)
	require.NoError(f, err)
	f.Add(scaler)
	for _, form := range forms {
		masters, err := masterOf(f, MasterOptions{Form: form}, 1, 2, 3).AppendBinary(nil)
		require.NoError(f, err)
		f.Add(masters)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = statetest.Seal(data)
		if s := newScaler(t, ScalerOptions{}); s.UnmarshalBinary(data) == nil {
			require.True(t, s.opts.inRange(s.Scale()))
		}
		for _, form := range forms {
			m := masterOf(t, MasterOptions{Form: form}, 4, 5, 6)
			before := saveMasters(t, m)
			if m.UnmarshalBinary(data) != nil {
				require.Equal(t, before, saveMasters(t, m))
			}
		}
	})
}

func TestMasterClosedDevice(t *testing.T) {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	param := kerneltest.PutFloats(t, kerneltest.Backend{Name: "opaque", Dev: dev}, snug.F16, make([]float32, 4)).View
	m := newMaster(t, MasterOptions{Chunk: 2})
	require.NoError(t, m.Add("w", 4, fillWith(make([]float32, 4))))
	err = m.Update("w", param, func(lo int, _ snug.View) error {
		if lo == 2 {
			return dev.Close()
		}
		return nil
	})
	require.ErrorIs(t, err, snug.ErrDevice)
}
