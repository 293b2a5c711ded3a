package gpu_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// TestImages fails when a kernel's source and its compiled image are not of the
// same time.
func TestImages(t *testing.T) {
	modules, err := images.Find(root)
	require.NoError(t, err)
	for _, m := range modules {
		require.NoError(t, m.Check(root), "run internal/gpu/images/build.sh and commit what it writes")
	}
	for _, m := range images.AMD(modules) {
		require.NoError(t, m.Check(root), "run internal/gpu/images/hip.sh and commit what it writes")
	}
	orphans, err := images.Orphans(root)
	require.NoError(t, err)
	require.Empty(t, orphans, "images without a source")
}

// TestImageParts unpacks every image and looks for what it must hold.
//
//check:not race
func TestImageParts(t *testing.T) {
	modules, err := images.Find(root)
	require.NoError(t, err)
	total, partsOf := 0, map[string]int{}
	for _, m := range modules {
		image, err := os.ReadFile(filepath.Join(root, m.Image()))
		require.NoError(t, err, "run internal/gpu/images/build.sh")
		total += len(image)
		codes, err := gpu.UnpackAll(image)
		require.NoError(t, err, m.Image())
		var archs []string
		entries, parts := map[string]bool{}, 0
		for _, c := range codes {
			if !c.PTX {
				archs = append(archs, c.Arch.String())
				require.Equal(t, "\x7fELF", string(c.Data[:4]), "%v in %s", c, m.Image())
				require.Equal(t, c.Capability < 100, c.Data[7] == 51, "%v in %s loads with drivers of CUDA 12.0", c, m.Image())
				require.EqualValues(t, c.Capability, architecture(c.Data), "the architecture in the flags of %v in %s", c, m.Image())
				continue
			}
			require.True(t, m.Portable(), "PTX in %s", m.Image())
			require.Equal(t, images.Archs[0], c.Arch.String())
			require.Contains(t, string(c.Data), ".version 8.0", "PTX of CUDA 12.0 in %s", m.Image())
			require.Contains(t, string(c.Data), ".target sm_"+images.Archs[0], m.Image())
			parts++
			for _, match := range entry.FindAllSubmatch(c.Data, -1) {
				require.False(t, entries[string(match[1])], "%s is twice in the PTX of %s", match[1], m.Image())
				require.True(t, bytes.Contains(codes[0].Data, match[1]), "%s is in the PTX of %s alone", match[1], m.Image())
				entries[string(match[1])] = true
			}
		}
		require.Equal(t, m.Archs(), archs, m.Image())
		partsOf[m.Name()] = parts
		require.Equal(t, m.Portable(), len(codes) > len(archs), "PTX in %s", m.Image())
	}
	require.Equal(t, 5, partsOf["attention"], "parts of attention's PTX: of 64, 128 and 256 columns, features, and the rest")
	require.Less(t, total, 5_150_000, "bytes of all images")
}

// TestAMDImageParts unpacks every image for AMD's cards and looks for what it must hold.
//
//check:not race
func TestAMDImageParts(t *testing.T) {
	modules, err := images.Find(root)
	require.NoError(t, err)
	total := 0
	for _, m := range images.AMD(modules) {
		image, err := os.ReadFile(filepath.Join(root, m.Image()))
		require.NoError(t, err, "run internal/gpu/images/hip.sh")
		total += len(image)
		codes, err := gpu.UnpackAll(image)
		require.NoError(t, err, m.Image())
		var archs []string
		for _, c := range codes {
			archs = append(archs, c.AMD)
			kernels, err := machine.AMDKernels(c.Data, c.AMD)
			require.NoError(t, err, "%v in %s", c, m.Image())
			require.NotEmpty(t, kernels)
			for _, k := range kernels {
				require.NoError(t, k.Fits(c.AMD), m.Image())
			}
		}
		require.Equal(t, gpu.AMDArchs, archs, m.Image())
	}
	require.Less(t, total, 2_350_000, "bytes of all images")
}

var entry = regexp.MustCompile(`\.entry (\w+)\(`)

// architecture returns what a cubin says that it is for. Drivers of CUDA 12.0 know one form of the
// flags, which the code for their cards has; Blackwell's is another.
func architecture(cubin []byte) byte {
	const osABI, flags, older = 7, 48, 51
	if cubin[osABI] == older {
		return cubin[flags]
	}
	return cubin[flags+1]
}

// BenchmarkUnpack times what a device pays when it first runs a kernel of the largest module.
func BenchmarkUnpack(b *testing.B) {
	image, err := os.ReadFile(filepath.Join(root, "attention/kernels/attention.image"))
	require.NoError(b, err)
	for name, capability := range map[string]int{"cubin": 90, "PTX": 110} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				code, err := gpu.Unpack(image, capability)
				require.NoError(b, err)
				b.SetBytes(int64(len(code.Data)))
			}
		})
	}
}
