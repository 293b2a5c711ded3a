//go:build emu

package emu

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/klauspost/cpuid/v2"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

//go:embed shim
var shim embed.FS

// compiler makes programs of one language, in one mode, and keeps them in the
// user's cache under names that depend on all that goes in.
type compiler struct {
	language string
	cxx      string
	flags    []string // of the host and of modules
	checks   []string // of modules
	defines  []string // of modules
	version  string   // of the compiler and the processor
	hip      bool     // the CUDA text is compiled as HIP
}

// modes are the flags that SNUG_EMU stands for: of everything, and of modules.
var modes = map[string][2][]string{
	"":         {{"-O2"}, nil},
	"plain":    {{"-O2"}, nil},
	"portable": {{"-O2"}, {"-DSNUG_WAVE=32"}},
	"wave64":   {{"-O2"}, {"-DSNUG_WAVE=64"}},
	"asan":     {{"-O1", "-g", "-fsanitize=address"}, nil},
	"check":    {{"-O2", "-g"}, {"-O1", "-fsanitize=thread"}},
	"late":     {{"-O2", "-g"}, {"-O1", "-fsanitize=thread"}},
}

// metalVersions are the values of __METAL_VERSION__ that SNUG_METAL stands for: the language of
// macOS 14 and later, which has bfloat, and the one of the systems before it.
var metalVersions = map[string]string{"": "310", "3.1": "310", "2.4": "240"}

// base are the flags of all modes. Kernels say themselves where a product and
// a sum are rounded once.
var base = []string{
	"-std=c++17", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
	"-Wall", "-Wno-unknown-pragmas", "-Wno-attributes",
}

func compilerFor(language string) (*compiler, error) {
	name := os.Getenv("SNUG_EMU")
	mode, ok := modes[name]
	if !ok {
		return nil, fmt.Errorf("SNUG_EMU is %q, want plain, portable, wave64, asan, check or late: %w", name, driver.ErrNotBuilt)
	}
	cxx := os.Getenv("SNUG_EMU_CXX")
	if cxx == "" {
		cxx = "c++"
	}
	version, err := exec.Command(cxx, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("the emulator needs a C++ compiler; %s --version: %w: %w", cxx, err, driver.ErrNotBuilt)
	}
	var defines []string
	if language == "metal" {
		name := os.Getenv("SNUG_METAL")
		number, ok := metalVersions[name]
		if !ok {
			return nil, fmt.Errorf("SNUG_METAL is %q, want 2.4 or 3.1: %w", name, driver.ErrNotBuilt)
		}
		defines = []string{"-D__METAL_VERSION__=" + number}
	}
	pattern, err := nanPattern()
	if err != nil {
		return nil, err
	}
	if pattern != "" {
		defines = append(defines, "-DSNUG_NAN")
	}
	return &compiler{
		language: language, cxx: cxx,
		flags: slices.Concat(base, mode[0]), checks: mode[1], defines: defines,
		hip:     name == "portable" || name == "wave64",
		version: fmt.Sprintf("%s%s %v", version, cpuid.CPU.BrandName, cpuid.CPU.FeatureSet()),
	}, nil
}

// nanPattern returns the NaN that SNUG_NAN stands for, in hexadecimal digits, or nothing.
func nanPattern() (string, error) {
	text := os.Getenv("SNUG_NAN")
	if text == "" {
		return "", nil
	}
	bits, err := strconv.ParseUint(text, 16, 32)
	if err != nil || bits&0x7fc00000 != 0x7fc00000 {
		return "", fmt.Errorf("SNUG_NAN is %q, want the 8 digits of a quiet NaN such as 7fffffff: %w", text, driver.ErrNotBuilt)
	}
	return text, nil
}

// host returns the program that holds the device.
func (c *compiler) host() (string, error) {
	return c.make("host", nil, func(dir, out string) [][]string {
		args := slices.Concat(c.flags, []string{"-rdynamic", "-o", out})
		for _, file := range []string{"host.cpp", "run.cpp", "hopper.cpp", "check.cpp", "late.cpp"} {
			args = append(args, filepath.Join(dir, "shim", file))
		}
		return [][]string{append(args, "-ldl")}
	})
}

// module returns the library of a module's kernels. It is linked without
// c.checks, which would bring a run-time library of their own.
func (c *compiler) module(m *gpu.Module) (string, error) {
	if m.Source == nil {
		return "", fmt.Errorf("module %s has no source in this build: %w", m.Name, driver.ErrNotBuilt)
	}
	return c.make(m.Name+"."+c.language, m.Source, func(dir, out string) [][]string {
		object := out + ".o"
		return [][]string{
			slices.Concat(c.flags, c.checks, c.defines, []string{"-fPIC", "-c", "-DSNUG_EMU", "-o", object,
				"-I", filepath.Join(dir, "shim"), "-I", filepath.Join(dir, "include"), "-I", dir,
				"-x", "c++", filepath.Join(dir, m.Name+"."+c.language)}),
			slices.Concat(c.flags, []string{"-shared", "-o", out, object}),
		}
	})
}

var building sync.Mutex

// make returns the path of a program made of the shim, the dialect's headers
// and the given sources by running the compiler with each list of arguments that
// commands returns, from the cache if it is there.
func (c *compiler) make(name string, sources fs.FS, commands func(dir, out string) [][]string) (string, error) {
	building.Lock()
	defer building.Unlock()
	trees := []fs.FS{shim, gpu.Include}
	if sources != nil {
		trees = append(trees, sources)
	}
	sum, err := hash(trees, fmt.Sprint(commands("", ""), c.cxx, c.version))
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, name+"-"+sum)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && ownedBy(info, os.Geteuid()) {
		return path, nil
	}
	dir, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for _, tree := range trees {
		if err := os.CopyFS(dir, tree); err != nil {
			return "", err
		}
	}
	out := filepath.Join(dir, "program.out")
	for _, args := range commands(dir, out) {
		if text, err := exec.Command(c.cxx, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("compile %s for the emulator: %w\n%s", name, err, text)
		}
	}
	return path, os.Rename(out, path) // others may make the same at this moment
}

// hash names the contents of file trees and a text.
func hash(trees []fs.FS, text string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", text)
	var errs []error
	for _, tree := range trees {
		errs = append(errs, fs.WalkDir(tree, ".", func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := fs.ReadFile(tree, path)
			fmt.Fprintf(h, "%q %d\n%s", path, len(data), data)
			return err
		}))
	}
	return hex.EncodeToString(h.Sum(nil))[:20], errors.Join(errs...)
}
