package transformer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/plan"
)

// TestConfigNamed: the Config of a preset has the parameters of the preset, and is one that New takes.
func TestConfigNamed(t *testing.T) {
	models := 0
	for _, name := range plan.Models() {
		want, err := plan.ModelNamed(name, 0)
		require.NoError(t, err)
		c, err := ConfigNamed(name)
		if want.Context == 0 { // of images
			require.ErrorIs(t, err, snug.ErrConfig, name)
			continue
		}
		require.NoError(t, err, name)
		got, err := c.Plan(c.Context)
		require.NoError(t, err, name)
		require.Equal(t, want.Parameters(), got.Parameters(), name)
		require.Equal(t, want.Context, got.Context, name)
		models++
	}
	require.Equal(t, 7, models)
	_, err := ConfigNamed("unknown")
	require.ErrorIs(t, err, snug.ErrConfig)
	c, err := ConfigNamed("gpt-1m")
	require.NoError(t, err)
	m, err := New(c, Options{})
	require.NoError(t, err)
	require.NoError(t, m.Close())
}
