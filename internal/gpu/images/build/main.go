//go:build cuda && linux && amd64

// Command build compiles every module of kernels into its image, and writes
// the image, the hashes of its sources, and the table of what kernels
// use. With -check it compares instead. build.sh installs the compilers and
// runs it for NVIDIA's cards; hip.sh runs it with -clang for AMD's.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
)

const resources = "internal/gpu/images/RESOURCES.md"

func main() {
	check := flag.Bool("check", false, "write nothing; fail when a file is not what the sources give")
	compilers := flag.String("compilers", "", "the `folder` into which NVIDIA's compilers are installed")
	clang := flag.String("clang", "", "compile for AMD's cards, with this `program`")
	only := flag.String("only", "", "with -clang and -check: compile for this `architecture` alone")
	root := flag.String("root", ".", "the root of the repository")
	flag.Parse()
	var files map[string][]byte
	var err error
	switch {
	case *only != "" && (!*check || *clang == "" || !slices.Contains(gpu.AMDArchs, *only)):
		err = fmt.Errorf("-only %s: want -clang, -check and one of %v", *only, gpu.AMDArchs)
	case *clang != "":
		files, err = buildAMD(*root, *clang, *only)
	default:
		files, err = build(*root, *compilers)
	}
	if err == nil {
		err = finish(*root, files, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		if errors.Is(err, errNoCompiler) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

// errNoCompiler says that the release of a compiler is not there whose code is in the images.
var errNoCompiler = errors.New("images are not compiled here")

// build returns the images of all modules for NVIDIA's cards, with what belongs to them.
func build(root, compilers string) (map[string][]byte, error) {
	t, err := openToolkit(compilers)
	if err != nil {
		return nil, err
	}
	cache, err := openCache(filepath.Base(compilers))
	if err != nil {
		return nil, err
	}
	modules, err := images.Find(root)
	if err != nil {
		return nil, err
	}
	var results []result
	var failed []error
	for _, m := range modules {
		r, err := compile(t, cache, root, m)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", m.Entry(), err))
			continue
		}
		fmt.Printf("%-12s %3d kernels %10s bytes\n", m.Name(), len(r.kernels), grouped(len(r.image)))
		results = append(results, r)
	}
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	return outputs(root, results)
}

// finish writes the files, or compares with those that are there.
func finish(root string, files map[string][]byte, check bool) error {
	if check {
		return compare(root, files)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// parallel calls f with 0 to n-1, some at a time.
func parallel(n int, f func(i int)) {
	var wait sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range n {
		free <- struct{}{}
		wait.Go(func() {
			f(i)
			<-free
		})
	}
	wait.Wait()
}

// compile compiles one module and assembles it for every architecture.
func compile(t *toolkit, cache cache, root string, m images.Module) (result, error) {
	r := result{module: m, kernels: kernels{}}
	sources, err := m.Sources(root)
	if err != nil {
		return r, err
	}
	headers := map[string]string{}
	for file, text := range sources {
		if file != m.Entry() {
			headers[path.Base(file)] = text
		}
	}
	first := m.Archs()[0]
	options := slices.Concat(images.Options, []string{"--gpu-architecture=compute_" + first})
	front, err := cache.compiled([]any{m, sources, options}, func() (c compiled, err error) {
		c.PTX, err = t.compile(path.Base(m.Entry()), sources[m.Entry()], headers, options)
		return c, err
	})
	if err != nil {
		return r, err
	}
	var codes []gpu.Code
	for _, arch := range m.Archs() {
		parsed, err := gpu.ParseArch(arch)
		if err != nil {
			return r, err
		}
		c, err := cache.compiled([]any{front.PTX, images.AssemblerOptions, arch}, func() (c compiled, err error) {
			c.Cubin, c.Said, err = t.assemble(arch, front.PTX)
			return c, err
		})
		if err != nil {
			return r, fmt.Errorf("for sm_%s: %w", arch, err)
		}
		uses, err := parseUsage(c.Said)
		if err != nil {
			return r, fmt.Errorf("ptxas for sm_%s: %w", arch, err)
		}
		entries, err := machine.Kernels(c.Cubin, parsed.Capability)
		if err != nil {
			return r, fmt.Errorf("the cubin of sm_%s: %w", arch, err)
		}
		for _, k := range entries {
			u := uses[k.Name]
			u.threads = k.Threads
			uses[k.Name] = u
		}
		r.kernels.add(arch, uses)
		codes = append(codes, gpu.Code{Arch: parsed, Data: c.Cubin})
	}
	if above := r.kernels.check(); len(above) > 0 {
		return r, errors.New(strings.Join(above, "\n"))
	}
	if m.Portable() {
		parsed, err := gpu.ParseArch(first)
		if err != nil {
			return r, err
		}
		for _, part := range splitPTX(front.PTX) {
			codes = append(codes, gpu.Code{Arch: parsed, PTX: true, Data: []byte(part)})
		}
	}
	r.image, err = m.Pack(root, codes)
	return r, err
}

// outputs returns the contents of all files that follow from the results.
func outputs(root string, results []result) (map[string][]byte, error) {
	files := map[string][]byte{resources: []byte(report(results))}
	for _, r := range results {
		sum, err := r.module.SumOf(root, r.image)
		if err != nil {
			return nil, err
		}
		files[r.module.Image()] = r.image
		files[r.module.Sum()] = []byte(sum)
	}
	return files, nil
}

func compare(root string, files map[string][]byte) error {
	var differ []string
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		switch {
		case err != nil:
			differ = append(differ, err.Error())
		case !bytes.Equal(got, want):
			differ = append(differ, name+" is not what its sources give")
		}
	}
	orphans, err := images.Orphans(root)
	if err != nil {
		return err
	}
	for _, image := range orphans {
		differ = append(differ, image+" has no source")
	}
	if len(differ) == 0 {
		return nil
	}
	slices.Sort(differ)
	return fmt.Errorf("%s\nrun internal/gpu/images/build.sh and hip.sh and commit what they write", strings.Join(differ, "\n"))
}
