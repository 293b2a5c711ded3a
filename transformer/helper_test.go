package transformer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/offload"
)

// newStore returns a store of pages that holds little of a model at a time.
func newStore(t testing.TB) *offload.Store {
	t.Helper()
	s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 8 << 10})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
