package quant8

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/safetensors"
)

// The run that testdata/bitsandbytes/make.py has recorded: 5 steps in
// adamw.safetensors and 3 more in continued.safetensors.
var (
	goldenParams  = map[string]int{"w": 4200, "b": 70}
	goldenShapes  = map[string][]int{"w": {60, 70}, "b": {70}}
	goldenRule    = AdamW{WeightDecay: 1e-2, DecayFirst: true}
	goldenOptions = Options{NearestCodes: true, Chunk: 1024}
)

// noise is that of make.py.
func noise(n, step int) []float32 {
	x := make([]float32, n)
	for i := range x {
		bits := uint32(i+7919*step) * 2654435761
		x[i] = float32(float64(bits>>8)/(1<<24) - 0.5)
	}
	return x
}

func readState(t testing.TB, a *Optimizer, file []byte) {
	t.Helper()
	require.NoError(t, a.ReadBitsAndBytes(bytes.NewReader(file), int64(len(file)), ""))
}

func writeState(t testing.TB, a *Optimizer, f BitsAndBytesFormat) golden {
	t.Helper()
	var b bytes.Buffer
	n, err := a.WriteBitsAndBytes(&b, f)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return parseGolden(t, b.Bytes())
}

// requireSameState compares all tensors of a state that was written with those of
// bitsandbytes.
func requireSameState(t testing.TB, want, got golden) {
	t.Helper()
	for _, tensor := range got.h.Tensors {
		other := want.h.Find(tensor.Name)
		require.NotNil(t, other, tensor.Name)
		require.Equal(t, other.DType, tensor.DType, tensor.Name)
		require.Equal(t, other.Shape, tensor.Shape, tensor.Name)
		require.Equal(t, want.bytes(tensor.Name), got.bytes(tensor.Name), tensor.Name)
	}
	require.Len(t, got.h.Tensors, len(want.h.Tensors)-len(goldenParams), "all but the parameters themselves")
}

// TestGoldenState imports what bitsandbytes has saved, nested and flat, and
// exports the same.
//
//check:in tiers arm64 arm64-go
func TestGoldenState(t *testing.T) {
	nested, flat := openGolden(t, "adamw"), openGolden(t, "continued")
	for _, o := range []Options{goldenOptions, {Storage: newFakeStorage()}} {
		a := newAdamW(t, o, goldenParams)
		readState(t, a, nested.file)
		require.Equal(t, 5, a.Steps())
		requireSameState(t, nested, writeState(t, a, BitsAndBytesFormat{Nested: true, Shapes: goldenShapes}))
		m, v := a.Maps()
		require.Equal(t, nested.goldenMap("w."+nestedKey+".qmap1"), m)
		require.Equal(t, nested.goldenMap("w."+nestedKey+".qmap2"), v)
		readState(t, a, flat.file)
		require.Equal(t, 8, a.Steps())
		requireSameState(t, flat, writeState(t, a, BitsAndBytesFormat{Shapes: goldenShapes}))
	}
}

// TestGoldenRun continues bitsandbytes' run, and does all of it, within the
// bounds of its tests: 1e-5 and 1e-3 for parameters with 8-bit state, where all
// 8-bit moments but 20 are within 3e-3 and 1e-3, and 1e-6 and 1e-5 with 32 bits.
//
//check:in tiers arm64 arm64-go ordered
//check:not checked
func TestGoldenRun(t *testing.T) {
	before, after := openGolden(t, "adamw"), openGolden(t, "continued")
	want := newWith(t, goldenRule, goldenOptions, goldenParams)
	readState(t, want, after.file)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, first := range []int{1, 6} {
			a := newWith(t, goldenRule, goldenOptions, goldenParams)
			params := map[string]*kerneltest.Buf[float32]{}
			for name, n := range goldenParams {
				params[name] = kerneltest.Put(t, backend, noise(n, 0))
			}
			if first == 6 {
				readState(t, a, before.file)
				for name := range goldenParams {
					params[name] = kerneltest.Put(t, backend, before.floats(name))
				}
			}
			for step := first; step <= 8; step++ {
				advance(a)
				require.Equal(t, step, a.Steps())
				for name, p := range params {
					g := kerneltest.Put(t, backend, noise(goldenParams[name], step))
					require.NoError(t, a.Step(name, p.View, g.View, 1))
				}
			}
			require.Zero(t, outliers(after.floats("w"), params["w"].Get(), 1e-5, 1e-3))
			require.Zero(t, outliers(after.floats("b"), params["b"].Get(), 1e-6, 1e-5))
			wantM, wantV := moments(t, want, "w")
			m, v := moments(t, a, "w")
			require.Less(t, outliers(wantM, m, 3e-3, 1e-3), 20)
			require.Less(t, outliers(wantV, v, 3e-3, 1e-3), 20)
		}
	})
}

// fileOf returns a safetensors file with some tensors.
func fileOf(t testing.TB, tensors map[string]any, shapes map[string][]int) []byte {
	t.Helper()
	var list []safetensors.Tensor
	for name, x := range tensors {
		shape, given := shapes[name]
		var dtype string
		var n int
		switch x := x.(type) {
		case []uint8:
			dtype, n = "U8", len(x)
		case []float32:
			dtype, n = "F32", len(x)
		case []int32:
			dtype, n = "I32", len(x)
		case []int64:
			dtype, n = "I64", len(x)
		}
		if !given {
			shape = []int{n}
		}
		list = append(list, safetensors.Tensor{Name: name, DType: dtype, Shape: shape})
	}
	h, err := safetensors.New(list, nil)
	require.NoError(t, err)
	file, err := h.Bytes()
	require.NoError(t, err)
	for _, tensor := range h.Tensors {
		file, err = binary.Append(file, binary.LittleEndian, tensors[tensor.Name])
		require.NoError(t, err)
	}
	return file
}

// quantized returns the tensors of a state with blocks of some size.
func quantized(t testing.TB, m, v []float32, block int) map[string]any {
	n := len(m)
	codes1, codes2 := make([]uint8, n), make([]uint8, n)
	absmax1, absmax2 := make([]float32, Blocks(n, block)), make([]float32, Blocks(n, block))
	require.NoError(t, Quantize(codes1, absmax1, m, signedMap, block))
	require.NoError(t, Quantize(codes2, absmax2, v, unsignedMap, block))
	return map[string]any{
		"w.step": []int64{7}, "w.state1": codes1, "w.state2": codes2, "w.absmax1": absmax1, "w.absmax2": absmax2,
		"w.qmap1": signedMap[:], "w.qmap2": unsignedMap[:],
	}
}

func magnitudes(x []float32) []float32 {
	y := slices.Clone(x)
	for i := range y {
		y[i] = float32(math.Abs(float64(y[i])))
	}
	return y
}

// TestOldBlocks reads all sizes of blocks, each of which is told from absmax, into
// optimizers with smaller ones, exactly.
func TestOldBlocks(t *testing.T) {
	for _, n := range []int{1, 200, 300, 2049, 9000} {
		x, y := kerneltest.Normal(1, n), magnitudes(kerneltest.Normal(2, n))
		for _, block := range blocksOfFiles {
			file := fileOf(t, quantized(t, x, y, block), nil)
			for _, own := range []int{32, 64, 256, 2048, 4096} {
				a := newAdamW(t, Options{MinSize: 1, Block: own, Chunk: 4096}, map[string]int{"w": n})
				err := a.ReadBitsAndBytes(bytes.NewReader(file), int64(len(file)), "")
				if own > block && n > block {
					require.ErrorIs(t, err, snug.ErrConfig)
					require.ErrorContains(t, err, "multiple")
					continue
				}
				require.NoError(t, err)
				require.Equal(t, 7, a.Steps())
				want, got := make([]float32, 2*n), make([]float32, 0, 2*n)
				q := quantized(t, x, y, block)
				require.NoError(t, Dequantize(want[:n], q["w.state1"].([]uint8), q["w.absmax1"].([]float32), signedMap, block))
				require.NoError(t, Dequantize(want[n:], q["w.state2"].([]uint8), q["w.absmax2"].([]float32), unsignedMap, block))
				m, v := moments(t, a, "w")
				got = append(append(got, m...), v...)
				require.True(t, equal(want, got), "%d elements, block %d into %d", n, block, own)
			}
		}
	}
}

// TestWriteLargerBlocks writes blocks that bitsandbytes does not have.
func TestWriteLargerBlocks(t *testing.T) {
	const n = 9001
	a := newAdamW(t, Options{Block: 1024, Chunk: 2048}, map[string]int{"w": n})
	b := newAdamW(t, Options{}, map[string]int{"w": n})
	p := kerneltest.Normal(1, n)
	advance(a)
	require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(kerneltest.Normal(2, n)), 1))
	g := writeState(t, a, BitsAndBytesFormat{})
	require.Len(t, g.floats("w.absmax1"), Blocks(n, 256))
	readState(t, b, g.file)
	wantM, wantV := moments(t, a, "w")
	m, v := moments(t, b, "w")
	require.True(t, equal(wantM, m))
	require.True(t, equal(wantV, v))

	odd := newAdamW(t, Options{Block: 128}, map[string]int{"w": n})
	_, err := odd.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
	require.ErrorIs(t, err, snug.ErrConfig)
	small := newAdamW(t, Options{Block: 128}, map[string]int{"w": 10})
	_, err = small.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
	require.NoError(t, err, "32-bit state has no blocks")
}

// TestStateOfBitsAndBytesContinues saves on one backend and goes on on another, bit
// for bit.
//
//check:in tiers arm64 ordered
//check:not checked
func TestStateOfBitsAndBytesContinues(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, o := range []Options{{Chunk: 1024}, {Bits: 32, Chunk: 1024}, {Block: 512, Chunk: 1024}} {
			old := newTrainer(t, backend, o)
			for range 3 {
				advance(old.a)
				old.step(backend, "w", "b", "empty", "v")
			}
			var file bytes.Buffer
			format := BitsAndBytesFormat{Prefix: "optimizer.", Nested: o.Bits == 32}
			_, err := old.a.WriteBitsAndBytes(&file, format)
			require.NoError(t, err)
			if o.Block == 512 {
				o.Block = 256
			}
			restored := newTrainer(t, backend, o)
			require.NoError(t, restored.a.ReadBitsAndBytes(bytes.NewReader(file.Bytes()), int64(file.Len()), "optimizer."))
			for name := range savedParams {
				wantM, wantV := moments(t, old.a, name)
				m, v := moments(t, restored.a, name)
				require.True(t, equal(wantM, m), name)
				require.True(t, equal(wantV, v), name)
				restored.p[name] = kerneltest.Put(t, backend, old.p[name].Get())
			}
			for _, tr := range []*trainer{old, restored} {
				advance(tr.a)
				tr.step(backend, "w", "b", "empty", "v")
				require.Equal(t, 4, tr.a.Steps())
			}
			for name := range savedParams {
				require.True(t, equal(old.p[name].Get(), restored.p[name].Get()), name)
			}
		}
	})
}

//check:in tiers arm64
func TestReadBitsAndBytesErrors(t *testing.T) {
	const n = 5000
	x, y := kerneltest.Normal(1, n), magnitudes(kerneltest.Normal(2, n))
	nan := float32(math.NaN())
	withoutZero := LinearMap(true)
	withoutZero[127], withoutZero[128] = -1e-3, 1e-3
	turned := slices.Clone(signedMap[:])
	slices.Reverse(turned)
	for _, c := range []struct {
		name   string
		tensor string
		value  any // nil removes the tensor
		want   error
		says   string // empty: the key of the tensor
	}{
		{"no step", "w.step", nil, snug.ErrConfig, ""},
		{"no state", "w.state1", nil, snug.ErrConfig, ""},
		{"no second state", "w.state2", nil, snug.ErrConfig, ""},
		{"no map", "w.qmap2", nil, snug.ErrConfig, ""},
		{"no absmax", "w.absmax1", nil, snug.ErrConfig, ""},
		{"negative step", "w.step", []int64{-1}, snug.ErrCorrupt, ""},
		{"huge step", "w.step", []int64{math.MaxInt64}, snug.ErrCorrupt, ""},
		{"negative step in 32 bits", "w.step", []int32{-1}, snug.ErrCorrupt, ""},
		{"part of a step", "w.step", []float32{0.5}, snug.ErrCorrupt, ""},
		{"NaN step", "w.step", []float32{nan}, snug.ErrCorrupt, ""},
		{"two steps", "w.step", []int64{1, 2}, snug.ErrCorrupt, ""},
		{"step of bytes", "w.step", []uint8{7}, snug.ErrConfig, ""},
		{"other step", "w.step", []float32{8}, snug.ErrConfig, "step"},
		{"32-bit state", "w.state1", make([]float32, n), snug.ErrConfig, ""},
		{"state of another shape", "w.state2", make([]uint8, 2*n), snug.ErrConfig, ""},
		{"short map", "w.qmap1", make([]float32, 16), snug.ErrCorrupt, ""},
		{"map of bytes", "w.qmap1", make([]uint8, 1024), snug.ErrConfig, ""},
		{"map out of order", "w.qmap1", turned, snug.ErrCorrupt, ""},
		{"map without zero", "w.qmap1", withoutZero[:], snug.ErrConfig, "Map1"},
		{"map of the other moment", "w.qmap1", unsignedMap[:], snug.ErrConfig, "Map1"},
		{"signed map of the second moment", "w.qmap2", signedMap[:], snug.ErrConfig, "Map2"},
		{"absmax of other lengths", "w.absmax1", make([]float32, 21), snug.ErrCorrupt, ""},
		{"NaN absmax", "w.absmax2", append(make([]float32, 19), nan), snug.ErrCorrupt, ""},
		{"negative absmax", "w.absmax2", append(make([]float32, 19), -1), snug.ErrCorrupt, ""},
		{"absmax of bytes", "w.absmax2", make([]uint8, 20), snug.ErrConfig, ""},
		{"no other parameter", "b.step", nil, snug.ErrConfig, ""},
		{"infinite moment", "b.state1", append(make([]float32, 69), float32(math.Inf(1))), snug.ErrCorrupt, ""},
		{"negative second moment", "b.state2", append(make([]float32, 69), -1), snug.ErrCorrupt, ""},
		{"8-bit state", "b.state1", make([]uint8, 70), snug.ErrConfig, ""},
		{"other maps", "z.qmap1", LinearMap(true)[:], snug.ErrConfig, "maps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAdamW(t, Options{}, map[string]int{"w": n, "b": 70, "z": n})
			tensors := quantized(t, x, y, 256)
			for name, value := range quantized(t, y, y, 256) {
				tensors["z"+name[1:]] = value
			}
			tensors["b.step"], tensors["b.state1"], tensors["b.state2"] = []float32{7}, x[:70], y[:70]
			tensors["w.unorm_vec"] = []float32{1} // which is passed over
			before := stateOf(t, a)
			good := fileOf(t, tensors, nil)
			if tensors[c.tensor] = c.value; c.value == nil {
				delete(tensors, c.tensor)
			}
			file := fileOf(t, tensors, nil)
			err := a.ReadBitsAndBytes(bytes.NewReader(file), int64(len(file)), "")
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, stateOf(t, a), "unchanged")
			require.Zero(t, a.Steps())
			_, key, _ := strings.Cut(c.tensor, ".")
			require.ErrorContains(t, err, cmp.Or(c.says, key))
			readState(t, a, good)
			require.Equal(t, 7, a.Steps())
		})
	}
}

//check:in tiers arm64
func TestBitsAndBytesErrors(t *testing.T) {
	file := openGolden(t, "adamw").file
	a := newAdamW(t, Options{}, goldenParams)
	read := func(b []byte, prefix string) error {
		return a.ReadBitsAndBytes(bytes.NewReader(b), int64(len(b)), prefix)
	}
	require.ErrorIs(t, a.ReadBitsAndBytes(nil, 0, ""), snug.ErrConfig)
	require.ErrorIs(t, newAdamW(t, Options{}, nil).ReadBitsAndBytes(bytes.NewReader(file), int64(len(file)), ""), snug.ErrConfig)
	require.ErrorIs(t, read(nil, ""), snug.ErrCorrupt)
	require.ErrorIs(t, read(file[:len(file)-1], ""), snug.ErrCorrupt)
	require.ErrorIs(t, read(file, "optimizer."), snug.ErrConfig)
	blocks := quantized(t, kerneltest.Normal(1, 4200), kerneltest.Normal(2, 4200), 700) // a size that does not exist
	blocks["b.step"], blocks["b.state1"], blocks["b.state2"] = []int64{7}, make([]float32, 70), make([]float32, 70)
	require.ErrorIs(t, read(fileOf(t, blocks, nil), ""), snug.ErrCorrupt)
	require.Zero(t, a.Steps())

	// A reader that fails after the checks.
	fails := &failingAt{r: bytes.NewReader(file), after: math.MaxInt}
	require.NoError(t, a.ReadBitsAndBytes(fails, int64(len(file)), ""))
	fails.after = fails.calls - 2
	fails.calls = 0
	require.ErrorIs(t, a.ReadBitsAndBytes(fails, int64(len(file)), ""), errFull)
	_, err := a.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, read(file, ""))

	_, err = a.WriteBitsAndBytes(nil, BitsAndBytesFormat{})
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, shape := range [][]int{{}, {70, 61}, {-60, -70}, {math.MaxInt, math.MaxInt}} {
		_, err = a.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{Shapes: map[string][]int{"w": shape}})
		require.ErrorIs(t, err, snug.ErrShape)
	}
	_, err = a.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{Prefix: "\xff"})
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, n := range []int{0, 100, 3000} {
		written, err := a.WriteBitsAndBytes(&failing{n}, BitsAndBytesFormat{})
		require.ErrorIs(t, err, errFull)
		require.EqualValues(t, n, written)
	}
	store := newFakeStorage()
	stored := newAdamW(t, Options{Storage: store}, goldenParams)
	store.fail = errFull
	_, err = stored.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
	require.ErrorIs(t, err, errFull)
	require.ErrorIs(t, stored.ReadBitsAndBytes(bytes.NewReader(file), int64(len(file)), ""), errFull)
}

// failingAt fails after some reads.
type failingAt struct {
	r            io.ReaderAt
	calls, after int
}

func (f *failingAt) ReadAt(b []byte, offset int64) (int, error) {
	if f.calls++; f.calls > f.after {
		return 0, errFull
	}
	return f.r.ReadAt(b, offset)
}

//check:in tiers arm64
func TestBitsAndBytesNames(t *testing.T) {
	a := newAdamW(t, Options{}, goldenParams)
	names := func(f BitsAndBytesFormat) []string {
		all := map[string]bool{}
		for _, tensor := range writeState(t, a, f).h.Tensors {
			all[tensor.Name] = true
		}
		return slices.Sorted(maps.Keys(all))
	}
	require.Equal(t, []string{
		"o.b.state1", "o.b.state2", "o.b.step",
		"o.w.absmax1", "o.w.absmax2", "o.w.qmap1", "o.w.qmap2", "o.w.state1", "o.w.state2", "o.w.step",
	}, names(BitsAndBytesFormat{Prefix: "o."}))
	require.Contains(t, names(BitsAndBytesFormat{Nested: true}), "w.__bnb_optimizer_quant_state__.absmax1")
	require.Contains(t, names(BitsAndBytesFormat{Nested: true}), "w.step")
}
