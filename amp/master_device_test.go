package amp

import (
	"bytes"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// eachDevice runs test on every device that is not the CPU.
func eachDevice(t *testing.T, test func(t *testing.T, p kerneltest.Backend)) {
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) { test(t, p) })
	}
}

// halve multiplies masters by one half where they lie.
func halve(_ int, w snug.View) error {
	none, err := w.Slice(0, 0)
	if err != nil {
		return err
	}
	return MatMul(w, none, none, MatMulOptions{M: 1, N: w.Len(), Into: snug.Into{Beta: 0.5}})
}

func TestMasterOnDevice(t *testing.T) {
	eachDevice(t, func(t *testing.T, p kerneltest.Backend) {
		for _, n := range []int{0, 1, 25} {
			start := kerneltest.Uniform(5, n)
			want := make([]float32, n)
			for i := range start {
				want[i] = start[i] / 2
			}
			m := newMaster(t, MasterOptions{Chunk: 10, Device: p.Dev})
			require.NoError(t, m.Add("w", n, fillWith(start)))
			require.Equal(t, int64(4*n), m.Bytes())
			param := kerneltest.PutFloats(t, p, snug.BF16, make([]float32, n))
			require.NoError(t, m.Copy("w", param.View))
			require.Equal(t, roundAll(snug.BF16, start), param.Get())
			steps := 0
			require.NoError(t, m.Update("w", param.View, func(lo int, w snug.View) error {
				steps++
				require.Zero(t, lo)
				require.Equal(t, n, w.Len())
				require.Same(t, p.Dev, w.Device())
				return halve(lo, w)
			}))
			require.Equal(t, min(n, 1), steps, "a parameter is one chunk")
			require.Equal(t, roundAll(snug.BF16, want), param.Get())

			saved, err := m.AppendBinary(nil)
			require.NoError(t, err)
			onHost := newMaster(t, MasterOptions{Chunk: 4})
			require.NoError(t, onHost.Add("w", n, nil))
			require.NoError(t, onHost.UnmarshalBinary(saved))
			require.Equal(t, want, weights(t, onHost, "w", n), "saved on %s, restored on the cpu", p.Name)
			back := newMaster(t, MasterOptions{Chunk: 7, Device: p.Dev})
			require.NoError(t, back.Add("w", n, nil))
			_, err = back.ReadFrom(bytes.NewReader(saved))
			require.NoError(t, err)
			again, err := back.AppendBinary(nil)
			require.NoError(t, err)
			require.Equal(t, saved, again)
			require.NoError(t, m.Close())
			require.Zero(t, m.Bytes())
			require.NoError(t, back.Close())
		}
	})
}

// TestMasterOnDeviceFrees checks that what fails, and Close, leave no memory
// behind.
func TestMasterOnDeviceFrees(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	used := func() int64 { return usedOf(t, dev) }
	m := newMaster(t, MasterOptions{Chunk: 10, Device: dev})
	require.ErrorIs(t, m.Add("w", 30, func(lo int, _ []float32) error {
		if lo == 20 {
			return errBroken
		}
		return nil
	}), errBroken)
	require.Zero(t, used())
	require.ErrorIs(t, m.Add("w", kerneltest.Total/4+1, fillWith(nil)), snug.ErrNoMemory)
	require.NoError(t, m.Add("v", 30, fillWith(kerneltest.Uniform(1, 30))))
	require.NoError(t, m.Add("w", 30, fillWith(kerneltest.Uniform(1, 30))))
	require.NotZero(t, used())
	saved, err := m.AppendBinary(nil)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.Zero(t, used())
	saved[len(saved)-1]++
	for _, name := range []string{"v", "w"} {
		require.NoError(t, m.Add(name, 30, nil))
	}
	_, err = m.ReadFrom(bytes.NewReader(saved))
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.NoError(t, m.Close())
	require.Zero(t, used())
}

func TestMasterOnDeviceErrors(t *testing.T) {
	backends := kerneltest.Backends(t)
	_, err := NewMaster(MasterOptions{Device: backends[2].Dev, Storage: newDiary()})
	require.ErrorIs(t, err, snug.ErrConfig)
	m := newMaster(t, MasterOptions{Device: backends[2].Dev})
	require.NoError(t, m.Add("w", 3, fillWith(make([]float32, 3))))
	require.ErrorIs(t, m.Copy("w", snug.ViewOf(make([]float32, 3))), snug.ErrDevice, "elsewhere")
	param := kerneltest.PutFloats(t, backends[2], snug.F16, make([]float32, 3))
	require.ErrorIs(t, m.Update("w", param.View, func(int, snug.View) error { return errBroken }), errBroken)
}
