package amp

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/rounding"
)

// parts24 takes the upper 24 bits of b apart, to which x is rounded, as the documentation says, and
// puts them together.
func parts24(x float32, b uint32) (back float32, upper snug.BFloat16, rest int8) {
	if x != x {
		upper = snug.BFloat16(math.Float32bits(x)>>16 | 0x40)
		return upper.Float32(), upper, 0
	}
	up, low := halvesOf(math.Float32frombits(b &^ 0xff))
	return math.Float32frombits(b &^ 0xff), up, int8(low >> 8)
}

// nearest24 rounds x to 24 bits, to nearest even, by what is nearer in float64.
func nearest24(x float32) (back float32, upper snug.BFloat16, rest int8) {
	b := math.Float32bits(x)
	switch low := b & 0xff; {
	case low > 0x80 || low == 0x80 && b&0x100 != 0:
		return parts24(x, b+0x100)
	default:
		return parts24(x, b)
	}
}

// random24 rounds x to 24 bits at random, as element i of draw.
func random24(x float32, draw Draw, i int) (back float32, upper snug.BFloat16, rest int8) {
	return parts24(x, math.Float32bits(x)+randomHalf(draw, i)>>8)
}

func TestSplit24AndJoin(t *testing.T) {
	exhaustive := everyUpper()
	for _, low := range []uint32{0x7f, 0x80, 0x180, 0x7f80, 0x7f81} {
		for code := range uint32(1 << 16) {
			exhaustive = append(exhaustive, math.Float32frombits(code<<16|low))
		}
	}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		split24After(t, p, exhaustive, skips[1], nil)
		for _, n := range []int{0, 1, 7, 8, 130, castChunk + 5, castFew + 5} {
			for _, skip := range skips {
				x := append(append(make([]float32, skip), special...), kerneltest.Uniform(1, n)...)[:skip+n]
				split24After(t, p, x, skip, nil)
				for _, draw := range []Draw{{1 << 63, 5, 1<<32 - 9}, {1, 2, 3}, {}} {
					split24After(t, p, x, skip, &draw)
				}
			}
		}
	})
}

// split24After takes x apart from element skip on, to nearest or by draw, and joins it.
func split24After(t *testing.T, p kerneltest.Backend, x []float32, skip int, draw *Draw) {
	n := len(x)
	w, upper := kerneltest.Put(t, p, x), kerneltest.Put(t, p, make([]snug.BFloat16, n))
	rest, back := kerneltest.Put(t, p, make([]uint8, n)), kerneltest.Put(t, p, make([]float32, n))
	restView, err := rest.Slice(skip, n)
	require.NoError(t, err)
	job := splitJob{w: kerneltest.After(t, w.View, skip), upper: kerneltest.After(t, upper.View, skip), rest: restView, apart: true}
	if draw != nil {
		job.random, job.draw = true, *draw
	}
	require.NoError(t, job.do())
	job.w, job.apart = kerneltest.After(t, back.View, skip), false
	require.NoError(t, job.do())
	gotUpper, gotRest, got := upper.Get(), rest.Get(), back.Get()
	for i := skip; i < n; i++ {
		wantBack, wantUpper, wantRest := nearest24(x[i])
		if draw != nil {
			wantBack, wantUpper, wantRest = random24(x[i], *draw, i-skip)
		}
		if wantUpper != gotUpper[i] || wantRest != int8(gotRest[i]) || math.Float32bits(wantBack) != math.Float32bits(got[i]) {
			t.Fatalf("%d elements after %d, draw %v: element %d, %x: got %x, %d and %x, want %x, %d and %x", n, skip, draw, i,
				math.Float32bits(x[i]), gotUpper[i], int8(gotRest[i]), math.Float32bits(got[i]), wantUpper, wantRest, math.Float32bits(wantBack))
		}
	}
}

// TestSplit24Golden compares with what torch's arithmetic of integers and bfloat16 gives.
//
//check:in tiers arm64 arm64-go
func TestSplit24Golden(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/split24.json")
	require.NoError(t, err)
	var golden struct {
		Bits   []uint32 // of float32
		Upper  []uint16
		Rest   []int8
		Joined []uint32
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	require.Greater(t, len(golden.Bits), 200)
	x, back := make([]float32, len(golden.Bits)), make([]float32, len(golden.Bits))
	for i, b := range golden.Bits {
		x[i] = math.Float32frombits(b)
	}
	upper, rest := make([]snug.BFloat16, len(x)), make([]int8, len(x))
	for tier, k := range half.Split24Registry.All() {
		k.Split(upper, rest, x)
		k.Join(back, upper, rest)
		for i, u := range upper {
			require.Equal(t, golden.Upper[i], uint16(u), "%v: %x", tier, golden.Bits[i])
			require.Equal(t, golden.Rest[i], rest[i], "%v: %x", tier, golden.Bits[i])
			require.Equal(t, golden.Joined[i], math.Float32bits(back[i]), "%v: %x", tier, golden.Bits[i])
		}
	}
}

// TestSplit24Master has updates with the rounding that the documentation states, for every backend, chunk
// size and order of parameters.
func TestSplit24Master(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		const n, seed = 100, 5
		first := start(n)
		for _, random := range []bool{false, true} {
			for _, chunk := range []int{n, 33} {
				m := newMaster(t, MasterOptions{Form: Split24Master, Stochastic: random, Seed: seed, Chunk: chunk, Device: masters})
				closeMaster(t, m)
				names := []string{"a", "b"}
				if chunk < n {
					names = []string{"b", "a"}
				}
				for _, name := range names {
					param, want := kerneltest.Put(t, p, make([]snug.BFloat16, n)), kept(Split24Master, snug.BF16, first)
					require.NoError(t, m.AddFrom(name, param.View, fillWith(first)))
					for k := range 4 {
						require.NoError(t, m.Update(name, param.View, onHost(t, func(lo int, w []float32) {
							for i := range w {
								require.Equal(t, want[lo+i], w[i])
								w[i] *= 1.00003
							}
						})))
						draw := Draw{Seed: rounding.Seed(seed, uint64(k)), Tensor: rounding.Tensor(name)}
						upper := make([]snug.BFloat16, n)
						for i, x := range want {
							want[i], upper[i], _ = nearest24(x * 1.00003)
							if random {
								want[i], upper[i], _ = random24(x*1.00003, draw, i)
							}
						}
						require.Equal(t, upper, param.Get(), "update %d", k)
					}
				}
				require.EqualValues(t, 2*n, m.Bytes())
			}
		}
	})
}

// TestSplit24Damage flips every byte of a saved state, and cuts it everywhere.
func TestSplit24Damage(t *testing.T) {
	for _, random := range []bool{false, true} {
		o := MasterOptions{Form: Split24Master, Stochastic: random, Seed: 3, Chunk: 4}
		m, param := newMaster(t, o), make([]snug.BFloat16, 9)
		require.NoError(t, m.AddFrom("w", snug.ViewOf(param), fillWith(kerneltest.Uniform(1, 9))))
		saved, err := m.AppendBinary(nil)
		require.NoError(t, err)
		for i := range saved {
			damaged := append([]byte(nil), saved...)
			damaged[i] ^= 0x20
			for _, b := range [][]byte{damaged, saved[:i]} {
				next := newMaster(t, o)
				require.NoError(t, next.AddFrom("w", snug.ViewOf(param), nil))
				if i >= 8 {
					require.ErrorIs(t, next.UnmarshalBinary(b), snug.ErrCorrupt, "byte %d", i)
				} else {
					require.Error(t, next.UnmarshalBinary(b))
				}
			}
		}
		o.Stochastic = !random
		other := newMaster(t, o)
		require.NoError(t, other.AddFrom("w", snug.ViewOf(param), nil))
		err = other.UnmarshalBinary(saved)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "split24, stochastic")
	}
	for _, form := range forms[:3] {
		_, err := NewMaster(MasterOptions{Form: form, Stochastic: true})
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestSplit24MasterResumes goes on with random rounding from the middle of a run, with the same bits.
func TestSplit24MasterResumes(t *testing.T) {
	const n = 300
	o := MasterOptions{Form: Split24Master, Stochastic: true, Seed: 9, Chunk: 70}
	run := func(m *Master, param []snug.BFloat16, from, to int) {
		for k := from; k < to; k++ {
			require.NoError(t, m.Update("w", snug.ViewOf(param), onHost(t, func(lo int, w []float32) {
				for i, g := range kerneltest.Uniform(uint64(k), n)[lo : lo+len(w)] {
					w[i] -= g * 1e-6
				}
			})))
		}
	}
	m, param := newMaster(t, o), make([]snug.BFloat16, n)
	require.NoError(t, m.AddFrom("w", snug.ViewOf(param), fillWith(start(n))))
	run(m, param, 0, 3)
	saved, err := m.AppendBinary(nil)
	require.NoError(t, err)
	o.Chunk = 64
	resumed, copied := newMaster(t, o), append([]snug.BFloat16(nil), param...)
	require.NoError(t, resumed.AddFrom("w", snug.ViewOf(copied), nil))
	require.NoError(t, resumed.UnmarshalBinary(saved))
	run(m, param, 3, 9)
	run(resumed, copied, 3, 9)
	require.Equal(t, read(t, m, "w", snug.ViewOf(param)), read(t, resumed, "w", snug.ViewOf(copied)))
	require.Equal(t, param, copied)
}
