//go:build hip && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"syscall"

	"github.com/snug-ml/snug/internal/driver"
)

var (
	hipNames   = []string{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"}
	hipLtNames = []string{"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"}
)

// rocmDirs returns the folders of ROCm's libraries that the system's linker may not search.
func rocmDirs() []string { return append(inToolkit("ROCM_PATH", "lib"), "/opt/rocm/lib") }

// loadHIP opens the HIP runtime, which is AMD's driver for programs.
func loadHIP() (*api, error) {
	library, err := openFirst(paths(hipNames, rocmDirs()))
	if err != nil {
		return nil, fmt.Errorf("no HIP driver: %w; snug needs ROCm 6.0 or later: %w", err, driver.ErrNotBuilt)
	}
	a, h := &api{}, &hipAPI{thread: syscall.Gettid}
	a.missing = bind(library, append(a.hipSymbols(), h.symbols()...))
	h.complete(a)
	return a, nil
}

// loadHipLt opens the hipBLASLts that there are.
func loadHipLt(yield func(*ltAPI) bool) { openLts(&hipBlasLt, hipLtNames, rocmDirs(), yield) }
