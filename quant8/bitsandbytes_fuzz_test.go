package quant8

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
)

// anyFile feeds the reader a damaged file.
func anyFile(t *rapid.T, file []byte, a *Optimizer) {
	d := bytes.Clone(file)
	for range rapid.IntRange(1, 5).Draw(t, "edits") {
		at := rapid.IntRange(0, 1200).Draw(t, "at") // mostly the header
		if rapid.Bool().Draw(t, "anywhere") {
			at = rapid.IntRange(0, len(d)-1).Draw(t, "at")
		}
		d[at] = rapid.Byte().Draw(t, "byte")
	}
	d = d[:rapid.IntRange(0, len(d)).Draw(t, "cut")]
	if rapid.Bool().Draw(t, "whole") {
		d = append(d, file[len(d):]...)
	}
	before, steps := bytes.Join(blobsOf(t, a), nil), a.Steps()
	if err := a.ReadBitsAndBytes(bytes.NewReader(d), int64(len(d)), ""); err != nil {
		require.True(t, errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrConfig), err)
		require.Equal(t, before, bytes.Join(blobsOf(t, a), nil))
		require.Equal(t, steps, a.Steps())
	}
	advance(a)
	for name, n := range goldenParams {
		require.NoError(t, a.Step(name, snug.ViewOf(make([]float32, n)), snug.ViewOf(make([]float32, n)), 1))
	}
}

func blobsOf(t require.TestingT, a *Optimizer) (blobs [][]byte) {
	require.NoError(t, a.eachBlob(false, func(blob []byte) error {
		blobs = append(blobs, bytes.Clone(blob))
		return nil
	}))
	return blobs
}

func TestAnyFile(t *testing.T) {
	file, a := openGolden(t, "adamw").file, newWith(t, goldenRule, goldenOptions, goldenParams)
	rapid.Check(t, func(t *rapid.T) { anyFile(t, file, a) })
}

func FuzzAnyFile(f *testing.F) {
	file, a := openGolden(f, "adamw").file, newWith(f, goldenRule, goldenOptions, goldenParams)
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { anyFile(t, file, a) }))
}
