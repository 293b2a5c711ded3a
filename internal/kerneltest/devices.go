//go:build cuda || hip || metal || emu

package kerneltest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// devices returns the devices of the backends in this build. SNUG_TEST_DEVICES
// names those to use, separated by commas, which then must be there; without it
// they are all that can be opened.
func devices(t testing.TB) []Backend {
	names := strings.Split(os.Getenv("SNUG_TEST_DEVICES"), ",")
	if names[0] == "" {
		var err error
		if names, err = snug.Devices(); err != nil {
			t.Log(err)
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			kind, _, _ := strings.Cut(name, ":")
			return kind != "cuda" && kind != "hip" && kind != "metal" && kind != "emu" // others are of tests
		})
	}
	var backends []Backend
	for _, name := range names {
		dev, err := snug.Open(name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		backends = append(backends, Backend{Name: name, Dev: dev, Emulated: strings.HasPrefix(name, "emu")})
	}
	return backends
}
