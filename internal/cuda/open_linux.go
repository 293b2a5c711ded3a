//go:build (cuda || hip) && (amd64 || arm64)

package cuda

import "github.com/ebitengine/purego"

var (
	driverNames = []string{"libcuda.so.1"}
	ltNames     = []string{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}
)

// toolkitDirs returns the folders of the CUDA toolkit's libraries that the
// system's linker may not search.
func toolkitDirs() []string {
	return append(inToolkit("CUDA_HOME", "lib64"), "/usr/local/cuda/lib64")
}

func openLibrary(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func lookUp(library uintptr, name string) (uintptr, error) { return purego.Dlsym(library, name) }
