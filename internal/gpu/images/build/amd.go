//go:build cuda && linux && amd64

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
)

const (
	resourcesAMD = "internal/gpu/images/RESOURCES-AMD.md"
	// maxScratch is the bytes of a thread's stack that a kernel may have which is not in scratches: 16 bytes
	// of each operand, which products of any types keep there.
	maxScratch = 32
)

// scratches are the kernels that may have more.
var scratches = map[string]allowed{
	"attention_backward_key_bf16":       {96, "the 256 vector registers of waves of 32 lanes are too few; what it costs was not measured"},
	"attention_backward_key_f16":        {96, "as attention_backward_key_bf16"},
	"attention_backward_key_f32":        {96, "as attention_backward_key_bf16"},
	"attention_backward_key_features":   {448, "as attention_backward_key_bf16"},
	"attention_backward_query_features": {288, "as attention_backward_key_bf16"},
	"attention_bias_features":           {96, "as attention_backward_key_bf16"},
	"attention_forward_features":        {128, "as attention_backward_key_bf16"},
}

// amdResult is a module's image and what its kernels use, by name and then by architecture.
type amdResult struct {
	module  images.AMDModule
	image   []byte
	kernels map[string]map[string]machine.AMDKernel
}

// buildAMD returns the images of all modules for AMD's cards, with what belongs to them. It compiles
// for all architectures, or for one alone and takes the code of others from the images that are there.
func buildAMD(root, clang, only string) (map[string][]byte, error) {
	said, err := exec.Command(clang, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", clang, err)
	}
	version, _, _ := strings.Cut(string(said), "\n")
	if !strings.Contains(version, "version "+images.AMDCompiler+" ") {
		return nil, fmt.Errorf("%s is %s, want clang %s: %w", clang, version, images.AMDCompiler, errNoCompiler)
	}
	cache, err := openCache("clang-" + images.AMDCompiler)
	if err != nil {
		return nil, err
	}
	modules, err := images.Find(root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	var results []amdResult
	var failed []error
	for _, m := range images.AMD(modules) {
		r, err := compileAMD(cache, root, clang, version, only, m)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", m.Entry(), err))
			continue
		}
		fmt.Printf("%-12s %3d kernels %10s bytes\n", m.Name(), len(r.kernels), grouped(len(r.image)))
		sum, err := m.SumOf(root, r.image)
		if err != nil {
			return nil, err
		}
		files[m.Image()], files[m.Sum()] = r.image, []byte(sum)
		results = append(results, r)
	}
	files[resourcesAMD] = []byte(reportAMD(results))
	return files, errors.Join(failed...)
}

// compileAMD compiles one module for every architecture, some at a time.
func compileAMD(cache cache, root, clang, version, only string, m images.AMDModule) (amdResult, error) {
	r := amdResult{module: m, kernels: map[string]map[string]machine.AMDKernel{}}
	sources, err := m.Sources(root)
	if err != nil {
		return r, err
	}
	objects := make([]compiled, len(gpu.AMDArchs))
	errs := make([]error, len(objects))
	parallel(len(objects), func(i int) {
		if only != "" && only != gpu.AMDArchs[i] {
			objects[i].Cubin, errs[i] = m.Code(root, gpu.AMDArchs[i])
			return
		}
		inputs := []any{version, m.Entry(), sources, images.AMDOptions, gpu.AMDArchs[i]}
		objects[i], errs[i] = cache.compiled(inputs, func() (c compiled, err error) {
			c.Cubin, err = runClang(root, clang, m.Entry(), gpu.AMDArchs[i])
			return c, err
		})
	})
	if err := errors.Join(errs...); err != nil {
		return r, err
	}
	var codes []gpu.Code
	var above []string
	for i, arch := range gpu.AMDArchs {
		kernels, err := machine.AMDKernels(objects[i].Cubin, arch)
		if err != nil {
			return r, fmt.Errorf("for %s: %w", arch, err)
		}
		for _, k := range kernels {
			above = append(above, checkAMD(k, arch)...)
			if r.kernels[k.Name] == nil {
				r.kernels[k.Name] = map[string]machine.AMDKernel{}
			}
			r.kernels[k.Name][arch] = k
		}
		codes = append(codes, gpu.Code{AMD: arch, Data: objects[i].Cubin})
	}
	if len(above) > 0 {
		return r, errors.New(strings.Join(above, "\n"))
	}
	r.image, err = m.Pack(root, codes)
	return r, err
}

// checkAMD returns what a kernel uses above a limit.
func checkAMD(k machine.AMDKernel, arch string) []string {
	var above []string
	if err := k.Fits(arch); err != nil {
		above = append(above, err.Error())
	}
	if limit := max(maxScratch, scratches[k.Name].bytes); k.Scratch > limit {
		above = append(above, fmt.Sprintf("%s for %s has a stack of %d bytes, the limit is %d", k.Name, arch, k.Scratch, limit))
	}
	return above
}

// runClang returns the code object of a module for one architecture. Paths are given from the root
// on, so that none of the machine is in it.
func runClang(root, clang, entry, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "images-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "out")
	cmd := exec.Command(clang, slices.Concat(images.AMDOptions, []string{"--offload-arch=" + arch, "-I", images.Include, "-o", out, entry})...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "LLD_VERSION=LLD") // which lld writes into the file in place of its own
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("for %s: %w\n%s", arch, err, text)
	}
	return os.ReadFile(out)
}

// reportAMD returns the text of RESOURCES-AMD.md.
func reportAMD(results []amdResult) string {
	var b strings.Builder
	b.WriteString("# What the kernels use on AMD's cards\n\n")
	b.WriteString("`hip.sh` writes this file from what the code objects say. Vector registers and the stack, in bytes, are those of a thread,\n")
	b.WriteString("scalar registers those of a wave, memory in bytes that of a block. Spills are vector registers that are moved to the\n")
	fmt.Fprintf(&b, "stack. Where the architectures differ the numbers are those of %s.\n", strings.Join(gpu.AMDArchs, " / "))
	for _, r := range results {
		fmt.Fprintf(&b, "\n## %s: %s bytes\n\n", r.module.Name(), grouped(len(r.image)))
		b.WriteString("| kernel | vector registers | scalar registers | memory of a block | stack | spills |\n|---|---|---|---|---|---|\n")
		for _, name := range slices.Sorted(maps.Keys(r.kernels)) {
			cell := func(of func(machine.AMDKernel) int) string { return across(gpu.AMDArchs, r.kernels[name], of) }
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", name,
				cell(func(k machine.AMDKernel) int { return k.VGPRs }),
				cell(func(k machine.AMDKernel) int { return k.SGPRs }),
				cell(func(k machine.AMDKernel) int { return k.Shared }),
				cell(func(k machine.AMDKernel) int { return k.Scratch }),
				cell(func(k machine.AMDKernel) int { return k.Spills }))
		}
	}
	if len(scratches) > 0 {
		b.WriteString("\n## Stacks that are allowed\n\n")
		for _, name := range slices.Sorted(maps.Keys(scratches)) {
			fmt.Fprintf(&b, "- %s, %d bytes: %s\n", name, scratches[name].bytes, scratches[name].why)
		}
	}
	return b.String()
}
