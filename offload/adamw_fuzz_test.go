package offload

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzAdamWState restores damaged states with right checksums: what is refused leaves
// the optimizer as it was, and what is not is saved as it came.
func FuzzAdamWState(f *testing.F) {
	s := memStore(f, Options{})
	newAdamW(f, s, 100, 32).Advance(1)
	state := func(t testing.TB, a *AdamW) []byte {
		b, err := a.AppendBinary(nil)
		require.NoError(t, err)
		return b
	}
	f.Add(state(f, newAdamW(f, s, 100, 32)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 4 {
			return
		}
		a := newAdamW(t, s, 100, 32)
		before, b := state(t, a), seal(b)
		if err := a.UnmarshalBinary(b); err != nil {
			require.Equal(t, before, state(t, a))
			return
		}
		require.Equal(t, b, state(t, a))
	})
}
