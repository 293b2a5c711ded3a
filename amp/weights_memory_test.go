package amp

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/stretchr/testify/require"
)

// sparseFile makes a file with one tensor of n zeros.
func sparseFile(t testing.TB, dtype string, n int) string {
	h, err := safetensors.New([]safetensors.Tensor{{Name: "x", DType: dtype, Shape: []int{n}}}, nil)
	require.NoError(t, err)
	prefix, err := h.Bytes()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "weights")
	require.NoError(t, os.WriteFile(path, prefix, 0o600))
	require.NoError(t, os.Truncate(path, int64(len(prefix))+h.Tensors[0].End))
	return path
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestMemoryOfWeights has a tensor of 64 MiB.
func TestMemoryOfWeights(t *testing.T) {
	const n, most = 64 << 20 / 4, 1 << 20
	path := sparseFile(t, "F32", n)
	brain, same := make([]snug.BFloat16, n), make([]float32, n)
	brain[n-1], same[n-1] = 1, 1
	bytes := allocated(func() {
		w, err := OpenWeights(path)
		require.NoError(t, err)
		require.NoError(t, w.Load("x", snug.ViewOf(brain)))
		require.NoError(t, w.Load("x", snug.ViewOf(same)))
		require.NoError(t, w.Close())
	})
	require.Less(t, bytes, uint64(most), "load")
	require.Zero(t, brain[n-1])
	require.Zero(t, same[n-1])
	bytes = allocated(func() {
		_, err := WriteWeights(io.Discard, all(
			saved{Tensor{Name: "x", DType: "F16", Shape: []int{n}}, snug.ViewOf(same)}, vector("y", snug.ViewOf(same)),
		), nil)
		require.NoError(t, err)
	})
	require.Less(t, bytes, uint64(most), "write")
}

func TestLoadAllocatesNothing(t *testing.T) {
	file := written(t, vector("x", snug.ViewOf(kerneltest.Uniform(1, 2*staged))))
	w := weightsOf(t, file)
	same, other := make([]float32, 2*staged), make([]snug.BFloat16, 2*staged)
	for _, dst := range []snug.View{snug.ViewOf(same), snug.ViewOf(other)} {
		var err error
		kerneltest.NoAllocs(t, func() { err = w.Load("x", dst) })
		require.NoError(t, err)
	}
}

// BenchmarkLoad compares loads with a plain read of the same bytes, from the
// system's cache.
func BenchmarkLoad(b *testing.B) {
	const size = 256 << 20
	plain := make([]byte, size)
	for _, from := range []string{"F32", "BF16"} {
		path := sparseFile(b, from, size/int(safetensors.Bits(from)/8))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(b, err)
		info, err := f.Stat()
		require.NoError(b, err)
		_, err = f.WriteAt(plain, info.Size()-size) // no holes
		require.NoError(b, err)
		b.Run(from+"/read", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				_, err := f.ReadAt(plain, info.Size()-size)
				require.NoError(b, err)
			}
		})
		require.NoError(b, f.Close())
		w, err := OpenWeights(path)
		require.NoError(b, err)
		for _, to := range floats {
			dst, _, err := snug.MakeView(snug.CPU(), to, w.Tensors()[0].Len())
			require.NoError(b, err)
			b.Run(fmt.Sprintf("%s/%s", from, to), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					require.NoError(b, w.Load("x", dst))
				}
			})
		}
		require.NoError(b, w.Close())
	}
}
