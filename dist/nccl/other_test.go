//go:build !((cuda || hip) && linux && (amd64 || arm64))

package nccl

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestNotBuilt: without the tag Open says which tag is missing.
func TestNotBuilt(t *testing.T) {
	_, err := Open(Options{})
	require.ErrorIs(t, err, snug.ErrNotBuilt)
	require.ErrorContains(t, err, "tag cuda")
	_, err = openLibrary("", "cuda")
	require.ErrorIs(t, err, snug.ErrNotBuilt)
}
