//go:build cuda && (amd64 || arm64)

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

// openLibrary opens a library of System32, or the one of an absolute path, which may have
// others beside it. The program's folder, the current one and those of PATH, where Windows
// looks as well, can have a library of that name that somebody else has put there.
func openLibrary(name string) (uintptr, error) {
	handle, err := windows.LoadLibraryEx(name, 0, searched(name))
	return uintptr(handle), err
}

// searched returns which folders are searched for a library and for those that it needs.
func searched(name string) uintptr {
	if filepath.IsAbs(name) {
		return windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | windows.LOAD_LIBRARY_SEARCH_SYSTEM32
	}
	return windows.LOAD_LIBRARY_SEARCH_SYSTEM32
}

func lookUp(library uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(library), name)
}
