package amp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

func golden(name string) string { return filepath.Join("testdata", "safetensors", name) }

// openGolden opens a file that the reference implementation wrote.
func openGolden(t testing.TB, name string) *Weights {
	w, err := OpenWeights(golden(name))
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func readJSON(t testing.TB, name string, v any) {
	text, err := os.ReadFile(golden(name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, v))
}

// saved is a tensor to write.
type saved struct {
	Tensor
	view snug.View
}

func all(tensors ...saved) iter.Seq2[Tensor, snug.View] {
	return func(yield func(Tensor, snug.View) bool) {
		for _, t := range tensors {
			if !yield(t.Tensor, t.view) {
				return
			}
		}
	}
}

// vector is a tensor of one dimension, in the type of its view.
func vector(name string, v snug.View) saved {
	return saved{Tensor{Name: name, Shape: []int{v.Len()}}, v}
}

// written returns the file of tensors.
func written(t require.TestingT, tensors ...saved) []byte {
	var b bytes.Buffer
	n, err := WriteWeights(&b, all(tensors...), nil)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), n)
	return b.Bytes()
}

func weightsOf(t require.TestingT, file []byte) *Weights {
	w, err := NewWeights(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	return w
}

// TestLoadGolden has the tensors of the reference implementation and torch's
// conversions of them.
//
//check:in tiers arm64 arm64-go
func TestLoadGolden(t *testing.T) {
	type conversions struct {
		Name           string
		F32, F16, BF16 []uint32
	}
	var want []conversions
	readJSON(t, "floats.json", &want)
	w := openGolden(t, "floats.safetensors")
	require.Len(t, w.Tensors(), len(want))
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, c := range want {
			for to, codes := range map[snug.DType][]uint32{snug.F32: c.F32, snug.F16: c.F16, snug.BF16: c.BF16} {
				x := make([]float32, len(codes))
				for i, code := range codes {
					x[i] = math.Float32frombits(code)
				}
				dst := kerneltest.PutFloats(t, p, to, make([]float32, len(x)))
				require.NoError(t, w.Load(c.Name, dst.View))
				requireSame(t, x, dst.Get(), c.Name, to)
			}
		}
	})
}

func TestTensorsOfTheFile(t *testing.T) {
	w := openGolden(t, "types.safetensors")
	var want []Tensor
	readJSON(t, "types.json", &want)
	require.Equal(t, want, w.Tensors())
	require.Nil(t, w.Metadata())
	for _, tensor := range want {
		loads := map[string]snug.DType{"F8_E4M3": snug.F8E4M3, "F8_E5M2": snug.F8E5M2}[tensor.DType]
		require.Equal(t, loads, tensor.ElementType())
		got, found := w.Tensor(tensor.Name)
		require.True(t, found)
		require.Equal(t, tensor, got)
		x := []float32{5, 5, 5, 5, 5, 5}
		if loads != 0 {
			require.NoError(t, w.Load(tensor.Name, snug.ViewOf(x)))
			continue
		}
		require.ErrorIs(t, w.Load(tensor.Name, snug.ViewOf(x)), snug.ErrDType)
		require.Equal(t, []float32{5, 5, 5, 5, 5, 5}, x)
	}
	_, found := w.Tensor("none")
	require.False(t, found)

	w = openGolden(t, "floats.safetensors")
	require.Equal(t, map[string]string{"format": "pt"}, w.Metadata())
	for name, dt := range map[string]snug.DType{"F32.matrix": snug.F32, "F16.matrix": snug.F16, "BF16.matrix": snug.BF16} {
		t.Run(name, func(t *testing.T) {
			tensor, found := w.Tensor(name)
			require.True(t, found)
			require.Equal(t, dt, tensor.ElementType())
			require.Equal(t, []int{3, 5}, tensor.Shape)
			require.Equal(t, 15, tensor.Len())
			require.Equal(t, int64(15*dt.Size()), tensor.Bytes())
		})
	}
	require.Equal(t, int64(6), Tensor{DType: "F4", Shape: []int{3, 4}}.Bytes())
	require.Equal(t, int64(0), Tensor{DType: "f32"}.Bytes())
}

// TestLoadInPieces has tensors longer than what is staged at a time.
func TestLoadInPieces(t *testing.T) {
	const n = staged + 5
	vals := append(append([]float32(nil), special...), kerneltest.Uniform(1, n-len(special))...)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, from := range floats {
			src := kerneltest.PutFloats(t, p, from, vals)
			w := weightsOf(t, written(t, vector("before", snug.ViewOf(vals[:3])), vector("x", src.View)))
			for _, to := range floats {
				for _, skip := range skips {
					dst := kerneltest.PutFloats(t, p, to, make([]float32, skip+n))
					require.NoError(t, w.Load("x", kerneltest.After(t, dst.View, skip)))
					want := append(make([]float32, skip), roundAll(to, roundAll(from, vals))...)
					requireSame(t, want, dst.Get(), from, to, skip)
				}
				dst := kerneltest.PutFloats(t, p, to, make([]float32, 100))
				require.NoError(t, w.LoadAt("x", staged-95, dst.View))
				requireSame(t, roundAll(to, roundAll(from, vals[staged-95:])), dst.Get(), from, to)
			}
		}
	})
}

// TestReadBytes reads tensors of every type in pieces, as they are in the file.
func TestReadBytes(t *testing.T) {
	for _, name := range []string{"types.safetensors", "floats.safetensors", "halves.safetensors"} {
		file, err := os.ReadFile(golden(name))
		require.NoError(t, err)
		w := openGolden(t, name)
		end := len(file)
		for _, tensor := range slices.Backward(w.Tensors()) {
			size := int(tensor.Bytes())
			want := file[end-size : end]
			end -= size
			for _, piece := range []int{1, 3, max(1, size)} {
				got := bytes.Repeat([]byte{0xa5}, size+2)
				for lo := 0; lo < size; lo += piece {
					require.NoError(t, w.ReadBytes(tensor.Name, int64(lo), got[1+lo:1+min(lo+piece, size)]))
				}
				require.Equal(t, want, got[1:1+size], tensor.Name)
				require.Equal(t, []byte{0xa5, 0xa5}, []byte{got[0], got[1+size]})
			}
			require.NoError(t, w.ReadBytes(tensor.Name, int64(size), nil))
			for _, bad := range []struct {
				lo int64
				n  int
			}{{0, size + 1}, {1, size}, {-1, 1}, {-1, 0}, {int64(size) + 1, 0}, {math.MaxInt64, 1}, {math.MinInt64, 1}, {math.MaxInt64, 0}} {
				dst := bytes.Repeat([]byte{0xa5}, bad.n)
				require.ErrorIs(t, w.ReadBytes(tensor.Name, bad.lo, dst), snug.ErrShape, "%+v", bad)
				require.Equal(t, bytes.Repeat([]byte{0xa5}, bad.n), dst)
			}
		}
		require.ErrorIs(t, w.ReadBytes("none", 0, make([]byte, 1)), snug.ErrConfig)
		require.NoError(t, w.Close())
	}
	file := written(t, vector("x", snug.ViewOf([]float32{1, 2})))
	w, err := NewWeights(bytes.NewReader(file[:len(file)-3]), int64(len(file)))
	require.NoError(t, err)
	require.NoError(t, w.ReadBytes("x", 0, make([]byte, 5)))
	require.ErrorIs(t, w.ReadBytes("x", 0, make([]byte, 6)), snug.ErrCorrupt)
	dst := make([]byte, 4)
	require.Zero(t, testing.AllocsPerRun(10, func() { err = errors.Join(err, w.ReadBytes("x", 1, dst)) }))
	require.NoError(t, err)
}

// TestLoadLarge has results that go around the caches.
func TestLoadLarge(t *testing.T) {
	const n = half.StreamBytes/2 + 5
	src, want, got := make([]float32, n), make([]snug.BFloat16, n), make([]snug.BFloat16, n)
	for i := range src {
		src[i] = float32(i&0xfffff) * 0.37
	}
	require.NoError(t, Cast(want, src))
	w := weightsOf(t, written(t, vector("x", snug.ViewOf(src))))
	kerneltest.WithProcs(func(int) {
		clear(got)
		require.NoError(t, w.Load("x", snug.ViewOf(got)))
		require.True(t, slices.Equal(want, got))
	})
}

func TestLoadKeepsCodes(t *testing.T) {
	codes := make([]snug.BFloat16, 1<<16)
	for i := range codes {
		codes[i] = snug.BFloat16(i)
	}
	w := weightsOf(t, written(t, vector("x", snug.ViewOf(codes))))
	got := make([]snug.BFloat16, len(codes))
	require.NoError(t, w.Load("x", snug.ViewOf(got)))
	require.Equal(t, codes, got, "NaNs, too")
}

func TestLoadErrors(t *testing.T) {
	whole := []float32{5, 5, 5, 5}
	dst := snug.ViewOf(whole[:3])
	var file bytes.Buffer
	_, err := WriteWeights(&file, all(vector("x", snug.ViewOf([]float32{1, 2, 3}))), nil)
	require.NoError(t, err)
	w := weightsOf(t, file.Bytes())
	tests := []struct {
		name, tensor string
		lo           int
		dst          snug.View
		want         error
	}{
		{"name", "y", 0, dst, snug.ErrConfig},
		{"dst type", "x", 0, snug.SliceView(make([]uint8, 3)), snug.ErrDType},
		{"zero view", "x", 0, snug.View{}, snug.ErrDType},
		{"long", "x", 0, snug.ViewOf(whole), snug.ErrShape},
		{"device", "x", 0, kerneltest.Closed(t, snug.F16, 3), snug.ErrDevice},
		{"before", "x", -1, dst, snug.ErrShape},
		{"after", "x", 1, dst, snug.ErrShape},
		{"far after", "x", math.MaxInt, dst, snug.ErrShape},
	}
	for _, test := range tests {
		err := w.LoadAt(test.tensor, test.lo, test.dst)
		require.ErrorIs(t, err, test.want, test.name)
		require.ErrorContains(t, err, fmt.Sprintf("amp: LoadAt: tensor %q: ", test.tensor), test.name)
		if test.lo == 0 {
			require.ErrorIs(t, w.Load(test.tensor, test.dst), test.want, test.name)
		}
		require.Equal(t, []float32{5, 5, 5, 5}, whole)
	}
	require.ErrorIs(t, w.Load("x", snug.ViewOf(whole[:2])), snug.ErrShape, "a part must be asked for")
	require.NoError(t, w.LoadAt("x", 3, snug.ViewOf(whole[:0])))
	require.NoError(t, w.LoadAt("x", 1, snug.ViewOf(whole[:2])))
	require.Equal(t, []float32{2, 3, 5, 5}, whole)
	require.NoError(t, w.Close())
	require.NoError(t, w.Load("x", dst), "the reader is the caller's")
}

// failingReader fails from some offset on.
type failingReader struct {
	io.ReaderAt
	from int64
	err  error
}

func (f failingReader) ReadAt(b []byte, offset int64) (int, error) {
	if offset+int64(len(b)) <= f.from {
		return f.ReaderAt.ReadAt(b, offset)
	}
	return 0, f.err
}

func TestLoadFromABrokenFile(t *testing.T) {
	x := kerneltest.Uniform(1, 3*staged)
	file := written(t, vector("x", snug.ViewOf(x)))
	broken := errors.New("broken")
	for want, err := range map[error]error{snug.ErrCorrupt: io.EOF, broken: broken} {
		w, e := NewWeights(failingReader{bytes.NewReader(file), int64(len(file)) - 10, err}, int64(len(file)))
		require.NoError(t, e)
		kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
			for _, dt := range floats {
				dst := kerneltest.PutFloats(t, p, dt, make([]float32, len(x)))
				err := w.Load("x", dst.View)
				require.ErrorIs(t, err, want)
				require.Equal(t, want == snug.ErrCorrupt, errors.Is(err, snug.ErrCorrupt))
				require.ErrorIs(t, w.LoadAll(kerneltest.Walk(kerneltest.Named{Name: "x", View: dst.View})), want)
			}
		})
	}
	_, err := NewWeights(nil, 100)
	require.ErrorIs(t, err, snug.ErrConfig)
	none := new(Weights)
	require.Empty(t, none.Tensors())
	require.ErrorIs(t, none.Load("x", snug.ViewOf(x)), snug.ErrConfig)
	require.NoError(t, none.Close())
	_, err = NewWeights(bytes.NewReader(file), int64(len(file))-1)
	require.ErrorIs(t, err, snug.ErrCorrupt)
}

func TestOpenWeightsErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenWeights(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenWeights(dir)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "has neither model.safetensors nor model.safetensors.index.json")

	path := filepath.Join(dir, "weights")
	require.NoError(t, os.WriteFile(path, []byte("not weights"), 0o600))
	_, err = OpenWeights(path)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, path)

	x := kerneltest.Uniform(1, 100)
	file := written(t, vector("x", snug.ViewOf(x)))
	require.NoError(t, os.WriteFile(path, file, 0o600))
	w, err := OpenWeights(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, int64(len(file))-1))
	require.ErrorIs(t, w.Load("x", snug.ViewOf(x)), snug.ErrCorrupt, "it became shorter")
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Load("x", snug.ViewOf(x)), os.ErrClosed)
	require.ErrorIs(t, w.Close(), os.ErrClosed)

	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		return // who may read all
	}
	require.NoError(t, os.Chmod(path, 0))
	_, err = OpenWeights(path)
	require.ErrorIs(t, err, fs.ErrPermission)
}

func TestLoadAll(t *testing.T) {
	x, y := kerneltest.Uniform(1, 7), kerneltest.Uniform(2, 5)
	// The header's order of a and b is that of their names, so loads are sorted.
	w := weightsOf(t, written(t, vector("b", snug.ViewOf(x)), vector("a", snug.ViewOf(y)), vector("c", snug.ViewOf(x[:1]))))
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		b, a := kerneltest.PutFloats(t, p, snug.F16, make([]float32, 7)), kerneltest.PutFloats(t, p, snug.F32, make([]float32, 5))
		tied := kerneltest.PutFloats(t, p, snug.BF16, make([]float32, 5))
		require.NoError(t, w.LoadAll(kerneltest.Once(kerneltest.Named{Name: "b", View: b.View}, kerneltest.Named{Name: "a", View: a.View}, kerneltest.Named{Name: "a", View: tied.View})))
		requireSame(t, roundAll(snug.F16, x), b.Get())
		requireSame(t, y, a.Get())
		requireSame(t, roundAll(snug.BF16, y), tied.Get())
	})

	require.ErrorIs(t, w.LoadAll(nil), snug.ErrConfig)
	dst := []float32{5, 5, 5, 5, 5}
	good := kerneltest.Slice("a", dst)
	for name, test := range map[string]struct {
		bad  kerneltest.Named
		want error
		text string
	}{
		"name":   {kerneltest.Slice("d", dst), snug.ErrConfig, `the file lacks 1 of 2 tensors, the first are ["d"]`},
		"type":   {kerneltest.Named{Name: "b", View: snug.SliceView(make([]int32, 7))}, snug.ErrDType, `tensor "b"`},
		"length": {kerneltest.Slice("b", dst), snug.ErrShape, `tensor "b": dst has 5 elements, want 7`},
		"device": {kerneltest.Named{Name: "b", View: kerneltest.Closed(t, snug.F32, 7)}, snug.ErrDevice, `tensor "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := w.LoadAll(kerneltest.Walk(good, test.bad))
			require.ErrorIs(t, err, test.want, name)
			require.ErrorContains(t, err, "amp: LoadAll: "+test.text)
			require.Equal(t, []float32{5, 5, 5, 5, 5}, dst, name)
		})
	}
	var many []kerneltest.Named
	for i := range 9 {
		many = append(many, kerneltest.Slice(fmt.Sprint(i), dst))
	}
	require.ErrorContains(t, w.LoadAll(kerneltest.Walk(many...)), `the file lacks 9 of 9 tensors, the first are ["0" "1" "2" "3" "4"]`)
}

// reads notes the offsets that are read.
type reads struct {
	io.ReaderAt
	offsets []int64
}

func (r *reads) ReadAt(b []byte, offset int64) (int, error) {
	r.offsets = append(r.offsets, offset)
	return r.ReaderAt.ReadAt(b, offset)
}

func TestLoadAllReadsInTheOrderOfTheFile(t *testing.T) {
	var tensors []saved
	var params []kerneltest.Named
	for _, name := range []string{"d", "a", "c", "b"} {
		tensors = append(tensors, vector(name, snug.ViewOf([]float32{1, 2})))
		params = append(params, kerneltest.Slice(name, make([]float32, 2)))
	}
	file := written(t, tensors...)
	r := &reads{ReaderAt: bytes.NewReader(file)}
	w, err := NewWeights(r, int64(len(file)))
	require.NoError(t, err)
	require.NoError(t, w.LoadAll(kerneltest.Walk(params...)))
	require.Len(t, r.offsets, 2+4)
	require.True(t, slices.IsSorted(r.offsets))
}

// TestMasterFromWeights loads masters chunk by chunk.
func TestMasterFromWeights(t *testing.T) {
	x := roundAll(snug.BF16, kerneltest.Uniform(1, 2500))
	brain := make([]snug.BFloat16, len(x))
	require.NoError(t, Cast(brain, x))
	w := weightsOf(t, written(t, vector("x", snug.ViewOf(brain))))
	m := newMaster(t, MasterOptions{Chunk: 1000})
	require.NoError(t, m.Add("x", len(x), func(lo int, chunk []float32) error {
		return w.LoadAt("x", lo, snug.ViewOf(chunk))
	}))
	got := make([]float32, len(x))
	require.NoError(t, m.Copy("x", snug.ViewOf(got)))
	require.Equal(t, x, got)
}

//check:in race
func TestLoadFromManyGoroutines(t *testing.T) {
	x := kerneltest.Uniform(1, 3000)
	w := weightsOf(t, written(t, vector("x", snug.ViewOf(x)), vector("y", snug.ViewOf(x[:7]))))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got := make([]snug.Float16, len(x))
			for range 10 {
				clear(got)
				if err := w.Load("x", snug.ViewOf(got)); err != nil || got[2999].Float32() != round(snug.F16, x[2999]) {
					t.Error(err, got[2999])
				}
			}
		})
	}
	wg.Wait()
}

// TestWeightsOnTheOtherByteOrder pretends that this machine has it: then what is
// read and written has the bytes of every element reversed.
func TestWeightsOnTheOtherByteOrder(t *testing.T) {
	x := kerneltest.Uniform(1, 100)
	reversed := make([]float32, len(x))
	halves := make([]snug.BFloat16, len(x))
	for i, v := range x {
		reversed[i] = math.Float32frombits(bits.ReverseBytes32(math.Float32bits(v)))
		halves[i] = snug.ToBFloat16(v)
	}
	file := written(t, vector("x", snug.ViewOf(x)), vector("halves", snug.ViewOf(halves)))
	w := weightsOf(t, file)

	bigEndian = !bigEndian
	defer func() { bigEndian = !bigEndian }()
	require.NotEqual(t, file, written(t, vector("x", snug.ViewOf(x)), vector("halves", snug.ViewOf(halves))))
	for _, dt := range floats {
		dst := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, make([]float32, len(x)))
		require.NoError(t, w.Load("x", dst.View))
		requireSame(t, roundAll(dt, reversed), dst.Get())
	}
	got := make([]snug.BFloat16, len(x))
	require.NoError(t, w.Load("halves", snug.ViewOf(got)))
	for i := range got {
		require.Equal(t, bits.ReverseBytes16(uint16(halves[i])), uint16(got[i]))
	}
	w = weightsOf(t, written(t, vector("x", snug.ViewOf(x)), vector("halves", snug.ViewOf(halves))))
	again := make([]float32, len(x))
	require.NoError(t, w.Load("x", snug.ViewOf(again)))
	require.Equal(t, x, again)
	require.NoError(t, w.Load("halves", snug.ViewOf(got)))
	require.Equal(t, halves, got)
}
