package images

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/snug-ml/snug/internal/gpu"
)

// AMDCompiler is the release of clang and of its linker lld whose code is in the images.
const AMDCompiler = "19.1.7"

// AMDOptions are the options of clang. Version 5 of code objects is what the compilers of ROCm 6 make by
// default. No name of a compiler or a file goes into them, so that they have the same bytes wherever they are made.
var AMDOptions = []string{
	"-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-mcode-object-version=5",
	"-std=c++17", "-O3", "-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt", "-fno-gpu-flush-denormals-to-zero",
	"-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fuse-cuid=none", "-fno-ident", "-Xoffload-linker", "--strip-all",
}

// AMDModule is a module of kernels as code objects for AMD's architectures.
type AMDModule struct{ module Module }

// AMD returns the modules that are for AMD's cards too.
func AMD(modules []Module) []AMDModule {
	var amd []AMDModule
	for _, m := range modules {
		if m.Portable() {
			amd = append(amd, AMDModule{m})
		}
	}
	return amd
}

// Name returns the module's name: "amp".
func (m AMDModule) Name() string { return m.module.Name() }

// Entry returns the path of the file that the compiler is given.
func (m AMDModule) Entry() string { return m.module.Entry() }

// Image returns the path of the compiled kernels.
func (m AMDModule) Image() string { return string(m.module) + "_hip.image" }

// Sum returns the path of the hashes of what the image was made from.
func (m AMDModule) Sum() string { return string(m.module) + "_hip.sum" }

// Sources returns the texts of the entry file and of all headers that it reaches, by their paths. Headers
// named emu_ and cuda_ belong to other compilers.
func (m AMDModule) Sources(root string) (map[string]string, error) {
	return m.module.sources(root, "emu_", "cuda_")
}

// Code returns the code object of the compiled kernels for one architecture.
func (m AMDModule) Code(root, arch string) ([]byte, error) {
	image, err := os.ReadFile(filepath.Join(root, m.Image()))
	if err != nil {
		return nil, err
	}
	code, err := gpu.UnpackAMD(image, arch)
	return code.Data, err
}

// Pack returns the image of some codes, as [Module.Pack] does.
func (m AMDModule) Pack(root string, codes []gpu.Code) ([]byte, error) {
	return pack(filepath.Join(root, m.Image()), codes, compress)
}

// SumOf returns what the module's sum file says when the image is made from the sources that are
// there: the compiler, its options, and the hashes of the sources and the image.
func (m AMDModule) SumOf(root string, image []byte) (string, error) {
	sources, err := m.Sources(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# What %s was made from. internal/gpu/images/hip.sh writes this file.\n", m.Image())
	fmt.Fprintf(&b, "# clang and lld %s: %s\n# %s\n", AMDCompiler, strings.Join(AMDOptions, " "), strings.Join(gpu.AMDArchs, " "))
	writeSums(&b, sources)
	writeSum(&b, image, m.Image())
	return b.String(), nil
}

// Check returns an error that says how the image differs from what the sources give, as far as
// hashes tell.
func (m AMDModule) Check(root string) error { return check(root, m) }
