//go:build cuda && linux && amd64

package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

// toolkit is the folder that holds the compilers, as the package installer lays
// them out, with the functions of its libraries.
type toolkit struct {
	ptxas string

	nvrtc struct {
		create   func(program *uintptr, source, name string, headers int32, texts, names **byte) int32
		compile  func(program uintptr, n int32, options **byte) int32
		logSize  func(program uintptr, n *uint64) int32
		log      func(program uintptr, text *byte) int32
		textSize func(program uintptr, n *uint64) int32
		text     func(program uintptr, text *byte) int32
		destroy  func(program *uintptr) int32
		explain  func(result int32) string
	}
	fatbin struct {
		create  func(image *uintptr, options **byte, n uint64) int32
		cubin   func(image uintptr, code *byte, n uint64, arch, name string) int32
		ptx     func(image uintptr, code *byte, n uint64, arch, name, options string) int32
		size    func(image uintptr, n *uint64) int32
		get     func(image uintptr, to *byte) int32
		destroy func(image *uintptr) int32
		explain func(result int32) string
	}
}

func openToolkit(dir string) (*toolkit, error) {
	t := &toolkit{ptxas: filepath.Join(dir, "nvidia", "cuda_nvcc", "bin", "ptxas")}
	libraries := filepath.Join(dir, "nvidia", "cuda_nvrtc", "lib")
	// NVRTC opens this one by its name, and finds it when it is open already.
	if _, err := openLibrary(filepath.Join(libraries, "libnvrtc-builtins.so.12.0")); err != nil {
		return nil, err
	}
	nvrtc, err := openLibrary(filepath.Join(libraries, "libnvrtc.so.12"))
	if err != nil {
		return nil, err
	}
	fatbin, err := openLibrary(filepath.Join(dir, "nvidia", "nvfatbin", "lib", "libnvfatbin.so.12"))
	if err != nil {
		return nil, err
	}
	return t, errors.Join(
		bind(nvrtc, &t.nvrtc.create, "nvrtcCreateProgram"),
		bind(nvrtc, &t.nvrtc.compile, "nvrtcCompileProgram"),
		bind(nvrtc, &t.nvrtc.logSize, "nvrtcGetProgramLogSize"),
		bind(nvrtc, &t.nvrtc.log, "nvrtcGetProgramLog"),
		bind(nvrtc, &t.nvrtc.textSize, "nvrtcGetPTXSize"),
		bind(nvrtc, &t.nvrtc.text, "nvrtcGetPTX"),
		bind(nvrtc, &t.nvrtc.destroy, "nvrtcDestroyProgram"),
		bind(nvrtc, &t.nvrtc.explain, "nvrtcGetErrorString"),
		bind(fatbin, &t.fatbin.create, "nvFatbinCreate"),
		bind(fatbin, &t.fatbin.cubin, "nvFatbinAddCubin"),
		bind(fatbin, &t.fatbin.ptx, "nvFatbinAddPTX"),
		bind(fatbin, &t.fatbin.size, "nvFatbinSize"),
		bind(fatbin, &t.fatbin.get, "nvFatbinGet"),
		bind(fatbin, &t.fatbin.destroy, "nvFatbinDestroy"),
		bind(fatbin, &t.fatbin.explain, "nvFatbinGetErrorString"),
	)
}

func openLibrary(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

func bind(library uintptr, function any, name string) error {
	at, err := purego.Dlsym(library, name)
	if err == nil {
		purego.RegisterFunc(function, at)
	}
	return err
}

// cStrings are texts as C takes them: an array of pointers, pinned until
// release.
type cStrings struct {
	pointers []*byte
	pinner   runtime.Pinner
}

func newCStrings(texts []string) *cStrings {
	s := &cStrings{}
	for _, text := range texts {
		bytes := append([]byte(text), 0)
		s.pinner.Pin(&bytes[0])
		s.pointers = append(s.pointers, &bytes[0])
	}
	return s
}

func (s *cStrings) array() **byte {
	if len(s.pointers) == 0 {
		return nil
	}
	return &s.pointers[0]
}

func (s *cStrings) release() { s.pinner.Unpin() }

// sized calls a pair of functions that tell a size and fill so many bytes. The
// text that it returns ends before the first zero byte.
func sized(handle uintptr, size func(uintptr, *uint64) int32, fill func(uintptr, *byte) int32) ([]byte, int32) {
	var n uint64
	if r := size(handle, &n); r != 0 || n == 0 {
		return nil, r
	}
	text := make([]byte, n)
	return text, fill(handle, &text[0])
}

func beforeZero(text []byte) string {
	before, _, _ := bytes.Cut(text, []byte{0})
	return string(before)
}

// compile returns the PTX of a program for one architecture. Warnings are
// errors.
func (t *toolkit) compile(name, source string, headers map[string]string, options []string) (string, error) {
	var names, texts []string
	for name, text := range headers {
		names, texts = append(names, name), append(texts, text)
	}
	cNames, cTexts, cOptions := newCStrings(names), newCStrings(texts), newCStrings(options)
	defer cNames.release()
	defer cTexts.release()
	defer cOptions.release()

	var program uintptr
	if r := t.nvrtc.create(&program, source, name, int32(len(names)), cTexts.array(), cNames.array()); r != 0 {
		return "", errors.New(t.nvrtc.explain(r))
	}
	defer t.nvrtc.destroy(&program)
	result := t.nvrtc.compile(program, int32(len(options)), cOptions.array())
	log, r := sized(program, t.nvrtc.logSize, t.nvrtc.log)
	if said := beforeZero(log); result != 0 || r != 0 || said != "" {
		return "", fmt.Errorf("%s\n%s", t.nvrtc.explain(max(result, r)), said)
	}
	text, r := sized(program, t.nvrtc.textSize, t.nvrtc.text)
	if r != 0 {
		return "", errors.New(t.nvrtc.explain(r))
	}
	return beforeZero(text), nil
}

// code is machine code for one architecture.
type code struct {
	arch  string
	cubin []byte
}

// pack returns the image of some machine code and, if there is any, the PTX for one
// architecture.
func (t *toolkit) pack(codes []code, arch, ptx string) ([]byte, error) {
	options := newCStrings([]string{"-64", "-cuda", "-host=linux", "-compress=false"})
	defer options.release()
	var image uintptr
	if r := t.fatbin.create(&image, options.array(), uint64(len(options.pointers))); r != 0 {
		return nil, errors.New(t.fatbin.explain(r))
	}
	defer t.fatbin.destroy(&image)
	for _, c := range codes {
		if r := t.fatbin.cubin(image, &c.cubin[0], uint64(len(c.cubin)), c.arch, ""); r != 0 {
			return nil, fmt.Errorf("sm_%s: %s", c.arch, t.fatbin.explain(r))
		}
	}
	if ptx != "" {
		text := append([]byte(ptx), 0)
		if r := t.fatbin.ptx(image, &text[0], uint64(len(text)), arch, "", ""); r != 0 {
			return nil, fmt.Errorf("PTX: %s", t.fatbin.explain(r))
		}
	}
	packed, r := sized(image, t.fatbin.size, t.fatbin.get)
	if r != 0 {
		return nil, errors.New(t.fatbin.explain(r))
	}
	return packed, nil
}
