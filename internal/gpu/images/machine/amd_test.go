package machine

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

// amdObject returns the code object of the kernels of internal/ortho, which are few.
func amdObject(t *testing.T, arch string) []byte {
	t.Helper()
	image, err := os.ReadFile("../../../ortho/kernels/ortho_hip.image")
	require.NoError(t, err, "run internal/gpu/images/hip.sh")
	code, err := gpu.UnpackAMD(image, arch)
	require.NoError(t, err)
	return code.Data
}

func TestAMDKernels(t *testing.T) {
	object := amdObject(t, "gfx1100")
	kernels, err := AMDKernels(object, "gfx1100")
	require.NoError(t, err)
	require.Len(t, kernels, 4)
	for _, k := range kernels {
		require.Contains(t, k.Name, "ortho_")
		require.Equal(t, 256, k.Threads)
		require.Positive(t, k.VGPRs)
		require.Positive(t, k.SGPRs)
		require.NoError(t, k.Fits("gfx1100"))
	}
	_, err = AMDKernels(object, "gfx1101")
	require.EqualError(t, err, "code for amdgcn-amd-amdhsa--gfx1100, want gfx1101")
	_, err = AMDKernels([]byte("kernels"), "gfx1100")
	require.Error(t, err)

	f, err := elf.NewFile(bytes.NewReader(object))
	require.NoError(t, err)
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	dynamic := f.Section(".dynsym")
	for i, s := range symbols {
		if s.Name != kernels[0].Name+".kd" {
			continue
		}
		undefined := bytes.Clone(object)
		binary.LittleEndian.PutUint16(undefined[dynamic.Offset+24*uint64(i+1)+6:], 0)
		_, err = AMDKernels(undefined, "gfx1100")
		require.EqualError(t, err, "symbol "+s.Name+" is not defined")

		data := f.Sections[s.Section]
		modes := data.Offset + s.Value - data.Addr + descriptorModes
		for _, bit := range []uint32{12, 14, 16, 18} { // of rounding, twice, and of subnormal numbers
			other := bytes.Clone(object)
			word := binary.LittleEndian.Uint32(other[modes:])
			binary.LittleEndian.PutUint32(other[modes:], word^1<<bit)
			_, err = AMDKernels(other, "gfx1100")
			require.ErrorContains(t, err, kernels[0].Name+": modes of floats are", "bit %d", bit)
		}
	}
	for i := range object { // what is damaged gives an error or kernels, and ends
		damaged := bytes.Clone(object[:min(len(object), 4096)])
		if i >= len(damaged) {
			break
		}
		damaged[i] ^= 0xff
		_, _ = AMDKernels(append(damaged, object[len(damaged):]...), "gfx1100")
	}
}

func TestAMDFits(t *testing.T) {
	for _, test := range []struct {
		name string
		k    AMDKernel
		arch string
		want string
	}{
		{"most registers", AMDKernel{Threads: 256, VGPRs: 256, Shared: 64 << 10}, "gfx1100", ""},
		{"registers of 8 waves", AMDKernel{Threads: 1024, VGPRs: 192}, "gfx1100", ""},
		{"too many", AMDKernel{Threads: 1024, VGPRs: 193}, "gfx1100", "193 vector registers, a block of 1024 threads leaves 192"},
		{"of one wave", AMDKernel{Threads: 256, VGPRs: 512}, "gfx90a", ""},
		{"of two", AMDKernel{Threads: 512, VGPRs: 257}, "gfx90a", "leaves 256"},
		{"memory", AMDKernel{Threads: 64, Shared: 64<<10 + 1}, "gfx942", "65537 bytes of memory of a block"},
		{"threads", AMDKernel{Threads: 2048}, "gfx942", "blocks of 2048 threads"},
		{"no threads", AMDKernel{}, "gfx942", "blocks of 0 threads"},
		{"architecture", AMDKernel{Threads: 64}, "gfx906", "unknown architecture gfx906"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.k.Fits(test.arch)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestMessagePack(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 300)
	for _, test := range []struct {
		text string
		want any
	}{
		{"\x07", int64(7)},
		{"\xff", int64(-1)},
		{"\xcc\xff", int64(255)},
		{"\xcd\x01\x02", int64(258)},
		{"\xce\x00\x01\x00\x00", int64(65536)},
		{"\xcf\x00\x00\x00\x01\x00\x00\x00\x00", int64(1) << 32},
		{"\xd0\x80", int64(-128)},
		{"\xd1\xff\xfe", int64(-2)},
		{"\xd2\xff\xff\xff\xff", int64(-1)},
		{"\xd3\xff\xff\xff\xff\xff\xff\xff\xfd", int64(-3)},
		{"\xc0", nil},
		{"\xc3", true},
		{"\xa2ab", "ab"},
		{"\xd9\x02ab", "ab"},
		{"\xda\x01\x2c" + string(long), string(long)},
		{"\x92\x01\xa1x", []any{int64(1), "x"}},
		{"\xdc\x00\x01\xc2", []any{false}},
		{"\xdd\x00\x00\x00\x01\xc2", []any{false}},
		{"\x81\xa1k\x05", fields{"k": int64(5)}},
		{"\xde\x00\x01\xa1k\x05", fields{"k": int64(5)}},
		{"\xdf\x00\x00\x00\x01\xa1k\x05", fields{"k": int64(5)}},
	} {
		t.Run(test.text, func(t *testing.T) {
			p := packed{[]byte(test.text)}
			got, err := p.value(0)
			require.NoError(t, err, "%q", test.text)
			require.Equal(t, test.want, got, "%q", test.text)
			require.Empty(t, p.data)
			for n := range len(test.text) {
				p := packed{[]byte(test.text[:n])}
				_, err := p.value(0)
				require.Error(t, err, "%q", test.text[:n])
			}
		})
	}
	for _, text := range []string{"\xc1", "\xca\x00\x00\x00\x00", "\x81\x01\x02", string(bytes.Repeat([]byte{0x91}, 100))} {
		p := packed{[]byte(text)}
		_, err := p.value(0)
		require.Error(t, err, "%q", text)
	}
}
