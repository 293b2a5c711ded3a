//go:build cuda && linux && amd64

package main

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCache(t *testing.T) {
	c := cache(t.TempDir())
	calls := 0
	get := func(arch string, sources map[string]string) compiled {
		t.Helper()
		got, err := c.compiled([]any{sources, arch}, func() (compiled, error) {
			calls++
			return compiled{PTX: sources["a"] + arch, Said: "nothing", Cubin: []byte{0, byte(calls)}}, nil
		})
		require.NoError(t, err)
		return got
	}
	first := get("80", map[string]string{"a": "x", "b": "y"})
	require.Equal(t, first, get("80", map[string]string{"b": "y", "a": "x"}))
	require.Equal(t, 1, calls)
	for _, other := range []compiled{
		get("86", map[string]string{"a": "x", "b": "y"}),
		get("80", map[string]string{"a": "x", "b": "z"}),
		get("80", map[string]string{"a": "x", "c": "y"}),
	} {
		require.NotEqual(t, first.Cubin, other.Cubin)
	}
	require.Equal(t, 4, calls)

	entries, err := os.ReadDir(string(c))
	require.NoError(t, err)
	require.Len(t, entries, 4)
	for _, e := range entries { // as a full disk leaves them
		require.NoError(t, os.Truncate(string(c)+"/"+e.Name(), 20))
	}
	get("80", map[string]string{"a": "x", "b": "y"})
	require.Equal(t, 5, calls)

	failure := errors.New("no compiler")
	for range 2 { // which is not kept
		_, err := c.compiled([]any{"z"}, func() (compiled, error) { return compiled{}, failure })
		require.ErrorIs(t, err, failure)
	}
}
