package gpu_test

import (
	"bytes"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

// toyCodes returns a code for each architecture, whose text is its name many times.
func toyCodes(t testing.TB, ptx string, archs ...string) []gpu.Code {
	t.Helper()
	var codes []gpu.Code
	add := func(arch string, text bool) {
		a, err := gpu.ParseArch(arch)
		require.NoError(t, err)
		c := gpu.Code{Arch: a, PTX: text}
		c.Data = bytes.Repeat([]byte(c.String()+"\n"), 10)
		codes = append(codes, c)
	}
	for _, arch := range archs {
		add(arch, false)
	}
	if ptx != "" {
		add(ptx, true)
	}
	return codes
}

func pack(t testing.TB, codes []gpu.Code) []byte {
	t.Helper()
	image, err := gpu.PackImage(codes, nil)
	require.NoError(t, err)
	return image
}

func TestUnpack(t *testing.T) {
	three := pack(t, toyCodes(t, "80", "80", "86", "90"))
	six := pack(t, toyCodes(t, "80", "120", "100", "90", "90a", "86", "80"))
	alone := pack(t, toyCodes(t, "", "90a"))
	const refused = ""
	for _, test := range []struct {
		name       string
		image      []byte
		capability int
		want       string
	}{
		{"too old", three, 75, refused},
		{"8.0", three, 80, "sm_80"},
		{"8.6", three, 86, "sm_86"},
		{"8.7 runs 8.6", three, 87, "sm_86"},
		{"8.9 runs 8.6", three, 89, "sm_86"},
		{"9.0", three, 90, "sm_90"},
		{"10.0 has PTX", three, 100, "PTX of compute_80"},
		{"12.0 has PTX", three, 120, "PTX of compute_80"},
		{"9.0 with what is for it alone", six, 90, "sm_90a"},
		{"9.1 not with what is for 9.0 alone", six, 91, "sm_90"},
		{"10.0", six, 100, "sm_100"},
		{"10.3", six, 103, "sm_100"},
		{"11.0 has PTX", six, 110, "PTX of compute_80"},
		{"12.0", six, 120, "sm_120"},
		{"12.1", six, 121, "sm_120"},
		{"8.9 with kernels for 9.0 alone", alone, 89, refused},
		{"9.0 with kernels for 9.0 alone", alone, 90, "sm_90a"},
		{"10.0 with kernels for 9.0 alone", alone, 100, refused},
		{"no PTX", pack(t, toyCodes(t, "", "80", "86")), 90, refused},
		{"newer PTX", pack(t, toyCodes(t, "90", "80")), 86, "sm_80"},
		{"PTX for one alone", pack(t, toyCodes(t, "90a")), 100, refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, err := gpu.Unpack(test.image, test.capability)
			if test.want == refused {
				require.ErrorIs(t, err, driver.ErrNotBuilt)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, code.String())
			require.Equal(t, bytes.Repeat([]byte(test.want+"\n"), 10), code.Data)
			require.Zero(t, code.Data[:len(code.Data)+1][len(code.Data)], "the zero byte after it")
		})
	}
	_, err := gpu.Unpack(alone, 100)
	require.EqualError(t, err, "no code for compute capability 10.0, only sm_90a: "+driver.ErrNotBuilt.Error())
}

func TestUnpackAll(t *testing.T) {
	codes := toyCodes(t, "80", "80", "90a", "120")
	codes = append(codes, gpu.Code{Arch: gpu.Arch{Capability: 80}, Data: []byte{}})
	image := pack(t, codes)
	got, err := gpu.UnpackAll(image)
	require.NoError(t, err)
	require.Equal(t, codes, got)
	require.Equal(t, image, pack(t, codes), "the same bytes again")
}

// TestDamagedImage flips every byte and bit of an image, and cuts it everywhere: what comes out is
// an error or, if another code was hit, the right one.
func TestDamagedImage(t *testing.T) {
	codes := toyCodes(t, "80", "80", "86", "90")
	image := pack(t, codes)
	check := func(damaged []byte, what string, at int) {
		for _, capability := range []int{80, 90, 120} {
			want, err := gpu.Unpack(image, capability)
			require.NoError(t, err)
			got, err := gpu.Unpack(damaged, capability)
			if err == nil && !bytes.Equal(want.Data, got.Data) {
				t.Fatalf("%s %d: %d.x got %v", what, at, capability/10, got)
			}
		}
		_, err := gpu.UnpackAll(damaged)
		require.ErrorIs(t, err, driver.ErrDevice, "%s %d", what, at)
	}
	for i := range image {
		for bit := range 8 {
			damaged := bytes.Clone(image)
			damaged[i] ^= 1 << bit
			check(damaged, "byte", i)
		}
		damaged := bytes.Clone(image)
		damaged[i] ^= 0xff
		check(damaged, "byte", i)
		check(image[:i:i], "cut at", i)
	}
	check(append(bytes.Clone(image), 0), "longer by", 1)
}

// FuzzUnpack gives an error or a code, for any bytes.
func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, toyCodes(f, "80", "80", "90a")), 90)
	f.Add([]byte("snug\x00gpu"), 80)
	f.Fuzz(func(t *testing.T, image []byte, capability int) {
		if c, err := gpu.Unpack(image, capability); err == nil && c.Data == nil {
			t.Fatal("no code and no error")
		}
	})
}

// toyAMD returns a code object for each architecture, whose text is its name many times.
func toyAMD(archs ...string) []gpu.Code {
	var codes []gpu.Code
	for _, arch := range archs {
		codes = append(codes, gpu.Code{AMD: arch, Data: bytes.Repeat([]byte(arch+"\n"), 10)})
	}
	return codes
}

func TestUnpackAMD(t *testing.T) {
	archs := []string{"gfx90a", "gfx942", "gfx1100", "gfx1201"}
	codes := toyAMD(archs...)
	image := pack(t, codes)
	for i, arch := range archs {
		code, err := gpu.UnpackAMD(image, arch)
		require.NoError(t, err)
		require.Equal(t, arch, code.String())
		require.Equal(t, codes[i], code)
	}
	all, err := gpu.UnpackAll(image)
	require.NoError(t, err)
	require.Equal(t, codes, all)
	for _, arch := range []string{"", "gfx", "gfx90", "gfx906", "gfx1101", "gfx90a:xnack+", "90a", "gfx90A"} {
		_, err = gpu.UnpackAMD(image, arch)
		require.ErrorIs(t, err, driver.ErrNotBuilt, arch)
	}
	require.EqualError(t, err, "no code for gfx90A, only gfx90a, gfx942, gfx1100, gfx1201: "+driver.ErrNotBuilt.Error())
	_, err = gpu.Unpack(image, 90)
	require.ErrorIs(t, err, driver.ErrNotBuilt, "of NVIDIA")
	_, _, err = gpu.UnpackPTX(image, 90, "toy")
	require.ErrorIs(t, err, driver.ErrNotBuilt, "of NVIDIA")
	_, err = gpu.UnpackAMD(pack(t, toyCodes(t, "80", "90")), "gfx90")
	require.ErrorIs(t, err, driver.ErrNotBuilt, "of NVIDIA")
	_, err = gpu.UnpackAMD([]byte("\x7fELF"), "gfx90a")
	require.ErrorIs(t, err, driver.ErrDevice)
	for i := range image {
		damaged := bytes.Clone(image)
		damaged[i] ^= 0x40
		if code, err := gpu.UnpackAMD(damaged, "gfx1100"); err == nil {
			require.Equal(t, codes[2], code, "byte %d", i)
		}
	}
	for _, arch := range []string{"90a", "gfx", "gfx9-generic", "gfx90A", "gfx012", "gfx10000", "gfx1"} {
		_, err := gpu.PackImage(toyAMD(arch), nil)
		require.ErrorContains(t, err, "does not fit an image", arch)
	}
}

func TestPackImageErrors(t *testing.T) {
	_, err := gpu.PackImage(nil, nil)
	require.ErrorContains(t, err, "0 codes")
	_, err = gpu.PackImage([]gpu.Code{{Arch: gpu.Arch{Capability: 1 << 16}}}, nil)
	require.ErrorContains(t, err, "sm_65536 of 0 bytes does not fit")
	for _, arch := range []string{"", "a", "9", "90b", "-80", "65536", "90aa"} {
		_, err := gpu.ParseArch(arch)
		require.ErrorContains(t, err, "want a number such as 80 or 90a", arch)
	}
}

// TestUnpackPTX finds the part that has a kernel, and no part that has a longer name alone.
func TestUnpackPTX(t *testing.T) {
	code := func(capability int, text string) gpu.Code {
		return gpu.Code{Arch: gpu.Arch{Capability: capability}, PTX: true, Data: []byte(text)}
	}
	parts := []gpu.Code{code(80, ".visible .entry toy_sum(\n"), code(80, ".visible .entry toy_summary(\n"), code(120, ".visible .entry toy(\n")}
	image, err := gpu.PackImage(append([]gpu.Code{{Arch: gpu.Arch{Capability: 80}, Data: []byte("cubin")}}, parts...), nil)
	require.NoError(t, err)
	for i, kernel := range []string{"toy_sum", "toy_summary", "toy"} {
		got, part, err := gpu.UnpackPTX(image, 120, kernel)
		require.NoError(t, err)
		require.Equal(t, parts[i], got)
		require.Equal(t, i, part)
	}
	for _, kernel := range []string{"toy", "toy_su", ""} {
		_, _, err = gpu.UnpackPTX(image, 100, kernel)
		require.ErrorIs(t, err, driver.ErrNotBuilt, kernel)
	}
	one, err := gpu.PackImage(parts[:1], nil)
	require.NoError(t, err)
	_, _, err = gpu.UnpackPTX(one, 90, "other")
	require.NoError(t, err, "the driver says that there is no such kernel")
	_, _, err = gpu.UnpackPTX(one, 75, "toy_sum")
	require.ErrorIs(t, err, driver.ErrNotBuilt)
	_, _, err = gpu.UnpackPTX([]byte("FATB"), 80, "toy_sum")
	require.ErrorIs(t, err, driver.ErrDevice)
	for i := range image {
		damaged := bytes.Clone(image)
		damaged[i] ^= 0x40
		got, _, err := gpu.UnpackPTX(damaged, 120, "toy")
		if err == nil {
			require.Equal(t, parts[2], got, "byte %d", i)
		}
	}
}
