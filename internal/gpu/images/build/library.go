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
	return t, errors.Join(
		bind(nvrtc, &t.nvrtc.create, "nvrtcCreateProgram"),
		bind(nvrtc, &t.nvrtc.compile, "nvrtcCompileProgram"),
		bind(nvrtc, &t.nvrtc.logSize, "nvrtcGetProgramLogSize"),
		bind(nvrtc, &t.nvrtc.log, "nvrtcGetProgramLog"),
		bind(nvrtc, &t.nvrtc.textSize, "nvrtcGetPTXSize"),
		bind(nvrtc, &t.nvrtc.text, "nvrtcGetPTX"),
		bind(nvrtc, &t.nvrtc.destroy, "nvrtcDestroyProgram"),
		bind(nvrtc, &t.nvrtc.explain, "nvrtcGetErrorString"),
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
