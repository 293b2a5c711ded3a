package amp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestSaveWeightsWithFailingCalls: whichever call of the file system fails, once or with
// all that follow, and whatever a power cut then leaves, the file is the old one or the new
// one, and nothing else is left if the calls that clean up succeed.
func TestSaveWeightsWithFailingCalls(t *testing.T) {
	before := written(t, vector("x", snug.ViewOf([]float32{1, 2, 3})))
	tensors := []saved{vector("x", snug.ViewOf([]float32{4, 5})), vector("y", snug.ViewOf(make([]snug.Float16, 100)))}
	after := written(t, tensors...)
	for _, stop := range []bool{false, true} {
		failed := 0
		for k := 1; ; k++ {
			dir := filestest.New()
			dir.SetBytes("w", before)
			dir.FailCall(k, stop, syscall.EIO)
			err := saveWeights(dir, "w", all(tensors...), nil)
			dir.FailCall(0, false, nil)
			if err == nil {
				require.Equal(t, after, dir.Bytes("w"))
				break
			}
			failed++
			require.ErrorIs(t, err, syscall.EIO)
			require.Contains(t, [][]byte{before, after}, dir.Bytes("w"), "call %d", k)
			if !stop {
				require.Equal(t, []string{"w"}, dir.Names(), "call %d", k)
			}
			for seed := range uint64(5) {
				survivor := dir.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
				require.Contains(t, [][]byte{before, after}, survivor.Bytes("w"), "call %d, then the power", k)
			}
		}
		require.Greater(t, failed, 7)
	}
}

// panics is a reader, a writer and a walker that panic at the n-th call.
type panics struct {
	n int
	r io.ReaderAt
}

func (p *panics) call() {
	if p.n--; p.n == 0 {
		panic("callback")
	}
}

func (p *panics) ReadAt(b []byte, off int64) (int, error) {
	p.call()
	return p.r.ReadAt(b, off)
}

func (p *panics) Write(b []byte) (int, error) {
	p.call()
	return len(b), nil
}

// TestPanicsOfCallbacksOfWeights: a panic in what the caller hands in reaches the caller,
// no file is left, and later calls work.
//
//check:in race
func TestPanicsOfCallbacksOfWeights(t *testing.T) {
	x := vector("x", snug.ViewOf(kerneltest.Uniform(1, 2*staged)))
	y := vector("y", snug.ViewOf(make([]snug.BFloat16, 3)))
	x.DType = "BF16"
	file := written(t, x, y)
	for n := 1; n <= 4; n++ {
		require.PanicsWithValue(t, "callback", func() { _, _ = WriteWeights(&panics{n: n}, all(x, y), nil) })
	}
	dir := t.TempDir()
	require.PanicsWithValue(t, "callback", func() {
		_ = SaveWeights(filepath.Join(dir, "w"), func(yield func(Tensor, snug.View) bool) {
			yield(x.Tensor, x.view)
			panic("callback")
		}, nil)
	})
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	size := int64(len(file))
	for n := 1; n <= 2; n++ {
		require.PanicsWithValue(t, "callback", func() { _, _ = NewWeights(&panics{n, bytes.NewReader(file)}, size) })
	}
	dst := snug.ViewOf(make([]float32, 2*staged))
	for n := 3; n <= 4; n++ {
		p := &panics{n, bytes.NewReader(file)}
		w, err := NewWeights(p, size)
		require.NoError(t, err)
		params := func(yield func(string, snug.View) bool) { yield("x", dst) }
		require.PanicsWithValue(t, "callback", func() { _ = w.Load("x", dst); _ = w.Load("x", dst) })
		require.NoError(t, w.LoadAll(params))
		p.n = 1
		require.PanicsWithValue(t, "callback", func() { _ = w.ReadBytes("x", 0, make([]byte, 1)) })
		p.n = 1
		require.PanicsWithValue(t, "callback", func() { _ = w.LoadAll(params) })
		require.PanicsWithValue(t, "callback", func() { _ = w.LoadAll(func(func(string, snug.View) bool) { panic("callback") }) })
		require.NoError(t, w.Load("x", dst))
	}
}

// TestNilWeights: nil and zero values are empty files.
func TestNilWeights(t *testing.T) {
	for _, w := range []*Weights{nil, {}} {
		require.Empty(t, w.Tensors())
		require.Nil(t, w.Metadata())
		_, found := w.Tensor("x")
		require.False(t, found)
		dst := snug.ViewOf(make([]float32, 1))
		require.ErrorIs(t, w.Load("x", dst), snug.ErrConfig)
		require.ErrorIs(t, w.LoadAt("x", 0, dst), snug.ErrConfig)
		require.ErrorIs(t, w.ReadBytes("x", 0, nil), snug.ErrConfig)
		require.ErrorIs(t, w.LoadAll(func(yield func(string, snug.View) bool) { yield("x", dst) }), snug.ErrConfig)
		require.ErrorIs(t, w.LoadAll(nil), snug.ErrConfig)
		require.NoError(t, w.Close())
	}
	for _, size := range []int64{-1, 0, 7, 1 << 62} {
		_, err := NewWeights(bytes.NewReader(nil), size)
		require.ErrorIs(t, err, snug.ErrCorrupt)
	}
}
