package amp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// loaded returns all tensors of a file in its own types, in the reverse of its order.
func loaded(t require.TestingT, w *Weights) []saved {
	var tensors []saved
	for _, tensor := range w.Tensors() {
		v, _, err := snug.MakeView(snug.CPU(), tensor.ElementType(), tensor.Len())
		require.NoError(t, err)
		require.NoError(t, w.Load(tensor.Name, v))
		tensors = append(tensors, saved{tensor, v})
	}
	slices.Reverse(tensors)
	return tensors
}

// TestWriteGolden writes what the reference implementation wrote, byte for byte:
// its own tensors, and float32 tensors that torch converted for it.
//
//check:in tiers arm64 arm64-go
func TestWriteGolden(t *testing.T) {
	w := openGolden(t, "floats.safetensors")
	tensors := loaded(t, w)
	for name, tensors := range map[string][]saved{"floats.safetensors": tensors, "halves.safetensors": halves(tensors)} {
		want, err := os.ReadFile(golden(name))
		require.NoError(t, err)
		var b bytes.Buffer
		n, err := WriteWeights(&b, all(tensors...), openGolden(t, name).Metadata())
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, b.Bytes()), name)
		require.Equal(t, int64(len(want)), n)
	}
}

// halves returns the float32 tensors, to be converted to 16 bits, with 0 for NaN.
func halves(tensors []saved) (out []saved) {
	for _, t := range tensors {
		if t.DType != "F32" {
			continue
		}
		x := slices.Clone(t.view.Float32s())
		for i := range x {
			if x[i] != x[i] {
				x[i] = 0
			}
		}
		for _, to := range []string{"F16", "BF16"} {
			out = append(out, saved{Tensor{Name: t.Name + " " + to, DType: to, Shape: t.Shape}, snug.ViewOf(x)})
		}
	}
	return out
}

func TestWriteFromEveryBackend(t *testing.T) {
	const n = staged + 5
	vals := append(append([]float32(nil), special...), kerneltest.Uniform(1, n-len(special))...)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, from := range floats {
			for _, skip := range skips {
				src := kerneltest.PutFloats(t, p, from, append(make([]float32, skip), vals...))
				var tensors []saved
				for _, to := range floats {
					tensors = append(tensors, saved{Tensor{Name: to.String(), DType: fileType(to), Shape: []int{1, n}}, kerneltest.After(t, src.View, skip)})
				}
				w := weightsOf(t, written(t, tensors...))
				for _, to := range floats {
					got := kerneltest.PutFloats(t, kerneltest.Backend{}, to, make([]float32, n))
					require.NoError(t, w.Load(to.String(), got.View))
					requireSame(t, roundAll(to, roundAll(from, vals)), got.Get(), from, to, skip)
				}
			}
		}
	})
}

func TestWriteErrors(t *testing.T) {
	x := snug.ViewOf([]float32{1, 2, 3})
	good := vector("good", x)
	of := func(name, dtype string, shape ...int) saved {
		return saved{Tensor{Name: name, DType: dtype, Shape: shape}, x}
	}
	tests := []struct {
		name     string
		bad      saved
		metadata map[string]string
		want     error
	}{
		{"twice", of("good", "F32", 3), nil, snug.ErrConfig},
		{"name", of("\xff", "F32", 3), nil, snug.ErrConfig},
		{"the name of metadata", of("__metadata__", "F32", 3), nil, snug.ErrConfig},
		{"metadata", of("x", "F32", 3), map[string]string{"\xff": ""}, snug.ErrConfig},
		{"unknown type", of("x", "f32", 3), nil, snug.ErrDType},
		{"another type", of("x", "I32", 3), nil, snug.ErrDType},
		{"the type of elements", saved{Tensor{Name: "x", DType: "", Shape: []int{3}}, snug.SliceView(make([]int32, 3))}, nil, snug.ErrDType},
		{"no view", saved{Tensor{Name: "x", DType: "F32", Shape: []int{0}}, snug.View{}}, nil, snug.ErrDType},
		{"bytes of no type", saved{Tensor{Name: "x", DType: "f32", Shape: []int{3}}, snug.SliceView(make([]byte, 12))}, nil, snug.ErrDType},
		{"bytes, fewer", saved{Tensor{Name: "x", DType: "I64", Shape: []int{3}}, snug.SliceView(make([]byte, 23))}, nil, snug.ErrShape},
		{"bytes, more", saved{Tensor{Name: "x", DType: "", Shape: []int{3}}, snug.SliceView(make([]byte, 4))}, nil, snug.ErrShape},
		{"bytes, overflow", saved{Tensor{Name: "x", DType: "U8", Shape: []int{math.MaxInt, 3}}, snug.SliceView([]byte{})}, nil, snug.ErrShape},
		{"bytes, near overflow", saved{Tensor{Name: "x", DType: "U64", Shape: []int{math.MaxInt/8 + 1}}, snug.SliceView([]byte{})}, nil, snug.ErrShape},
		{"half bytes", saved{Tensor{Name: "x", DType: "F4", Shape: []int{3}}, snug.SliceView(make([]byte, 2))}, nil, snug.ErrShape},
		{"fewer", of("x", "F32", 2), nil, snug.ErrShape},
		{"a scalar", of("x", "F32"), nil, snug.ErrShape},
		{"negative", of("x", "F32", -1, -3), nil, snug.ErrShape},
		{"overflow", of("x", "F32", math.MaxInt, 3), nil, snug.ErrShape},
		{"device", saved{Tensor{Name: "x", DType: "F32", Shape: []int{3}}, kerneltest.Closed(t, snug.F32, 3)}, nil, snug.ErrDevice},
	}
	path := filepath.Join(t.TempDir(), "weights")
	for _, test := range tests {
		var b bytes.Buffer
		n, err := WriteWeights(&b, all(good, test.bad), test.metadata)
		require.ErrorIs(t, err, test.want, test.name)
		require.Zero(t, n)
		require.Zero(t, b.Len())
		require.ErrorIs(t, SaveWeights(path, all(good, test.bad), test.metadata), test.want, test.name)
		require.NoFileExists(t, path)
	}
	_, err := WriteWeights(nil, all(good), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = WriteWeights(io.Discard, nil, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, SaveWeights(path, nil, nil), snug.ErrConfig)
}

// TestWriteBytes writes a file of the reference implementation with tensors of all types
// that are not loaded, byte for byte, from every backend and in pieces.
func TestWriteBytes(t *testing.T) {
	want, err := os.ReadFile(golden("types.safetensors"))
	require.NoError(t, err)
	w := openGolden(t, "types.safetensors")
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		var tensors []saved
		for _, tensor := range w.Tensors() {
			b := make([]byte, tensor.Bytes())
			require.NoError(t, w.ReadBytes(tensor.Name, 0, b))
			tensors = append(tensors, saved{tensor, bytesOn(t, p, b)})
		}
		slices.Reverse(tensors)
		require.Equal(t, want, written(t, tensors...))

		long := make([]byte, 4*staged+7)
		for i := range long {
			long[i] = byte(i >> 3 * i)
		}
		again := weightsOf(t, written(t, saved{Tensor{Name: "x", Shape: []int{len(long)}}, bytesOn(t, p, long)}))
		got := make([]byte, len(long))
		require.NoError(t, again.ReadBytes("x", 0, got))
		require.Equal(t, long, got)
		x, _ := again.Tensor("x")
		require.Equal(t, "U8", x.DType)
	})
}

// bytesOn returns a copy of b on a backend.
func bytesOn(t *testing.T, p kerneltest.Backend, b []byte) snug.View {
	dev := p.Dev
	if dev == nil {
		dev = snug.CPU()
	}
	v, free, err := snug.MakeView(dev, snug.U8, len(b))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, free()) })
	require.NoError(t, snug.Copy(v, snug.SliceView(b)))
	return v
}

// TestWriteFromAWalkerThatReusesItsShape has one slice for all shapes.
func TestWriteFromAWalkerThatReusesItsShape(t *testing.T) {
	var b bytes.Buffer
	shape := make([]int, 1)
	_, err := WriteWeights(&b, func(yield func(Tensor, snug.View) bool) {
		for n := range 3 {
			shape[0] = n
			if !yield(Tensor{Name: fmt.Sprint(n), Shape: shape}, snug.ViewOf(make([]float32, n))) {
				return
			}
		}
	}, nil)
	require.NoError(t, err)
	for n, tensor := range weightsOf(t, b.Bytes()).Tensors() {
		require.Equal(t, []int{n}, tensor.Shape)
	}
}

// full is a writer with room for some bytes.
type full struct {
	limit int
	err   error // or nil for a writer that just writes less
}

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.limit)
	f.limit -= n
	if n < len(b) {
		return n, f.err
	}
	return n, nil
}

func TestWriteToAFullWriter(t *testing.T) {
	x := snug.ViewOf(kerneltest.Uniform(1, 100))
	tensors := all(vector("x", x), saved{Tensor{Name: "y", DType: "F16", Shape: []int{100}}, x})
	var whole bytes.Buffer
	_, err := WriteWeights(&whole, tensors, nil)
	require.NoError(t, err)
	errFull := errors.New("no room")
	for limit := range whole.Len() {
		n, err := WriteWeights(&full{limit, errFull}, tensors, nil)
		require.ErrorIs(t, err, errFull)
		require.Equal(t, int64(limit), n)
		_, err = WriteWeights(&full{limit, nil}, tensors, nil)
		require.ErrorIs(t, err, io.ErrShortWrite)
	}
	n, err := WriteWeights(&full{whole.Len(), errFull}, tensors, nil)
	require.NoError(t, err)
	require.Equal(t, int64(whole.Len()), n)
}

// lost returns a view on a device whose memory is not there.
func lost(t *testing.T, n int) snug.View {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	a, err := snug.Wrap[float32](dev, 1<<20, n)
	require.NoError(t, err)
	return a.View()
}

func TestSaveWeights(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weights")
	x, y := []float32{1, 2, 3}, []float32{4, 5, 6, 7}
	save := func(v []float32) error { return SaveWeights(path, all(vector("x", snug.ViewOf(v))), nil) }
	requireFile := func(want []float32) {
		t.Helper()
		w, err := OpenWeights(path)
		require.NoError(t, err)
		got := make([]float32, len(want))
		require.NoError(t, w.Load("x", snug.ViewOf(got)))
		require.Equal(t, want, got)
		require.NoError(t, w.Close())
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1, "nothing is left")
	}
	require.NoError(t, save(x))
	requireFile(x)
	if runtime.GOOS != "windows" { // which has no such permissions
		require.NoError(t, os.Chmod(path, 0o604))
	}
	before, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, save(y))
	requireFile(y)
	now, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, before.Mode(), now.Mode())

	// The first tensor is written, the second cannot be.
	require.ErrorIs(t, SaveWeights(path, all(vector("a", snug.ViewOf(x)), vector("b", lost(t, 3))), nil), snug.ErrDevice)
	requireFile(y)
}

func TestSaveWeightsWhereItCannotBe(t *testing.T) {
	dir := t.TempDir()
	weights := all(vector("x", snug.ViewOf([]float32{1})))
	require.ErrorIs(t, SaveWeights(filepath.Join(dir, "none", "weights"), weights, nil), os.ErrNotExist)
	folder := filepath.Join(dir, "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.ErrorIs(t, SaveWeights(folder, weights, nil), snug.ErrConfig)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Error(t, SaveWeights(filepath.Join(file, "weights"), weights, nil))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

// weightsProperty writes tensors and reads them as every type.
func weightsProperty(t *rapid.T) {
	values := map[string][]float32{}
	var tensors []saved
	for range rapid.IntRange(0, 5).Draw(t, "tensors") {
		name := rapid.String().Draw(t, "name")
		if _, taken := values[name]; taken || name == "__metadata__" {
			continue
		}
		shape := rapid.SliceOfN(rapid.IntRange(0, 9), 0, 3).Draw(t, "shape")
		x := make([]float32, Tensor{Shape: shape}.Len())
		for i := range x {
			x[i] = math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		}
		to := rapid.SampledFrom(floats).Draw(t, "type")
		values[name] = roundAll(to, x)
		tensors = append(tensors, saved{Tensor{Name: name, DType: fileType(to), Shape: shape}, snug.ViewOf(x)})
	}
	metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
	var b bytes.Buffer
	_, err := WriteWeights(&b, all(tensors...), metadata)
	require.NoError(t, err)
	w := weightsOf(t, b.Bytes())
	require.Equal(t, metadata, w.Metadata())
	require.Len(t, w.Tensors(), len(tensors))
	for _, tensor := range tensors {
		found, _ := w.Tensor(tensor.Name)
		require.Equal(t, fmt.Sprint(tensor.Tensor), fmt.Sprint(found))
		for _, to := range floats {
			v, _, err := snug.MakeView(snug.CPU(), to, found.Len())
			require.NoError(t, err)
			require.NoError(t, w.Load(tensor.Name, v))
			got := make([]float32, v.Len())
			half.Load(got, v, 0)
			requireSame(t, roundAll(to, values[tensor.Name]), got)
		}
	}
}

//check:in tiers
func TestWeightsProperty(t *testing.T) { rapid.Check(t, weightsProperty) }
func FuzzWeights(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(weightsProperty)) }

// writtenWith is written with metadata.
func writtenWith(t require.TestingT, metadata map[string]string, tensors ...saved) []byte {
	var b bytes.Buffer
	_, err := WriteWeights(&b, all(tensors...), metadata)
	require.NoError(t, err)
	return b.Bytes()
}

// FuzzOpenWeights reads any bytes. A file that is accepted has its tensors one
// after the other; what can be loaded is written again, and is the same.
func FuzzOpenWeights(f *testing.F) {
	for _, name := range []string{"floats", "halves", "types"} {
		b, err := os.ReadFile(golden(name + ".safetensors"))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(written(f))
	f.Add(written(f, vector("x", snug.ViewOf([]float32{1, 2, 3}))))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := NewWeights(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			return
		}
		size, loadable := int64(0), true
		for _, tensor := range w.Tensors() {
			size += tensor.Bytes()
			loadable = loadable && tensor.ElementType() != 0
		}
		require.LessOrEqual(t, size, int64(len(b)))
		var raw []saved
		for _, tensor := range w.Tensors() {
			data := make([]byte, tensor.Bytes())
			require.NoError(t, w.ReadBytes(tensor.Name, 0, data))
			raw = append(raw, saved{tensor, snug.SliceView(data)})
		}
		copied := writtenWith(t, w.Metadata(), raw...)
		require.ElementsMatch(t, w.Tensors(), weightsOf(t, copied).Tensors())
		if !loadable {
			return
		}
		tensors := loaded(t, w)
		var once bytes.Buffer
		_, err = WriteWeights(&once, all(tensors...), w.Metadata())
		require.NoError(t, err)
		again := weightsOf(t, once.Bytes())
		require.Equal(t, w.Metadata(), again.Metadata())
		require.Len(t, again.Tensors(), len(tensors))
		for _, tensor := range tensors {
			found, _ := again.Tensor(tensor.Name)
			require.Equal(t, tensor.Tensor, found)
			v, _, err := snug.MakeView(snug.CPU(), found.ElementType(), found.Len())
			require.NoError(t, err)
			require.NoError(t, again.Load(found.Name, v))
			require.Equal(t, device.Mem(&tensor.view).Bytes(), device.Mem(&v).Bytes())
		}
		var twice bytes.Buffer
		_, err = WriteWeights(&twice, all(loaded(t, again)...), again.Metadata())
		require.NoError(t, err)
		require.Equal(t, once.Bytes(), twice.Bytes())
		require.Equal(t, once.Bytes(), copied)
	})
}
