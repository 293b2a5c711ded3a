package gguf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func TestVerify(t *testing.T) {
	var none *File
	_, err := none.Verify()
	require.ErrorIs(t, err, snug.ErrConfig)

	f, err := Open("testdata/golden.gguf")
	require.NoError(t, err)
	defer f.Close()
	decoded, err := f.Verify()
	require.NoError(t, err)
	require.Positive(t, decoded)

	// A scale that is not finite, in the second block of the third row.
	for name, c := range map[string]struct {
		kind  Type
		at    int64
		bytes []byte
		want  string
	}{
		"q8_0 infinite": {Q8_0, 34 * 5, []byte{0, 0x7c}, "w: element 160 of q8_0 is "},
		"q4_k NaN":      {Q4_K, 144*2 + 1, []byte{0x7e}, "w: element 512 of q4_k is NaN"},
		"f32 infinite":  {F32, 4 * 700, []byte{0, 0, 0x80, 0x7f}, "w: element 700 of f32 is +Inf"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			w, err := Create(path, nil, []Tensor{{Name: "w", Type: c.kind, Shape: []int{4, 256}}})
			require.NoError(t, err)
			values := make([]float32, 4*256)
			for i := range values {
				values[i] = float32(i%7) - 3
			}
			size, err := c.kind.Bytes(len(values))
			require.NoError(t, err)
			b := make([]byte, size)
			require.NoError(t, c.kind.Encode(b, values))
			require.NoError(t, w.Write("w", b))
			require.NoError(t, w.Close())
			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			start := int64(len(whole)) - size
			for start%32 != 0 {
				start--
			}
			copy(whole[start+c.at:], c.bytes)
			require.NoError(t, os.WriteFile(path, whole, 0o600))
			f, err := Open(path)
			require.NoError(t, err)
			defer f.Close()
			_, err = f.Verify()
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, c.want)
		})
	}
}
