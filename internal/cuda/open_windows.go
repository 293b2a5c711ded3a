//go:build (cuda || hip) && (amd64 || arm64)

package cuda

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

var (
	driverNames = []string{"nvcuda.dll"} // in System32, where the driver is
	ltNames     = []string{"cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"}
)

// toolkitDirs returns the folders of the CUDA toolkit's libraries.
func toolkitDirs() []string {
	return inToolkit("CUDA_PATH", filepath.Join("bin", "x64"), "bin")
}

// openLibrary opens a library of System32, or a library by its absolute path, which may load
// others from its own folder. Windows would also search the program's folder, the current
// folder and the folders of PATH, where somebody else may have put a library of that name.
func openLibrary(name string) (uintptr, error) {
	handle, err := windows.LoadLibraryEx(name, 0, searched(name))
	return uintptr(handle), err
}

// searched returns the folders that are searched for a library and for its dependencies.
func searched(name string) uintptr {
	if filepath.IsAbs(name) {
		return windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | windows.LOAD_LIBRARY_SEARCH_SYSTEM32
	}
	return windows.LOAD_LIBRARY_SEARCH_SYSTEM32
}

func lookUp(library uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(library), name)
}
