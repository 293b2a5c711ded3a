package quant8

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/internal/state/statetest"
)

// savedMatrices has matrices of one chunk and of several, with odd sides.
var savedMatrices = map[string][2]int{"w": {61, 83}, "b": {7, 9}, "empty": {0, 4}, "row": {1, 4200}, "column": {301, 1}}

// matrixRun is an optimizer with its parameters.
type matrixRun struct {
	t testing.TB
	a *Optimizer
	p map[string][]float32
}

func newMatrixRun(t testing.TB, a *Optimizer) *matrixRun {
	r := &matrixRun{t, a, map[string][]float32{}}
	for _, name := range a.names() {
		r.p[name] = kerneltest.Normal(1, a.params[name].n)
	}
	return r
}

func (r *matrixRun) step(names ...string) {
	for _, name := range names {
		step(r.t, r.a, name, r.p[name], kerneltest.Normal(uint64(r.a.Steps()), len(r.p[name])), 0.1)
	}
}

// requireSame compares the parameters.
func (r *matrixRun) requireSame(o *matrixRun) {
	for name, p := range r.p {
		require.True(r.t, equal(p, o.p[name]), name)
	}
}

// TestMatricesRestoredRun saves at every step, between the parameters of one, and goes
// on in both the old and a new optimizer, of another Storage, by all three ways to
// restore. The next step is the new one's.
func TestMatricesRestoredRun(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, s := range []Options{{Block: 64, Chunk: 1024}, {Bits: 32}, {Block: 33, MinSize: 1}, {Chunk: 256, Storage: newFakeStorage()}} {
			old := newMatrixRun(t, build(s, savedMatrices))
			other := newMatrixRun(t, old.a)
			for i := range 4 {
				old.a.Advance(float32(i) * 0.01)
				old.step("w", "empty", "row")
				data := bytesOf(old.a.AppendBinary(nil))
				if s.Storage != nil {
					s.Storage = newFakeStorage()
				}
				other.a = build(s, savedMatrices)
				for name, p := range old.p {
					other.p[name] = append([]float32(nil), p...)
				}
				switch i % 3 {
				case 0:
					require.NoError(t, other.a.UnmarshalBinary(data))
				case 1:
					require.NoError(t, second(other.a.ReadFrom(bytes.NewReader(data))))
				default:
					require.NoError(t, other.a.ReadShards(bytes.NewReader(data)))
				}
				require.Equal(t, data, bytesOf(other.a.AppendBinary(nil)))
				old.step("b", "column")
				other.step("b", "column")
				old.requireSame(other)
				require.Equal(t, stateOf(t, old.a), stateOf(t, other.a))
				require.Equal(t, i+1, other.a.Steps())
				old, other = other, old
			}
		}
	})
}

// TestMatricesStorage: state in memory and in a Storage are the same, under their keys.
func TestMatricesStorage(t *testing.T) {
	for rule, blobs := range map[string]map[string]int{
		"adafactor": {"adafactor/w/factors": 4 * (61 + 83), "adafactor/b/factors": 4 * (7 + 9)},
		"momentum": {
			"adafactormomentum/w/factors": 4 * (61 + 83), "adafactormomentum/w/0": 4096 + 4*16, "adafactormomentum/w/1": 967 + 4*4,
			"adafactormomentum/b/factors": 4 * (7 + 9), "adafactormomentum/b/0": 4 * 63,
		},
		"muon": {"muon/w/0": 4096 + 4*16, "muon/w/1": 967 + 4*4, "muon/b/0": 4 * 63},
	} {
		t.Run(rule, func(t *testing.T) {
			store, sides := newFakeStorage(), map[string][2]int{"w": {61, 83}, "b": {7, 9}}
			a := newMatrixRun(t, newMatrices(t, rule, Options{Chunk: 4096}, sides))
			b := newMatrixRun(t, newMatrices(t, rule, Options{Chunk: 4096, Storage: store}, sides))
			for range 3 {
				for _, r := range []*matrixRun{a, b} {
					advance(r.a)
					r.step("w", "b")
				}
				a.requireSame(b)
			}
			require.Empty(t, store.lent)
			require.Equal(t, stateOf(t, a.a), stateOf(t, b.a))
			require.Len(t, store.blobs, len(blobs))
			for key, size := range blobs {
				require.Len(t, store.blobs[key], size, key)
			}
			require.Equal(t, a.a.StateBytes(), b.a.StateBytes())
		})
	}
}

// TestMatricesStorageErrors: where the Storage fails at once, nothing is written.
func TestMatricesStorageErrors(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		store := newFakeStorage()
		r := newMatrixRun(t, build(Options{Storage: store}, map[string][2]int{"w": {61, 83}}))
		advance(r.a)
		p, g := append([]float32(nil), r.p["w"]...), snug.ViewOf(kerneltest.Normal(2, 61*83))
		store.fail = errFull
		require.ErrorIs(t, r.a.Step("w", snug.ViewOf(r.p["w"]), g, 1), errFull)
		store.fail, store.wrong = nil, func(b []byte) []byte { return b[1:] }
		require.ErrorIs(t, r.a.Step("w", snug.ViewOf(r.p["w"]), g, 1), snug.ErrConfig)
		store.wrong = nil
		require.Equal(t, p, r.p["w"])
		require.NoError(t, r.a.Step("w", snug.ViewOf(r.p["w"]), g, 1))
	})
}

// TestMatricesReadShards takes some matrices of states of others.
func TestMatricesReadShards(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		sides := map[string][2]int{"u": {5, 3}, "v": {40, 31}, "w": {61, 83}}
		whole := newMatrixRun(t, build(Options{MinSize: 1}, sides))
		advance(whole.a)
		whole.step("u", "v", "w")
		data := bytesOf(whole.a.AppendBinary(nil))
		for name, side := range sides {
			one := build(Options{MinSize: 1, Chunk: 512}, map[string][2]int{name: side})
			require.NoError(t, one.ReadShards(bytes.NewReader(data)))
			require.Equal(t, statesOf(t, whole.a, name), statesOf(t, one, name))
			for _, a := range []*Optimizer{whole.a, one} {
				advance(a)
			}
			p := append([]float32(nil), whole.p[name]...)
			whole.step(name)
			step(t, one, name, p, kerneltest.Normal(uint64(whole.a.Steps()), len(p)), 0.1)
			require.Equal(t, whole.p[name], p)
			require.NoError(t, whole.a.UnmarshalBinary(data))
		}
		none := build(Options{MinSize: 1}, map[string][2]int{"x": {5, 3}})
		require.ErrorIs(t, none.ReadShards(bytes.NewReader(data)), snug.ErrConfig)
	})
}

// TestOtherMatrices: a state of matrices of other sides is refused, and changes nothing.
func TestOtherMatrices(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		a := newMatrixRun(t, build(Options{}, map[string][2]int{"w": {60, 80}}))
		advance(a.a)
		a.step("w")
		before := stateOf(t, a.a)
		for _, side := range [][2]int{{80, 60}, {4800, 1}, {60, 79}} {
			data := bytesOf(build(Options{}, map[string][2]int{"w": side}).AppendBinary(nil))
			for _, err := range []error{a.a.UnmarshalBinary(data), second(a.a.ReadFrom(bytes.NewReader(data))), a.a.ReadShards(bytes.NewReader(data))} {
				require.ErrorIs(t, err, snug.ErrConfig)
			}
		}
		require.Equal(t, before, stateOf(t, a.a))
		advance(a.a)
		a.step("w")
	})
	plain, momentum := newMatrices(t, "adafactor", Options{}, nil), newMatrices(t, "momentum", Options{}, nil)
	for _, a := range []*Optimizer{plain, momentum} {
		require.NoError(t, a.Add("w", 4800))
		other := newMatrices(t, "adafactor", Options{}, map[string][2]int{"w": {60, 80}})
		require.ErrorIs(t, other.UnmarshalBinary(bytesOf(a.AppendBinary(nil))), snug.ErrConfig, "a vector, and momentum")
	}
}

// saveMatrices returns a saved state, and an optimizer in another one.
func saveMatrices(t testing.TB, rule string) (data []byte, other *Optimizer) {
	sides := map[string][2]int{"b": {7, 9}, "w": {61, 83}}
	a, b := newMatrixRun(t, newMatrices(t, rule, Options{}, sides)), newMatrixRun(t, newMatrices(t, rule, Options{}, sides))
	if rule != "muon" {
		for _, r := range []*matrixRun{a, b} {
			require.NoError(t, r.a.Add("vector", 70))
		}
	}
	advance(a.a)
	a.step("w", "b")
	if rule != "muon" {
		step(t, a.a, "vector", kerneltest.Normal(1, 70), kerneltest.Normal(2, 70), 1)
	}
	return bytesOf(a.a.AppendBinary(nil)), b.a
}

// TestDamagedMatrices damages the rows and columns.
func TestDamagedMatrices(t *testing.T) {
	for _, rule := range []string{"adafactor", "momentum", "muon", "soap"} {
		data, a := saveMatrices(t, rule)
		before := stateOf(t, a)
		put := func(rows8, cols8 uint64) []byte {
			return edited(t, data, func(h *state.Optimizer) { h.Params[0].Rows, h.Params[0].Cols = rows8, cols8 })
		}
		require.Equal(t, data, put(7, 9))
		for _, c := range []struct {
			data []byte
			want error
		}{
			{put(9, 7), snug.ErrConfig},
			{put(1, 63), snug.ErrConfig},
			{put(0, 0), snug.ErrConfig}, // a vector
			{put(7, 0), snug.ErrCorrupt},
			{put(0, 9), snug.ErrCorrupt},
			{put(7, 8), snug.ErrCorrupt},
			{put(1<<63, 2), snug.ErrCorrupt},
			{put(1<<32, 1<<32), snug.ErrCorrupt},
			{put(1<<63+7, 9), snug.ErrCorrupt},
			{data[:len(data)-1], snug.ErrCorrupt},
			{append(bytes.Clone(data), 0), snug.ErrCorrupt},
		} {
			require.ErrorIs(t, a.UnmarshalBinary(c.data), c.want)
			require.Equal(t, before, stateOf(t, a))
		}
		for at := len(data) - int(a.StateBytes()) - statetest.Checksum; at < len(data); at += 97 {
			d := bytes.Clone(data)
			d[at] ^= 4
			require.ErrorIs(t, a.UnmarshalBinary(d), snug.ErrCorrupt)
		}
		require.Equal(t, before, stateOf(t, a))
		require.NoError(t, a.UnmarshalBinary(data))
	}
}

func TestAnyMatrixBytes(t *testing.T) {
	for _, rule := range []string{"adafactor", "momentum", "muon", "soap"} {
		data, a := saveMatrices(t, rule)
		rapid.Check(t, func(t *rapid.T) { anyBytes(t, data, a) })
	}
}

func FuzzAnyMatrixBytes(f *testing.F) {
	data, a := saveMatrices(f, "momentum")
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { anyBytes(t, data, a) }))
}

// anyMatrices steps matrices of any sides and options in memory and in a Storage, with a
// save and a restore between.
func anyMatrices(t *rapid.T, tb testing.TB) {
	rule := rapid.SampledFrom([]string{"adafactor.other", "momentum", "muon", "muon.other"}).Draw(t, "rule")
	sides := map[string][2]int{"w": {rapid.IntRange(0, 40).Draw(t, "rows"), rapid.IntRange(0, 40).Draw(t, "cols")}}
	s := Options{
		Bits:    rapid.SampledFrom([]int{8, 32}).Draw(t, "bits"),
		Block:   rapid.IntRange(32, 70).Draw(t, "block"),
		MinSize: rapid.SampledFrom([]int{1, 500}).Draw(t, "MinSize"),
	}
	s.Chunk = 4 * s.Block * rapid.IntRange(1, 3).Draw(t, "chunk")
	stored := s
	stored.Storage = newFakeStorage()
	seed := rapid.Uint64().Draw(t, "seed")
	a, b := newMatrices(tb, rule, s, sides), newMatrices(tb, rule, stored, sides)
	n := sides["w"][0] * sides["w"][1]
	p, q := kerneltest.Normal(seed, n), kerneltest.Normal(seed, n)
	for i := range 3 {
		advance(a)
		advance(b)
		require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(kerneltest.Normal(seed+uint64(i), n)), 1))
		require.NoError(t, b.Step("w", snug.ViewOf(q), snug.ViewOf(kerneltest.Normal(seed+uint64(i), n)), 1))
		require.True(t, equal(p, q))
		data := bytesOf(b.AppendBinary(nil))
		require.Equal(t, bytesOf(a.AppendBinary(nil)), data)
		a = newMatrices(tb, rule, s, sides)
		require.NoError(t, a.UnmarshalBinary(data))
	}
	for _, x := range p {
		require.True(t, finite(x))
	}
}

func TestAnyMatrices(t *testing.T) { rapid.Check(t, func(r *rapid.T) { anyMatrices(r, t) }) }
func FuzzAnyMatrices(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) { rapid.MakeFuzz(func(r *rapid.T) { anyMatrices(r, t) })(t, data) })
}
