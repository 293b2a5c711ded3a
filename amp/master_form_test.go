package amp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/rounding"
)

// onHost makes a step of one that works in host memory.
func onHost(t require.TestingT, step func(lo int, w []float32)) func(int, snug.View) error {
	return func(lo int, v snug.View) error {
		w := make([]float32, v.Len())
		require.NoError(t, snug.Copy(w, v))
		step(lo, w)
		return snug.Copy(v, w)
	}
}

// read returns all weights of a parameter of any form.
func read(t require.TestingT, m *Master, name string, param snug.View) []float32 {
	out := make([]float32, param.Len())
	require.NoError(t, m.Update(name, param, func(lo int, w snug.View) error { return snug.Copy(out[lo:lo+w.Len()], w) }))
	return out
}

// where calls test for masters on the CPU and, where that is not it, on the device
// of the parameters.
func where(t *testing.T, test func(t *testing.T, p kerneltest.Backend, masters *snug.Device)) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		t.Run("cpu", func(t *testing.T) { test(t, p, nil) })
		if p.Dev != nil && !p.Dev.IsCPU() {
			t.Run("there", func(t *testing.T) { test(t, p, p.Dev) })
		}
	})
}

func closeMaster(t *testing.T, m *Master) {
	t.Cleanup(func() { require.NoError(t, m.Close()) })
}

// start has weights at the ends of the range of float32 and bfloat16, and others.
func start(n int) []float32 {
	ends := []float32{0, 1, -1, 0x1p-149, -0x1p-126, 0x1.8p-133, math.MaxFloat32, 0x1.fep127, 0x1.ffp127, 0x1.01p0, -0x1.03p0}
	return append(ends, kerneltest.Uniform(3, n)...)[:n]
}

// requireTies requires that Split's parameter is full's, a FullMaster's weights,
// rounded to nearest with ties away from zero, and returns how many of Full's own
// parameter differ: ties.
func requireTies(t *testing.T, weights []float32, split, full []snug.BFloat16) (ties int) {
	for i, x := range weights {
		want, _ := halvesOf(x)
		require.Equal(t, want, split[i], "element %d", i)
		if split[i] == full[i] || kerneltest.Flushed(split[i].Float32(), full[i].Float32()) {
			continue
		}
		require.Equal(t, uint32(0x8000), math.Float32bits(x)&0xffff, "element %d: %v and %v", i, split[i], full[i])
		ties++
	}
	return ties
}

// wander returns a finite number near x, one in 8 at a tie of bfloat16.
func wander(rng *rand.Rand, x float32) float32 {
	y := x + x*float32(math.Ldexp(rng.Float64()-0.5, -rng.IntN(26)))
	if y-y != 0 {
		return x
	}
	if rng.IntN(8) == 0 {
		return math.Float32frombits(math.Float32bits(y)&^0xffff | 0x8000)
	}
	return y
}

// TestSplitMasterIsFull is what SplitMaster promises: after many updates every bit
// of the weights is that of FullMaster.
//
//check:in flush
func TestSplitMasterIsFull(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		n, updates := 257, 1000
		if p.Emulated {
			updates = 30
		}
		first := start(n)
		type run struct {
			*Master
			param *kerneltest.Buf[snug.BFloat16]
			rng   *rand.Rand
		}
		runs := map[MasterForm]run{}
		for _, form := range []MasterForm{FullMaster, SplitMaster} {
			r := run{
				newMaster(t, MasterOptions{Form: form, Chunk: 100, Device: masters}),
				kerneltest.Put(t, p, make([]snug.BFloat16, n)), rand.New(rand.NewPCG(1, 2)),
			}
			closeMaster(t, r.Master)
			require.NoError(t, r.AddFrom("w", r.param.View, fillWith(first)))
			runs[form] = r
		}
		full, split := runs[FullMaster], runs[SplitMaster]
		ties := 0
		for k := range updates {
			for _, r := range runs {
				require.NoError(t, r.Update("w", r.param.View, onHost(t, func(_ int, w []float32) {
					for i := range w {
						w[i] = wander(r.rng, w[i])
					}
				})))
			}
			if k%50 == 0 || k == updates-1 {
				want := read(t, full.Master, "w", full.param.View)
				requireSame(t, want, read(t, split.Master, "w", split.param.View), "after update", k)
				ties += requireTies(t, want, split.param.Get(), full.param.Get())
			}
		}
		require.NotZero(t, ties, "the test has ties")
	})
}

// TestSplitMasterNaN has NaNs whose bits would carry into the sign, and into zero.
func TestSplitMasterNaN(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		bad := []uint32{0x7fff8000, 0x7fffffff, 0xffff8000, 0xffffffff, 0x7f800001, 0xff80ffff, 0x7fc00000}
		m := newMaster(t, MasterOptions{Form: SplitMaster, Device: masters})
		closeMaster(t, m)
		param := kerneltest.Put(t, p, make([]snug.BFloat16, len(bad)))
		require.NoError(t, m.AddFrom("w", param.View, nil))
		require.NoError(t, m.Update("w", param.View, onHost(t, func(lo int, w []float32) {
			for i := range w {
				w[i] = math.Float32frombits(bad[lo+i])
			}
		})))
		got := read(t, m, "w", param.View)
		for i, code := range param.Get() {
			require.Equal(t, snug.BFloat16(bad[i]>>16|0x40), code, "%x", bad[i])
			require.Equal(t, bad[i]>>16<<16|0x400000, math.Float32bits(got[i]), "%x", bad[i])
		}
	})
}

// TestNoMaster compares with the rounding that the documentation states, for every
// backend, chunk size and order of parameters.
func TestNoMaster(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		const n, seed = 100, 5
		first := kerneltest.Uniform(1, n)
		for _, chunk := range []int{n, 33} {
			for _, dt := range floats[1:] {
				m := newMaster(t, MasterOptions{Form: NoMaster, Seed: seed, Chunk: chunk, Device: masters})
				closeMaster(t, m)
				names := []string{"a", "b"}
				if chunk < n {
					names = []string{"b", "a"}
				}
				for _, name := range names {
					param, want := kerneltest.PutFloats(t, p, dt, make([]float32, n)), roundAll(dt, first)
					require.NoError(t, m.AddFrom(name, param.View, fillWith(first)))
					require.Equal(t, want, param.Get(), "to nearest at first")
					for k := range 4 {
						require.NoError(t, m.Update(name, param.View, onHost(t, func(_ int, w []float32) {
							for i := range w {
								w[i] *= 1.001
							}
						})))
						draw := Draw{Seed: rounding.Seed(seed, uint64(k)), Tensor: rounding.Tensor(name)}
						for i, x := range want {
							want[i] = stochastic(dt, x*1.001, draw, i)
						}
						require.Equal(t, want, param.Get(), "update %d", k)
					}
				}
				require.Zero(t, m.Bytes())
			}
		}
	})
}

// TestAddFrom has every form with the parameter's own values and with others.
func TestAddFrom(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		for _, form := range forms {
			for _, dt := range masterForms[form].params {
				for _, n := range []int{0, 1, 25} {
					own, given := roundAll(dt, kerneltest.Uniform(1, n)), kerneltest.Uniform(2, n)
					m := newMaster(t, MasterOptions{Form: form, Chunk: 10, Device: masters})
					param := kerneltest.PutFloats(t, p, dt, own)
					require.NoError(t, m.AddFrom("own", param.View, nil))
					require.Equal(t, own, param.Get())
					require.Equal(t, own, read(t, m, "own", param.View))
					require.NoError(t, m.AddFrom("given", param.View, fillWith(given)))
					want := roundAll(dt, given)
					if given = kept(form, dt, given); form == Split24Master {
						for i, x := range given {
							upper, _ := halvesOf(x)
							want[i] = upper.Float32()
						}
					}
					require.Equal(t, want, param.Get())
					require.Equal(t, given, read(t, m, "given", param.View))
					require.Equal(t, int64(2*n*masterForms[form].size), m.Bytes())
					require.NoError(t, m.Close())
				}
			}
		}
	})
}

// kept returns what a form keeps of first weights.
func kept(form MasterForm, dt snug.DType, x []float32) []float32 {
	switch form {
	case NoMaster:
		return roundAll(dt, x)
	case Split24Master:
		x = slices.Clone(x)
		for i := range x {
			x[i], _, _ = nearest24(x[i])
		}
	}
	return x
}

// TestSplitMasterTakesUpItsStorage checks that a fill that writes nothing leaves
// what an earlier Master kept in the Storage.
func TestSplitMasterTakesUpItsStorage(t *testing.T) {
	storage, first := memory{}, kerneltest.Uniform(1, 25)
	param := snug.ViewOf(make([]snug.BFloat16, len(first)))
	o := MasterOptions{Form: SplitMaster, Storage: storage, Chunk: 10}
	require.NoError(t, newMaster(t, o).AddFrom("w", param, fillWith(first)))
	next := newMaster(t, o)
	require.NoError(t, next.AddFrom("w", param, func(int, []float32) error { return nil }))
	require.Equal(t, first, read(t, next, "w", param))
	fresh := newMaster(t, o)
	require.NoError(t, fresh.AddFrom("w", param, nil))
	require.Equal(t, roundAll(snug.BF16, first), read(t, fresh, "w", param), "without one, they are the parameter's")
}

// TestMasterMemory counts bytes.
func TestMasterMemory(t *testing.T) {
	const n, chunk = 1001, 300
	for _, form := range forms {
		want := n * masterForms[form].size
		t.Run(fmt.Sprint(form, " storage"), func(t *testing.T) {
			d := newDiary()
			m := newMaster(t, MasterOptions{Form: form, Storage: d, Chunk: chunk})
			require.NoError(t, m.AddFrom("w", snug.ViewOf(make([]snug.BFloat16, n)), nil))
			require.Equal(t, want, d.bytes)
			require.Equal(t, int64(want), m.Bytes())
			if form == NoMaster {
				require.Empty(t, d.log, "it is not called")
			}
		})
		t.Run(fmt.Sprint(form, " device"), func(t *testing.T) {
			p := kerneltest.Backends(t)[2]
			param := kerneltest.Put(t, p, make([]snug.BFloat16, n))
			before := usedOf(t, p.Dev)
			m := newMaster(t, MasterOptions{Form: form, Device: p.Dev, Chunk: chunk})
			require.NoError(t, m.AddFrom("w", param.View, nil))
			read(t, m, "w", param.View)
			if form != FullMaster {
				want += 4 * chunk
			}
			require.Equal(t, int64(want), usedOf(t, p.Dev)-before)
			require.NoError(t, m.Close())
			require.Equal(t, before, usedOf(t, p.Dev))
		})
	}
}

// usedOf returns the memory in use on a device.
func usedOf(t *testing.T, dev *snug.Device) int64 {
	require.NoError(t, dev.Sync())
	free, total, err := dev.Memory()
	require.NoError(t, err)
	return total - free
}

// TestFormErrors checks that nothing is written, nor registered.
func TestFormErrors(t *testing.T) {
	_, err := NewMaster(MasterOptions{Form: 4})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "MasterForm(4)")
	away := kerneltest.PutFloats(t, kerneltest.Backends(t)[2], snug.BF16, make([]float32, 3)).View
	fill := func(_ int, w []float32) error { w[0] = 5; return nil }
	for _, form := range forms[1:] {
		d := newDiary()
		m := newMaster(t, MasterOptions{Form: form, Storage: d})
		err := m.Add("w", 3, fill)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "AddFrom")
		param := []snug.BFloat16{1, 2, 3}
		require.NoError(t, m.AddFrom("w", snug.ViewOf(param), nil))
		d.log = nil
		require.ErrorIs(t, m.Copy("w", snug.ViewOf(param)), snug.ErrConfig)
		require.ErrorIs(t, m.AddFrom("w", snug.ViewOf(param), fill), snug.ErrConfig, "taken")
		require.ErrorIs(t, m.AddFrom("v", kerneltest.Closed(t, snug.BF16, 3), fill), snug.ErrDevice)
		others := []snug.View{snug.ViewOf(make([]float32, 3)), {}}
		if form != NoMaster {
			others = append(others, snug.ViewOf(make([]snug.Float16, 3)))
		}
		for _, other := range others {
			require.ErrorIs(t, m.AddFrom("v", other, fill), snug.ErrDType)
			require.ErrorIs(t, m.Update("w", other, func(int, snug.View) error { panic("stepped") }), snug.ErrDType)
		}
		require.ErrorIs(t, m.Update("w", snug.ViewOf(param[:2]), func(int, snug.View) error { panic("stepped") }), snug.ErrShape)
		require.Equal(t, []snug.BFloat16{1, 2, 3}, param)
		require.Empty(t, d.log)
		require.Len(t, m.params, 1)

		there := newMaster(t, MasterOptions{Form: form, Device: away.Device()})
		closeMaster(t, there)
		require.ErrorIs(t, there.AddFrom("w", snug.ViewOf(param), fill), snug.ErrDevice)
		require.Zero(t, there.Bytes())
	}
}

// TestFormStepError checks that a chunk whose step fails stays as it was, and that
// those before it are updated.
func TestFormStepError(t *testing.T) {
	for _, form := range forms[1:] {
		m := newMaster(t, MasterOptions{Form: form, Chunk: 2})
		param := make([]snug.BFloat16, 4)
		require.NoError(t, m.AddFrom("w", snug.ViewOf(param), fillWith([]float32{1, 2, 3, 4})))
		require.ErrorIs(t, m.Update("w", snug.ViewOf(param), func(lo int, v snug.View) error {
			for i, x := range v.Float32s() {
				v.Float32s()[i] = -x
			}
			if lo == 2 {
				return errBroken
			}
			return nil
		}), errBroken)
		requireHalf(t, m, "w", snug.ViewOf(param))
		m.params["w"].half = false
		require.Equal(t, []float32{-1, -2, 3, 4}, read(t, m, "w", snug.ViewOf(param)))
		require.ErrorIs(t, m.AddFrom("v", snug.ViewOf(param), func(int, []float32) error { return errBroken }), errBroken)
		require.Len(t, m.params, 1)
	}
}

// TestFormStorageErrors has a Storage that fails where SplitMaster calls it.
func TestFormStorageErrors(t *testing.T) {
	param := snug.ViewOf(make([]snug.BFloat16, 3))
	for _, failing := range []string{"acquire master/w/1", "release master/w/1 dirty"} {
		d := newDiary()
		m := newMaster(t, MasterOptions{Form: SplitMaster, Storage: d, Chunk: 2})
		d.failing = failing
		require.ErrorIs(t, m.AddFrom("w", param, nil), errBroken)
		require.Zero(t, m.Bytes())
		d.failing = ""
		require.NoError(t, m.AddFrom("w", param, nil))
		d.failing = failing
		require.ErrorIs(t, m.Update("w", param, func(int, snug.View) error { return nil }), errBroken)
	}
	d := newDiary()
	d.cut = 1
	require.ErrorIs(t, newMaster(t, MasterOptions{Form: SplitMaster, Storage: d}).AddFrom("w", param, nil), snug.ErrConfig)
}

// TestFormNoMemory has a device that cannot hold the scratch.
func TestFormNoMemory(t *testing.T) {
	p := kerneltest.Backends(t)[2]
	filler, err := snug.Make[uint8](p.Dev, kerneltest.Total-1000)
	require.NoError(t, err)
	param := kerneltest.Put(t, p, make([]snug.BFloat16, 300))
	for _, form := range forms[1:] {
		m := newMaster(t, MasterOptions{Form: form, Device: p.Dev})
		require.ErrorIs(t, m.AddFrom("w", param.View, nil), snug.ErrNoMemory)
		require.Zero(t, m.Bytes())
	}
	require.NoError(t, filler.Close())
}

// TestFormState saves in the middle of a run, restores on another device with
// another chunk size, and requires that both go on with the same bits.
func TestFormState(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		const n = 120
		for _, form := range forms {
			m := newMaster(t, MasterOptions{Form: form, Seed: 4, Chunk: 50, Device: masters})
			closeMaster(t, m)
			param := kerneltest.Put(t, p, make([]snug.BFloat16, n))
			require.NoError(t, m.AddFrom("w", param.View, fillWith(start(n))))
			walk := func(m *Master, param snug.View, k int) {
				require.NoError(t, m.Update("w", param, onHost(t, func(lo int, w []float32) {
					for i, g := range kerneltest.Uniform(uint64(k), n)[lo : lo+len(w)] {
						w[i] -= g / 512
					}
				})))
			}
			walk(m, param.View, 0)
			walk(m, param.View, 1)
			saved, err := m.AppendBinary(nil)
			require.NoError(t, err)
			restored := newMaster(t, MasterOptions{Form: form, Seed: 4, Chunk: 7})
			copied := param.Get()
			require.NoError(t, restored.AddFrom("w", snug.ViewOf(copied), nil))
			require.NoError(t, restored.UnmarshalBinary(saved))
			again, err := restored.AppendBinary(nil)
			require.NoError(t, err)
			require.Equal(t, saved, again)
			for k := 2; k < 5; k++ {
				walk(m, param.View, k)
				walk(restored, snug.ViewOf(copied), k)
			}
			require.Equal(t, param.Get(), copied, "%s", form)
			require.Equal(t, read(t, m, "w", param.View), read(t, restored, "w", snug.ViewOf(copied)), "%s", form)

			there := newMaster(t, MasterOptions{Form: form, Seed: 4, Chunk: 11, Device: masters})
			closeMaster(t, there)
			require.NoError(t, there.AddFrom("w", param.View, nil))
			require.NoError(t, there.UnmarshalBinary(saved))
			again, err = there.AppendBinary(nil)
			require.NoError(t, err)
			require.Equal(t, saved, again)
			if m.random {
				other := newMaster(t, MasterOptions{Form: form, Seed: 5})
				require.NoError(t, other.AddFrom("w", snug.ViewOf(copied), nil))
				require.ErrorContains(t, other.UnmarshalBinary(saved), "saved with the Seed 4, want 5")
			}
			for _, other := range forms {
				if other != form {
					err := newMaster(t, MasterOptions{Form: other}).UnmarshalBinary(saved)
					require.ErrorIs(t, err, snug.ErrConfig)
					require.ErrorContains(t, err, "form "+form.String())
				}
			}
		}
	})
}
