package amp

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// Tensors that are made when they are written give the bytes of those that exist, one at a time.
func TestMadeTensors(t *testing.T) {
	x := []float32{1, 2, 3, 4, 5, 6}
	want, got := new(bytes.Buffer), new(bytes.Buffer)
	_, err := WriteWeights(want, func(yield func(Tensor, snug.View) bool) {
		_ = yield(Tensor{Name: "a", DType: "BF16", Shape: []int{2, 3}}, snug.ViewOf(x)) && yield(Tensor{Name: "b", Shape: []int{6}}, snug.ViewOf(x))
	}, nil)
	require.NoError(t, err)
	shared, made := make([]float32, 6), 0
	fill := func() (snug.View, error) {
		made++
		copy(shared, x)
		return snug.ViewOf(shared), nil
	}
	tensors := func(yield func(Tensor, snug.View) bool) {
		_ = yield(Tensor{Name: "a", DType: "BF16", Shape: []int{2, 3}, Make: fill}, snug.View{}) &&
			yield(Tensor{Name: "b", DType: "F32", Shape: []int{6}, Make: fill}, snug.View{})
	}
	_, err = WriteWeights(got, tensors, nil)
	require.NoError(t, err)
	require.Equal(t, want.Bytes(), got.Bytes())
	require.Equal(t, 2, made)
	dir := t.TempDir()
	require.NoError(t, SaveShards(dir, 12, tensors, nil))
	w, err := OpenWeights(dir)
	require.NoError(t, err)
	defer w.Close()
	back := make([]float32, 6)
	require.NoError(t, w.Load("b", snug.ViewOf(back)))
	require.Equal(t, x, back)
}

func TestMadeTensorsRefused(t *testing.T) {
	broken := errors.New("broken")
	fill := func(n int, err error) func() (snug.View, error) {
		return func() (snug.View, error) { return snug.ViewOf(make([]float32, n)), err }
	}
	for _, c := range []struct {
		t    Tensor
		v    snug.View
		want error
	}{
		{Tensor{Name: "a", DType: "F32", Shape: []int{2}, Make: fill(2, nil)}, snug.ViewOf(make([]float32, 2)), snug.ErrConfig},
		{Tensor{Name: "a", Shape: []int{2}, Make: fill(2, nil)}, snug.View{}, snug.ErrConfig},
		{Tensor{Name: "a", DType: "U8", Shape: []int{2}, Make: fill(2, nil)}, snug.View{}, snug.ErrConfig},
		{Tensor{Name: "a", DType: "F32", Shape: []int{-2}, Make: fill(2, nil)}, snug.View{}, snug.ErrShape},
		{Tensor{Name: "a", DType: "F32", Shape: []int{2}, Make: fill(3, nil)}, snug.View{}, snug.ErrShape},
		{Tensor{Name: "a", DType: "F32", Shape: []int{2}, Make: fill(2, broken)}, snug.View{}, broken},
	} {
		dir := t.TempDir()
		require.ErrorIs(t, SaveShards(dir, 0, func(yield func(Tensor, snug.View) bool) { yield(c.t, c.v) }, nil), c.want)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}
