package transformer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroTransformer calls functions and methods with zero values and nil: none panics.
func TestZeroTransformer(t *testing.T) {
	var none *Config
	kerneltest.Zero(t, none, new(Config), Rope{}, New, new(Model), new(Generator), (*Generator)(nil), new(Prefix), (*Prefix)(nil), Param{}, Embeddings{}, Batch{}, (*AdapterFile)(nil), new(AdapterFile), AdapterGGUFTypes)
}

// A Generator refuses a nil context and appends nothing.
func TestGeneratorWithoutContext(t *testing.T) {
	m, err := New(tinyGPT2(GELU), Options{})
	require.NoError(t, err)
	g, err := m.Generate(GenerateOptions{Context: 4})
	require.NoError(t, err)
	var none context.Context
	require.ErrorIs(t, g.Prompt(none, []int32{1, 2}), snug.ErrConfig)
	require.Empty(t, g.Tokens())
	require.NoError(t, g.Prompt(t.Context(), []int32{1, 2}))
	_, err = g.Next(none)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Len(t, g.Tokens(), 2)
}
