package qlora

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

var (
	formats    = []Type{NF4, FP4}
	floatTypes = []snug.DType{snug.F32, snug.F16, snug.BF16}
)

func onCPU(backend kerneltest.Backend) bool { return backend.Dev == nil || backend.Dev.IsCPU() }

// sameBits fails the test when two vectors differ in any bit.
func sameBits(t require.TestingT, want, got []float32) {
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "bits differ", "element %d is %g (%#x), want %g (%#x)",
				i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// encoded are bytes in base64.
type encoded string

func (e encoded) bytes(t testing.TB) []byte {
	b, err := base64.StdEncoding.DecodeString(string(e))
	require.NoError(t, err)
	return b
}

// floats returns the elements of a vector of type dt.
func (e encoded) floats(t testing.TB, dt snug.DType) []float32 {
	b := e.bytes(t)
	x := make([]float32, len(b)/dt.Size())
	for i := range x {
		switch dt {
		case snug.F32:
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case snug.F16:
			x[i] = half.F16ToFloat32(snug.Float16(binary.LittleEndian.Uint16(b[2*i:])))
		case snug.BF16:
			x[i] = snug.BFloat16(binary.LittleEndian.Uint16(b[2*i:])).Float32()
		}
	}
	return x
}

// golden reads a file of testdata/bitsandbytes.
func golden[T any](t testing.TB, name string) (rows []T) {
	b, err := os.ReadFile("testdata/bitsandbytes/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &rows))
	require.NotEmpty(t, rows)
	return rows
}

func parse(t testing.TB, kind, dtype string) (Type, snug.DType) {
	format, err := ParseType(kind)
	require.NoError(t, err)
	dt, err := snug.ParseDType(dtype)
	require.NoError(t, err)
	return format, dt
}
