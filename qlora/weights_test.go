package qlora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/safetensors"
)

const goldenWeights = "testdata/bitsandbytes/weights.safetensors"

// TestWeightsOfBitsandbytes reads a file that bitsandbytes 0.50.2 has made. Its values
// are the same, bit for bit.
//
//check:in tiers arm64 arm64-go
func TestWeightsOfBitsandbytes(t *testing.T) {
	type row struct {
		Name, Type, DType string
		Block             int
		Shape             []int
		Double            bool
		Values            encoded
	}
	rows := golden[row](t, "weights.json")
	file, err := OpenWeights(goldenWeights)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"up.weight", "down.weight", "odd.weight"}, file.Names())
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, r := range rows {
			format, dt := parse(t, r.Type, r.DType)
			w, err := file.Load(r.Name, backend.Dev)
			require.NoError(t, err)
			require.Equal(t, r.Shape, w.Shape())
			require.Equal(t, []any{format, dt, r.Block, r.Double}, []any{w.Type(), w.DType(), w.Block(), w.Double()})
			want := r.Values.floats(t, dt)
			dst := kerneltest.PutFloats(t, backend, dt, make([]float32, len(want)))
			require.NoError(t, w.Dequantize(dst.View))
			for i := range want {
				want[i] += 0 // the code of -0 is 0
			}
			sameBits(t, want, dst.Get())
			require.NoError(t, w.Close())
		}
	})
	_, err = file.Load("up.bias", nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, file.Close())
	require.ErrorIs(t, file.Close(), os.ErrClosed)
	_, err = file.Load("up.weight", nil)
	require.ErrorIs(t, err, os.ErrClosed)
}

// one yields a weight.
func one(name string, w *Weight) iter.Seq2[string, *Weight] {
	return func(yield func(string, *Weight) bool) { yield(name, w) }
}

func open(t require.TestingT, file []byte) *Weights {
	w, err := NewWeights(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return w
}

// TestWriteBitsandbytes writes what it has read of bitsandbytes' file: all tensors
// are the same, and the descriptions mean the same.
//
//check:in tiers arm64 arm64-go
func TestWriteBitsandbytes(t *testing.T) {
	b, err := os.ReadFile(goldenWeights)
	require.NoError(t, err)
	golden := open(t, b)
	weights := map[string]*Weight{}
	for _, name := range golden.Names() {
		weights[name], err = golden.Load(name, nil)
		require.NoError(t, err)
	}
	var out bytes.Buffer
	n, err := WriteWeights(&out, maps.All(weights), map[string]string{"format": "pt"})
	require.NoError(t, err)
	require.EqualValues(t, out.Len(), n)
	ours := open(t, out.Bytes())
	require.Equal(t, header(golden).Metadata, header(ours).Metadata)
	require.Len(t, header(golden).Tensors, len(header(ours).Tensors)+1, "all but the bias")
	for _, got := range header(ours).Tensors {
		want := header(golden).Find(got.Name)
		require.NotNil(t, want, got.Name)
		data, wantData := out.Bytes()[header(ours).Data:][got.Begin:got.End], b[header(golden).Data:][want.Begin:want.End]
		if strings.Contains(got.Name, "quant_state") {
			require.JSONEq(t, string(wantData), string(data))
			continue
		}
		require.Equal(t, []any{want.DType, want.Shape}, []any{got.DType, got.Shape}, got.Name)
		require.Equal(t, wantData, data, got.Name)
	}
}

// TestWeightsRoundTrip writes and reads weights of all backends, one of them longer
// than what passes through the host at a time.
func TestWeightsRoundTrip(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, n := range []int{0, 1, 65, 2*staged + 333} {
			if n > 1000 && backend.Emulated {
				continue // the copies are those of the opaque device
			}
			for _, opt := range []Options{{Block: 32}, {Type: FP4, Single: true}} {
				src := kerneltest.Put(t, backend, kerneltest.Normal(1, n))
				w, err := NewWeight(src.View, []int{n, 1}, opt)
				require.NoError(t, err)
				var out bytes.Buffer
				_, err = WriteWeights(&out, one("layers.0.w", w), nil)
				require.NoError(t, err)
				back, err := open(t, out.Bytes()).Load("layers.0.w", backend.Dev)
				require.NoError(t, err)
				require.Equal(t, w.Bytes(), back.Bytes())
				want, got := kerneltest.Put(t, backend, make([]float32, n)), kerneltest.Put(t, backend, make([]float32, n))
				require.NoError(t, w.Dequantize(want.View))
				require.NoError(t, back.Dequantize(got.View))
				sameBits(t, want.Get(), got.Get())
			}
		}
	})
}

// parts are the tensors of a file.
type parts map[string]rawPart

type rawPart struct {
	dtype string
	shape []int
	data  []byte
}

// header returns the header of a single file.
func header(w *Weights) *safetensors.Header { return w.set.Files[0].Header }

func partsOf(t require.TestingT, file []byte) parts {
	w := open(t, file)
	p := parts{}
	for _, x := range header(w).Tensors {
		p[x.Name] = rawPart{x.DType, x.Shape, slices.Clone(file[header(w).Data:][x.Begin:x.End])}
	}
	return p
}

func (p parts) file(t require.TestingT) []byte {
	var list []safetensors.Tensor
	for name, x := range p {
		list = append(list, safetensors.Tensor{Name: name, DType: x.dtype, Shape: x.shape})
	}
	h, err := safetensors.New(list, nil)
	require.NoError(t, err)
	b, err := h.Bytes()
	require.NoError(t, err)
	for _, x := range h.Tensors {
		b = append(b, p[x.Name].data...)
	}
	return b
}

const state = "w.quant_state.bitsandbytes__nf4"

// small is a file of one weight, w, with double quantization.
func small(t require.TestingT) []byte {
	w, err := NewWeight(kerneltest.Normal(1, 200), []int{10, 20}, Options{})
	require.NoError(t, err)
	var out bytes.Buffer
	_, err = WriteWeights(&out, one("w", w), nil)
	require.NoError(t, err)
	return out.Bytes()
}

func TestDamagedWeights(t *testing.T) {
	set := func(key string, value any) func(parts) {
		return func(p parts) {
			fields := map[string]any{}
			require.NoError(t, json.Unmarshal(p[state].data, &fields))
			fields[key] = value
			text, err := json.Marshal(fields)
			require.NoError(t, err)
			p[state] = rawPart{"U8", []int{len(text)}, text}
		}
	}
	put := func(name, dtype string, data []byte) func(parts) {
		return func(p parts) {
			p[name] = rawPart{dtype, []int{len(data) / int(safetensors.Bits(dtype)/8)}, data}
		}
	}
	nan := bytes.Repeat([]byte{0xff}, 4)
	for name, c := range map[string]struct {
		damage func(parts)
		want   string
	}{
		"no JSON":               {put(state, "U8", []byte("{")), "unexpected end"},
		"empty JSON":            {put(state, "U8", nil), "unexpected end"},
		"NaN":                   {put(state, "U8", []byte(`{"nested_offset": NaN}`)), "invalid character"},
		"huge JSON":             {put(state, "U8", make([]byte, maxState+1)), "want at most"},
		"JSON of floats":        {put(state, "F32", make([]byte, 4)), "want at most"},
		"both formats":          {put("w.quant_state.bitsandbytes__fp4", "U8", nil), "both"},
		"type":                  {set("quant_type", "fp4"), "quant_type"},
		"block":                 {set("blocksize", 48), "blocksize"},
		"block of text":         {set("blocksize", "64"), "want an integer that fits in int"},
		"another block":         {set("blocksize", 128), "absmax"},
		"dtype":                 {set("dtype", "float64"), "dtype"},
		"no shape":              {set("shape", nil), "no shape"},
		"another shape":         {set("shape", []int{10, 22}), "want 110 of"},
		"negative shape":        {set("shape", []int{-10, -20}), "shape[0] is -10"},
		"huge shape":            {set("shape", []int{math.MaxInt, 4}), "more than"},
		"no offset":             {set("nested_offset", nil), "nested_offset"},
		"offset":                {set("nested_offset", 1e300), "nested_offset"},
		"nested block":          {set("nested_blocksize", 128), "nested_blocksize"},
		"nested dtype":          {set("nested_dtype", "float16"), "nested_dtype"},
		"no codes":              {func(p parts) { delete(p, "w") }, `no tensor "w"`},
		"codes of integers":     {put("w", "I32", make([]byte, 100)), "I32"},
		"few codes":             {put("w", "U8", make([]byte, 99)), "99 bytes"},
		"no absmax":             {func(p parts) { delete(p, "w.absmax") }, "absmax"},
		"absmax of floats":      {put("w.absmax", "F32", make([]byte, 4)), "absmax"},
		"no nested":             {func(p parts) { delete(p, "w.nested_absmax") }, "nested_absmax"},
		"nested NaN":            {put("w.nested_absmax", "F32", nan), "nested_absmax[0] is NaN"},
		"no nested map":         {func(p parts) { delete(p, "w.nested_quant_map") }, "nested_quant_map"},
		"nested map of NaN":     {put("w.nested_quant_map", "F32", bytes.Repeat(nan, 256)), "nested_quant_map[0] is NaN"},
		"no map":                {func(p parts) { delete(p, "w.quant_map") }, "quant_map"},
		"map of fp4":            {put("w.quant_map", "F32", make([]byte, 64)), "quant_map[0] is 0, want -1 for nf4"},
		"map of NaN":            {put("w.quant_map", "F32", bytes.Repeat(nan, 16)), "quant_map[0] is NaN"},
		"shape over an int":     {set("shape", []float64{1e30}), "want an integer that fits in int"},
		"shape of halves":       {set("shape", []float64{10.5, 20}), "want an integer that fits in int"},
		"a key in another case": {set("BlockSize", 64), "BlockSize"},
		"a key twice": {func(p parts) {
			text := strings.TrimSuffix(string(p[state].data), "}") + `,"blocksize":128}`
			p[state] = rawPart{"U8", []int{len(text)}, []byte(text)}
		}, "blocksize"},
		"negative nested size": {set("nested_blocksize", -1), "nested_blocksize"},
	} {
		t.Run(name, func(t *testing.T) {
			p := partsOf(t, small(t))
			c.damage(p)
			w, err := open(t, p.file(t)).Load("w", nil)
			require.Nil(t, w)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestStoredTypes loads codes that are stored as numbers of another type, as
// bitsandbytes' quant_storage has it.
//
//check:in tiers
func TestStoredTypes(t *testing.T) {
	p := partsOf(t, small(t))
	want, err := open(t, p.file(t)).Load("w", nil)
	require.NoError(t, err)
	for dtype, n := range map[string]int{"BF16": 50, "F16": 50, "F32": 25} {
		t.Run(dtype, func(t *testing.T) {
			p["w"] = rawPart{dtype, []int{n, 1}, p["w"].data}
			w, err := open(t, p.file(t)).Load("w", nil)
			require.NoError(t, err)
			require.Equal(t, snug.Host[uint8](want.Packed()), snug.Host[uint8](w.Packed()))
		})
	}
}

func TestWeightsFileErrors(t *testing.T) {
	_, err := OpenWeights(t.TempDir())
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = OpenWeights("testdata/none")
	require.ErrorIs(t, err, os.ErrNotExist)
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("short"), 0o600))
	_, err = OpenWeights(path)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	_, err = NewWeights(nil, 5)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = NewWeights(strings.NewReader("short"), 5)
	require.ErrorIs(t, err, snug.ErrCorrupt)

	w, err := NewWeight(kerneltest.Normal(1, 64), []int{64}, Options{})
	require.NoError(t, err)
	twice := func(yield func(string, *Weight) bool) {
		for range 2 {
			if !yield("w", w) {
				return
			}
		}
	}
	_, err = WriteWeights(io.Discard, twice, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = WriteWeights(io.Discard, one("w", nil), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = WriteWeights(io.Discard, nil, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = WriteWeights(nil, one("w", w), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	for limit := range 3 {
		_, err = WriteWeights(&failing{left: limit}, one("w", w), nil)
		require.ErrorIs(t, err, errFull)
	}
	require.NoError(t, w.Close())
	_, err = WriteWeights(io.Discard, one("w", w), nil)
	require.ErrorIs(t, err, snug.ErrDevice)
}

var errFull = errors.New("full")

// failing fails after a number of writes.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left == 0 {
		return 0, errFull
	}
	f.left--
	return len(b), nil
}

// damage changes bytes of a file of weights, and reads all of it: it loads or is
// refused.
func damage(t *rapid.T) {
	b := slices.Clone(fuzzed)
	if rapid.Bool().Draw(t, "cut") {
		b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
	}
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		if len(b) > 0 {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
	}
	w, err := NewWeights(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		require.ErrorIs(t, err, snug.ErrCorrupt)
		return
	}
	for _, name := range w.Names() {
		weight, err := w.Load(name, nil)
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			continue
		}
		require.NoError(t, weight.Dequantize(snug.ViewOf(make([]float32, weight.Len()))))
	}
}

var fuzzed = small(panics{})

// panics is what a variable is made with.
type panics struct{}

func (panics) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panics) FailNow()                          { panic("failed") }

func TestDamage(t *testing.T) { rapid.Check(t, damage) }
func FuzzDamage(f *testing.F) { f.Fuzz(rapid.MakeFuzz(damage)) }

// FuzzState reads descriptions of any text.
func FuzzState(f *testing.F) {
	p := partsOf(f, fuzzed)
	f.Add(p[state].data)
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseState(text, NF4)
		if err == nil {
			_, err = s.weight(NF4)
		}
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
		}
	})
}

// TestWeightsOfAFolder: shards of 4-bit weights are read as one file is.
func TestWeightsOfAFolder(t *testing.T) {
	one, err := OpenWeights(goldenWeights)
	require.NoError(t, err)
	defer one.Close()
	whole, err := amp.OpenWeights(goldenWeights)
	require.NoError(t, err)
	defer whole.Close()
	dir := t.TempDir()
	require.NoError(t, amp.SaveShards(dir, 100, func(yield func(amp.Tensor, snug.View) bool) {
		for _, tensor := range whole.Tensors() {
			b := make([]byte, tensor.Bytes())
			require.NoError(t, whole.ReadBytes(tensor.Name, 0, b))
			if !yield(tensor, snug.SliceView(b)) {
				return
			}
		}
	}, nil))
	shards, err := OpenWeights(dir)
	require.NoError(t, err)
	require.Greater(t, len(shards.set.Files), 2)
	require.ElementsMatch(t, one.Names(), shards.Names())
	for _, name := range one.Names() {
		a, err := one.Load(name, nil)
		require.NoError(t, err)
		b, err := shards.Load(name, nil)
		require.NoError(t, err)
		require.Equal(t, snug.Host[uint8](a.Packed()), snug.Host[uint8](b.Packed()))
		require.Equal(t, a.Shape(), b.Shape())
	}
	require.NoError(t, shards.Close())
	require.ErrorIs(t, shards.Close(), os.ErrClosed)
}
