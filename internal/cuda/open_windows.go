//go:build cuda && (amd64 || arm64)

package cuda

import (
	"os"
	"path/filepath"
	"syscall"
)

var (
	// The driver is part of the system; no other folder is searched for it.
	driverNames = []string{filepath.Join(os.Getenv("SystemRoot"), "System32", "nvcuda.dll")}
	ltNames     = []string{"cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"}
)

// toolkitDirs returns the folders of the CUDA toolkit's libraries.
func toolkitDirs() []string {
	home := os.Getenv("CUDA_PATH")
	if home == "" {
		return nil
	}
	return []string{filepath.Join(home, "bin", "x64"), filepath.Join(home, "bin")}
}

func openLibrary(name string) (uintptr, error) {
	handle, err := syscall.LoadLibrary(name)
	return uintptr(handle), err
}

func lookUp(library uintptr, name string) (uintptr, error) {
	return syscall.GetProcAddress(syscall.Handle(library), name)
}
