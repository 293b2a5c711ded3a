package qlora

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// mxFile returns a file of one MXFP4 weight of experts, [experts, rows, in], and its elements.
func mxFile(t *testing.T, experts, rows, in int) (file []byte, elements []float32) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]float32, experts*rows*in)
	for i := range src {
		src[i] = float32(rng.NormFloat64()) * float32(1+i/in)
	}
	w, err := NewWeight(src, []int{experts, rows, in}, Options{Type: MXFP4})
	require.NoError(t, err)
	elements = make([]float32, len(src))
	require.NoError(t, w.Dequantize(snug.ViewOf(elements)))
	var b bytes.Buffer
	_, err = WriteWeights(&b, func(yield func(string, *Weight) bool) { yield("experts", w) }, nil)
	require.NoError(t, err)
	return b.Bytes(), elements
}

func TestLoadRows(t *testing.T) {
	const experts, rows, in = 3, 10, 96
	file, elements := mxFile(t, experts, rows, in)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		w, err := NewWeights(bytes.NewReader(file), int64(len(file)))
		require.NoError(t, err)
		dev := p.Dev
		if dev == nil {
			dev = snug.CPU()
		}
		for _, r := range []Rows{{0, 1, 30}, {10, 2, 5}, {11, 2, 5}, {29, 1, 1}, {29, 1 << 28, 1}, {0, 29, 2}, {20, 1, 10}} {
			x, err := w.LoadRows("experts", r, p.Dev)
			require.NoError(t, err, "%+v", r)
			require.Equal(t, []int{r.Count, in}, x.Shape())
			require.Equal(t, MXFP4, x.Type())
			got, free, err := snug.MakeView(dev, snug.F32, r.Count*in)
			require.NoError(t, err)
			require.NoError(t, x.Dequantize(got))
			host := make([]float32, r.Count*in)
			require.NoError(t, snug.Copy(host, got))
			for i := range r.Count {
				require.Equal(t, elements[(r.First+i*r.Step)*in:][:in], host[i*in:][:in], "%+v, row %d", r, i)
			}
			require.NoError(t, free())
			require.NoError(t, x.Close())
		}
	})
}

// TestLoadManyRows reads rows in several pieces.
func TestLoadManyRows(t *testing.T) {
	const rows, in = 3000, 1024
	file, elements := mxFile(t, 1, rows, in)
	w, err := NewWeights(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	x, err := w.LoadRows("experts", Rows{1, 3, 1000}, nil)
	require.NoError(t, err)
	got := make([]float32, 1000*in)
	require.NoError(t, x.Dequantize(snug.ViewOf(got)))
	for i := range 1000 {
		require.Equal(t, elements[(1+3*i)*in:][:in], got[i*in:][:in], i)
	}
}

func TestLoadRowsErrors(t *testing.T) {
	file, _ := mxFile(t, 2, 4, 32)
	w, err := NewWeights(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	for _, r := range []Rows{{}, {0, 1, 0}, {-1, 1, 1}, {8, 1, 1}, {0, 0, 1}, {0, 1, 9}, {7, 2, 2}, {0, 1, -1}, {0, int(^uint(0) >> 1), 2}} {
		_, err := w.LoadRows("experts", r, nil)
		require.ErrorIs(t, err, snug.ErrShape, "%+v", r)
		kerneltest.Error(t, "qlora.LoadRows", err)
	}
	_, err = w.LoadRows("other", Rows{0, 1, 1}, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	var none *Weights
	_, err = none.LoadRows("experts", Rows{0, 1, 1}, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	w, err = NewWeights(bytes.NewReader(file[:len(file)-1]), int64(len(file)))
	require.NoError(t, err)
	_, err = w.LoadRows("experts", Rows{7, 1, 1}, nil)
	require.Error(t, err)

	var b bytes.Buffer
	nf4, err := NewWeight(make([]float32, 64), []int{2, 32}, Options{})
	require.NoError(t, err)
	fp8, err := NewWeight(make([]float32, 64), []int{2, 32}, Options{Type: FP8})
	require.NoError(t, err)
	_, err = WriteWeights(&b, func(yield func(string, *Weight) bool) { _ = yield("nf4", nf4) && yield("fp8", fp8) }, nil)
	require.NoError(t, err)
	w, err = NewWeights(bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.NoError(t, err)
	_, err = w.LoadRows("nf4", Rows{0, 1, 1}, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, r := range []Rows{{0, 2, 1}, {1, 1, 2}, {-1, 1, 1}} {
		_, err = w.LoadRows("fp8", r, nil)
		require.ErrorIs(t, err, snug.ErrShape, r)
	}
}

// TestLoadRowsOfOctets: rows of a weight of 8 bits decode as they do in the whole weight, wherever they begin in a block of scales.
func TestLoadRowsOfOctets(t *testing.T) {
	const out, in = 300, 40
	values := make([]float32, out*in)
	for i := range values {
		values[i] = float32(i%37-18) * float32(1+i/in)
	}
	var b bytes.Buffer
	names := map[string]Options{"block": {Type: FP8}, "row": {Type: FP8, Scales: ByRow}, "tensor": {Type: FP8E5M2, Scales: ByTensor}, "weight": {Type: INT8}}
	_, err := WriteWeights(&b, func(yield func(string, *Weight) bool) {
		for name, o := range names {
			w, err := NewWeight(values, []int{out, in}, o)
			require.NoError(t, err)
			if !yield(name, w) {
				return
			}
		}
	}, nil)
	require.NoError(t, err)
	w, err := NewWeights(bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.NoError(t, err)
	for name := range names {
		whole, err := w.Load(name, nil)
		require.NoError(t, err)
		want := make([]float32, out*in)
		require.NoError(t, whole.Dequantize(snug.SliceView(want)))
		for _, r := range []Rows{{0, 1, out}, {0, 1, 128}, {128, 1, 172}, {100, 1, 90}, {299, 1, 1}, {7, 1, 250}} {
			part, err := w.LoadRows(name, r, nil)
			require.NoError(t, err)
			got := make([]float32, r.Count*in)
			require.NoError(t, part.Dequantize(snug.SliceView(got)))
			require.Equal(t, want[r.First*in:][:r.Count*in], got, "%s %+v", name, r)
		}
	}
	require.NoError(t, w.SetBlock(64, 64))
	_, err = w.Load("block", nil)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "scales of shape [3 1] for a weight [300, 40], want one for all, for each row, or for each block of 64×64")
	_, err = w.Load("row", nil)
	require.NoError(t, err)
	for _, block := range [][2]int{{0, 1}, {1, 0}, {-1, 4}} {
		require.ErrorIs(t, w.SetBlock(block[0], block[1]), snug.ErrConfig)
	}
}
