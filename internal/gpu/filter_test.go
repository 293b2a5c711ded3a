package gpu

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

func TestWords(t *testing.T) {
	var want []byte
	for i := range 2*wordSize + 5 {
		want = append(want, byte(3*i))
	}
	got := slices.Clone(want)
	orderWords(got)
	require.Equal(t, want[1], got[0])
	require.Equal(t, want[wordSize+13], got[2*wordSize-1])
	require.Equal(t, want[2*wordSize:], got[2*wordSize:], "no whole word")
	restoreWords(got)
	require.Equal(t, want, got)
	from, to := instructions([]byte("\x7fELF"))
	require.Zero(t, to-from)

	image, err := os.ReadFile("../../amp/kernels/amp.image")
	require.NoError(t, err)
	entries(image, func(all []entry) {
		for _, e := range all {
			if e.Kind == kindCubin {
				require.Greater(t, e.Behind-e.First, e.Size/2, "instructions of %d", e.Number)
			}
		}
	})
}

func TestPTX(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"from the first of a line", "add %r10, %r9, %r8;\nadd %r11, %r10, %r9;\nadd %r11, %r11, %r1;", "add %r10, %r-1, %r-2;\nadd %r1, %r-1, %r-2;\nadd %r=, %r=, %r-10;"},
		{"letters apart", "cvt %rd3, %r5;\ncvt %rd4, %r6;\ncvt %f6, %rd4;", "cvt %rd3, %r5;\ncvt %rd1, %r6;\ncvt %f6, %rd=;"},
		{"far", "add %r100, %r40, %r41;\nadd %r101, %r42, %r99;\nadd %r102, %r70, %r100;\nadd %r103, %r41, %r69;", "add %r100, %r-60, %rA1;\nadd %r1, %rA1, %r-2;\nadd %r1, %r-32, %r-2;\nadd %r1, %rB-1, %rB-1;"},
		{"kernels begin at 0", ".visible .entry k(\nmov %r7, 1;\n.visible .entry l(\nmov %r7, 1;\n", ".visible .entry k(\nmov %r7, 1;\n.visible .entry l(\nmov %r7, 1;\n"},
		{"labels", "bra $L__BB12_3;\n$L__BB12_2:\nbra $L__BB12_3;\n$L__BB12_3:\nbra $L__BB13_2;", "bra $L__BB12_3;\n$L__BB=_2:\nbra $L__BB=_1;\n$L__BB=_1:\nbra $L__BB1_-1;"},
		{"no numbers", "%tid.x %r<100>; % %% %rd %R1 k_param_0 $L_1 \x00", "%tid.x %r<100>; % %% %rd %R1 k_param_0 $L_1 \x00"},
		{"nothing", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := packPTX([]byte(test.text))
			require.True(t, ok)
			require.Equal(t, test.want, string(got))
			again, ok := unpackPTX(make([]byte, 0, len(test.text)), got, len(test.text))
			require.True(t, ok)
			require.Equal(t, test.text, string(again))
			for _, size := range []int{len(test.text) - 1, len(test.text) + 1} {
				_, ok = unpackPTX(nil, got, size)
				require.False(t, ok, size)
			}
		})
	}
	_, ok := unpackPTX(nil, []byte("%r-"), 3)
	require.False(t, ok)
	for _, text := range []string{"%r=", "%rA5", "%r007"} { // which no compiler writes
		_, err := PackImage([]Code{{Arch: Arch{Capability: 80}, PTX: true, Data: []byte(text)}}, nil)
		require.ErrorContains(t, err, "no form with differences", text)
	}
}

// FuzzPTX finds no text that comes back as another one, and no form whose text is longer than it says.
func FuzzPTX(f *testing.F) {
	f.Add([]byte("add %r10, %r9, %r8;\nbra $L__BB3_4;\n.entry"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if image, err := PackImage([]Code{{Arch: Arch{Capability: 80}, PTX: true, Data: text}}, nil); err == nil {
			code, err := Unpack(image, 80)
			require.NoError(t, err)
			require.True(t, bytes.Equal(text, code.Data))
		}
		if out, ok := unpackPTX(nil, text, len(text)); ok {
			require.Len(t, out, len(text))
		}
	})
}

// entries returns the entries of an image, and sets them.
func entries(image []byte, change func(e []entry)) []byte {
	image = slices.Clone(image)
	index := image[imageHeader:][:imageEntry*int(image[10])]
	all := make([]entry, image[10])
	if _, err := binary.Decode(index, binary.LittleEndian, all); err != nil {
		panic(err)
	}
	change(all)
	if _, err := binary.Encode(index, binary.LittleEndian, all); err != nil {
		panic(err)
	}
	binary.LittleEndian.PutUint32(image[12:], indexSum(image[:imageHeader+len(index)]))
	return image
}

// TestWrongIndex has entries that do not fit, with a checksum that does.
func TestWrongIndex(t *testing.T) {
	var codes []Code
	for _, capability := range []int{80, 86, 90} {
		codes = append(codes, Code{Arch: Arch{Capability: capability}, Data: bytes.Repeat([]byte{byte(capability)}, 64)})
	}
	codes = append(codes, Code{Arch: Arch{Capability: 80}, PTX: true, Data: []byte(strings.Repeat("%r100\n", 8))})
	image, err := PackImage(codes, nil)
	require.NoError(t, err)
	same := entries(image, func(e []entry) {
		require.Equal(t, e[0].Offset, e[1].Offset, "one stream")
		require.Equal(t, e[0].End, e[1].Start)
		require.NotEqual(t, e[1].Offset, e[2].Offset)
		require.NotEqual(t, e[3].Size, e[3].Unpacked)
	})
	require.Equal(t, image, same)
	got, err := UnpackAll(image)
	require.NoError(t, err)
	require.Equal(t, codes, got)
	for name, change := range map[string]func(e []entry){
		"a stream outside":                func(e []entry) { e[3].Packed++ },
		"a stream too short":              func(e []entry) { e[3].Packed-- },
		"a stream behind a gap":           func(e []entry) { e[2].Offset++ },
		"a stream in another":             func(e []entry) { e[2].Offset = e[0].Offset + 1 },
		"a stream before the end of one":  func(e []entry) { e[1].End--; e[1].Size-- },
		"two lengths of a stream":         func(e []entry) { e[1].Packed++ },
		"two sums of a stream":            func(e []entry) { e[1].Sum++ },
		"two sizes of a stream":           func(e []entry) { e[1].Unpacked++ },
		"a gap in a stream":               func(e []entry) { e[1].Start++; e[1].Size-- },
		"a code from before its stream":   func(e []entry) { e[2].Start = 1; e[2].Size-- },
		"an end before the start":         func(e []entry) { e[1].End = e[1].Start - 1; e[1].Size = math.MaxUint32 },
		"an end outside":                  func(e []entry) { e[1].End++; e[1].Size++ },
		"another size than in the stream": func(e []entry) { e[0].Size-- },
		"more than LZMA can hold":         func(e []entry) { e[2].Unpacked, e[2].End, e[2].Size = 1<<31-2, 1<<31-2, 1<<31-2 },
		"more than PTX can be":            func(e []entry) { e[3].Size = 5 * e[3].End },
		"other PTX":                       func(e []entry) { e[3].Size-- },
		"instructions outside":            func(e []entry) { e[1].Behind = e[1].Size + 1 },
		"instructions from their end":     func(e []entry) { e[1].First = 1 },
		"instructions of text":            func(e []entry) { e[3].Behind = 16 },
		"no kind":                         func(e []entry) { e[0].Kind = kindAMD + 1 },
		"alone or not":                    func(e []entry) { e[0].Alone = 2 },
		"a last stream that goes on":      func(e []entry) { e[3].Unpacked++ },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := UnpackAll(entries(image, change))
			require.ErrorIs(t, err, driver.ErrDevice)
		})
	}
}

// FuzzStreams gives an error or codes, for any bytes behind checksums that are right.
func FuzzStreams(f *testing.F) {
	codes := []Code{{Arch: Arch{Capability: 80}, Data: []byte("first")}, {Arch: Arch{Capability: 86}, Data: []byte("second")},
		{Arch: Arch{Capability: 80}, PTX: true, Data: []byte("add %r100, %r40, %r41;\n")}, {AMD: "gfx90a", Data: []byte("third")}}
	image, err := PackImage(codes, nil)
	require.NoError(f, err)
	f.Add(image)
	f.Fuzz(func(t *testing.T, image []byte) {
		if len(image) < imageHeader || len(image) < imageHeader+imageEntry*int(image[10]) {
			return
		}
		_, _ = UnpackAll(entries(image, func(all []entry) {
			for i, e := range all {
				if uint64(e.Offset)+uint64(e.Packed) <= uint64(len(image)) {
					all[i].Sum = crc32c.Checksum(image[e.Offset:][:e.Packed])
				}
			}
		}))
	})
}
