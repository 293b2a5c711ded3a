package qlora

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
)

// rowFile has the tensors of a weight "a.weight" of 2 outputs and 32 inputs in two groups: code i of output o is (i+3·o) mod 16.
type rowFile struct {
	Groups
	tensors map[string]safetensors.Tensor
	data    map[string][]byte
}

func makeRows() *rowFile {
	f := &rowFile{Groups: Groups{4, 16, Packed, false, false}, tensors: map[string]safetensors.Tensor{}, data: map[string][]byte{}}
	codes, scales := make([]byte, 32), []byte{}
	for i := range 64 {
		codes[i/2] |= byte(f.code(i/32, i%32)) << (4 * (i % 2))
	}
	for _, s := range []float32{1, 2, 4, 8} {
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(s))
	}
	f.set(packedCodes, "I32", codes, 2, 4)
	f.set(rowsScales, "F32", scales, 2, 2)
	f.set(rowsZeros, "I32", []byte{0x21, 0, 0, 0, 0x43, 0, 0, 0}, 1, 2) // of the groups: 1 and 3 of output 0, 2 and 4 of output 1
	f.set(packedShape, "I64", append(binary.LittleEndian.AppendUint64(nil, 2), binary.LittleEndian.AppendUint64(nil, 32)...), 2)
	return f
}

func (f *rowFile) code(o, i int) int { return (i + 3*o) % 16 }

func (f *rowFile) set(end, dtype string, data []byte, shape ...int) {
	f.tensors["a."+end], f.data["a."+end] = safetensors.Tensor{Name: "a." + end, DType: dtype, Shape: shape}, data
}

func (f *rowFile) load(t *testing.T) (*Weight, error) {
	var list []safetensors.Tensor
	for _, tensor := range f.tensors {
		list = append(list, tensor)
	}
	h, err := safetensors.New(list, nil)
	require.NoError(t, err)
	var file bytes.Buffer
	_, err = h.Write(&file, func(t *safetensors.Tensor, write func([]byte) error) error { return write(f.data[t.Name]) })
	require.NoError(t, err)
	w, err := NewWeights(bytes.NewReader(file.Bytes()), int64(file.Len()))
	require.NoError(t, err)
	require.NoError(t, w.SetGroups(f.Groups))
	require.Equal(t, []string{"a.weight"}, w.Names())
	return w.Load("a.weight", nil)
}

// TestGroupedRows: elements of compressed-tensors' layouts are those of the definition. Package transformer compares them with its software.
func TestGroupedRows(t *testing.T) {
	for name, change := range map[string]func(f *rowFile) (zero func(o, k int) int, group func(i int) int){
		"packed": func(*rowFile) (func(o, k int) int, func(i int) int) { return nil, nil },
		"symmetric": func(f *rowFile) (func(o, k int) int, func(i int) int) {
			delete(f.tensors, "a."+rowsZeros)
			return func(int, int) int { return 8 }, nil
		},
		"act order": func(f *rowFile) (func(o, k int) int, func(i int) int) {
			f.Ordered = true
			data := []byte{}
			for i := range 32 {
				data = binary.LittleEndian.AppendUint32(data, uint32(i%2))
			}
			f.set(rowsColumns, "I32", data, 32)
			return nil, func(i int) int { return i % 2 }
		},
		"int8": func(f *rowFile) (func(o, k int) int, func(i int) int) {
			f.Groups = Groups{8, 16, Integers, false, false}
			codes := make([]byte, 64)
			for i := range codes {
				codes[i] = byte(f.code(i/32, i%32) - 8)
			}
			delete(f.tensors, "a."+packedCodes)
			delete(f.tensors, "a."+packedShape)
			f.set("weight", "I8", codes, 2, 32)
			f.set(rowsZeros, "I8", []byte{0xF9, 0xFB, 0xFA, 0xFC}, 2, 2) // the same less 8
			return nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := makeRows()
			zero, group := change(f)
			if zero == nil {
				zero = func(o, k int) int { return 1 + o + 2*k }
			}
			if group == nil {
				group = func(i int) int { return i / 16 }
			}
			w, err := f.load(t)
			require.NoError(t, err)
			require.Equal(t, []int{2, 32}, w.Shape())
			got := make([]float32, 64)
			require.NoError(t, w.Dequantize(snug.ViewOf(got)))
			for o := range 2 {
				for i := range 32 {
					k := group(i)
					require.Equal(t, float32(f.code(o, i)-zero(o, k))*[]float32{1, 2, 4, 8}[2*o+k], got[o*32+i], "%d, %d", o, i)
				}
			}
			require.NoError(t, w.Close())
		})
	}
}

// TestGroupedRowsRefused: tensors that do not fit each other.
func TestGroupedRowsRefused(t *testing.T) {
	for want, change := range map[string]func(f *rowFile){
		`tensor "a.weight_shape" says 3 outputs and 32 inputs, and the codes are of 2 and 32`: func(f *rowFile) { f.data["a."+packedShape][0] = 3 },
		`tensor "a.weight_shape" is I64 [1 2], want I64 of [2]`:                               func(f *rowFile) { f.set(packedShape, "I64", f.data["a."+packedShape], 1, 2) },
		`the file has no tensor "a.weight_scale"`:                                             func(f *rowFile) { delete(f.tensors, "a."+rowsScales) },
		`tensor "a.weight_scale" is F32 [4 1], want F16, BF16 or F32 of [2 2]`:                func(f *rowFile) { f.set(rowsScales, "F32", f.data["a."+rowsScales], 4, 1) },
		`tensor "a.weight_scale": element 3 is NaN or infinite`: func(f *rowFile) {
			binary.LittleEndian.PutUint32(f.data["a."+rowsScales][12:], math.Float32bits(float32(math.Inf(1))))
		},
		`tensor "a.weight_zero_point" is I32 [2 1], want I32 of [1 2]`:       func(f *rowFile) { f.set(rowsZeros, "I32", f.data["a."+rowsZeros], 2, 1) },
		`the file has no tensor "a.weight_g_idx"`:                            func(f *rowFile) { f.Ordered = true },
		`tensor "a.weight_scale" is F32 [1], want F16, BF16 or F32 of [2 2]`: func(f *rowFile) { f.set(rowsScales, "F32", f.data["a."+rowsScales][:4], 1) },
		`the file has no tensor "a.weight_zero_point", and codes are not symmetric`: func(f *rowFile) {
			f.Zeroed = true
			delete(f.tensors, "a."+rowsZeros)
		},
		`tensor "a.weight_packed" is F32 [2 4], want I32`: func(f *rowFile) { f.set(packedCodes, "F32", f.data["a."+packedCodes], 2, 4) },
		"a weight of 4 outputs and 16 inputs, want a multiple of 32": func(f *rowFile) {
			delete(f.tensors, "a."+packedShape)
			f.set(packedCodes, "I32", f.data["a."+packedCodes], 4, 2)
		},
	} {
		t.Run(want, func(t *testing.T) {
			f := makeRows()
			change(f)
			_, err := f.load(t)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, want)
		})
	}
}
