//go:build hip && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/snug-ml/snug/internal/driver"
)

var hipNames = []string{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"}

// hipLtNames are the libraries of products by the major version of HIP. One of another version would
// load a second runtime beside the one that is open.
var hipLtNames = map[int32]string{6: "libhipblaslt.so.0", 7: "libhipblaslt.so.1"}

// rocm is the installation whose HIP runtime is open.
type rocm struct {
	path  string // of the runtime; without a folder if the system found it
	major int32  // version
}

func init() {
	r := &rocm{}
	driver.Register("hip", newBackend(&amd, r.load, r.loadLt))
}

// rocmDirs returns the folders of ROCm's libraries that the system's linker may not search.
func rocmDirs() []string { return append(inToolkit("ROCM_PATH", "lib"), "/opt/rocm/lib") }

// load opens the HIP runtime, which is AMD's driver for programs.
func (r *rocm) load() (*api, error) {
	library, path, err := openFirst(hipNames)
	if err != nil {
		var second error
		if library, path, second = openFirst(paths(hipNames, rocmDirs())[len(hipNames):]); second != nil {
			return nil, fmt.Errorf("no HIP driver: %w; snug needs ROCm 6.0 or later: %w", err, driver.ErrNotBuilt)
		}
	}
	a, h := &api{}, &hipAPI{thread: syscall.Gettid}
	a.missing = bind(library, append(a.hipSymbols(), h.symbols()...))
	h.complete(a)
	r.path = path
	if a.driverVersion != nil {
		var version int32
		a.driverVersion(&version) // without it snug's own kernels multiply
		r.major = version / hipMajor
	}
	return a, nil
}

// loadLt opens the hipBLASLts that go with the runtime, the one beside it first.
func (r *rocm) loadLt(yield func(*ltAPI) bool) {
	name, ok := hipLtNames[r.major]
	if !ok {
		return
	}
	files := paths([]string{name}, rocmDirs())
	if filepath.IsAbs(r.path) {
		files = slices.Insert(files, 0, filepath.Join(filepath.Dir(r.path), name))
	}
	openLts(&hipBlasLt, files, yield)
}
