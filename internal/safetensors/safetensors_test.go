package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// file returns the bytes of a file of n zero bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func read(b []byte) (*Header, error) { return Read(bytes.NewReader(b), int64(len(b))) }

// verdicts returns the files of testdata/verdicts.json.
func verdicts(t testing.TB) (cases []verdict) {
	text, err := os.ReadFile("testdata/verdicts.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &cases))
	require.NotEmpty(t, cases)
	return cases
}

type verdict struct {
	Name, File string
	Accepted   bool
}

func (v verdict) bytes(t testing.TB) []byte {
	b, err := hex.DecodeString(v.File)
	require.NoError(t, err)
	return b
}

func TestVerdictsOfTheReference(t *testing.T) {
	for _, v := range verdicts(t) {
		t.Run(v.Name, func(t *testing.T) {
			h, err := read(v.bytes(t))
			if v.Accepted && whyStricter(err) == "" {
				require.NoError(t, err)
				requireSound(t, h, v.bytes(t))
				return
			}
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.Nil(t, h)
		})
	}
}

// requireSound checks all that holds of an accepted file.
func requireSound(t testing.TB, h *Header, b []byte) {
	end := int64(0)
	for i, tensor := range h.Tensors {
		n, err := Elements(tensor.Shape)
		require.NoError(t, err)
		require.Equal(t, end, tensor.Begin)
		require.Equal(t, int64(n)*Bits(tensor.DType), 8*(tensor.End-tensor.Begin))
		require.Same(t, &h.Tensors[i], h.Find(tensor.Name))
		end = tensor.End
	}
	require.Equal(t, int64(len(b)), h.Data+end)
}

// requireRoundTrip writes a header and reads it again.
func requireRoundTrip(t testing.TB, h *Header) {
	prefix, err := h.Bytes()
	require.NoError(t, err)
	require.Zero(t, len(prefix)%8)
	size := int64(len(prefix)) + h.end()
	again, err := Read(io.NewSectionReader(zeros{prefix}, 0, size), size)
	require.NoError(t, err)
	require.Equal(t, h.Tensors, again.Tensors)
	require.Equal(t, h.Metadata, again.Metadata)
}

// zeros is a file that starts with some bytes and goes on with zeros.
type zeros struct{ prefix []byte }

func (z zeros) ReadAt(b []byte, offset int64) (int, error) {
	clear(b)
	if offset < int64(len(z.prefix)) {
		copy(b, z.prefix[offset:])
	}
	return len(b), nil
}

func FuzzRead(f *testing.F) {
	for _, v := range verdicts(f) {
		f.Add(v.bytes(f))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := read(b)
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			return
		}
		requireSound(t, h, b)
		requireRoundTrip(t, h)
		sorted, err := New(h.Tensors, h.Metadata)
		require.NoError(t, err)
		requireRoundTrip(t, sorted)
	})
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"dtype":%s,"shape":%s,"data_offsets":%s}`, dtype, shape, offsets)
	}
	f32 := func(shape, offsets string) string { return entry(`"F32"`, shape, offsets) }
	tests := []struct {
		header string
		n      int
		want   string
	}{
		{`[]`, 0, `the header begins with "[", want {`},
		{"{\"\xff\":1}", 0, `the header is not UTF-8`},
		{`{"a"}`, 0, `the header is not a JSON object: invalid character '}' after object key`},
		{`{"a":{},"a":{}}`, 0, `tensor "a": no dtype`},
		{`{"a":7}`, 0, `tensor "a": "7}", want an object`},
		{`{"a":` + entry(`"F99"`, "[1]", "[0,4]") + `}`, 4, `tensor "a": dtype: "F99" is not a type of the format`},
		{`{"a":` + entry(`5`, "[1]", "[0,4]") + `}`, 4, `tensor "a": dtype: "5,\"shape\":[1],\"data_offsets\":[0,", want a string`},
		{`{"a":` + f32("3", "[0,4]") + `}`, 4, `tensor "a": "3,\"data_offsets\":[0,4]}}", want shape to be an array`},
		{`{"a":` + f32("[3,-1]", "[0,4]") + `}`, 4, `tensor "a": shape[1] is -1, want an integer of 0 or more that fits in int`},
		{`{"a":` + f32("[1]", "[0,4e0]") + `}`, 4, `tensor "a": data_offsets[1] is 4e0, want an integer of 0 or more that fits in int64`},
		{`{"a":` + f32("[1]", "[0,4,4]") + `}`, 4, `tensor "a": 3 data_offsets, want 2`},
		{`{"a":` + f32("[1]", "[4,0]") + `}`, 4, `tensor "a": data_offsets [4 0] begin after their end`},
		{`{"a":` + f32("[3]", "[0,4]") + `}`, 4, `tensor "a": bytes 0 to 4, want the 12 of its type and shape`},
		{`{"a":` + entry(`"F4"`, "[1]", "[0,1]") + `}`, 1, `tensor "a": 1 elements of 4 bits are not whole bytes`},
		{`{"a":` + f32("[1]", "[0,4]") + `,"b":` + f32("[1]", "[3,7]") + `}`, 7, `tensor "b": bytes 3 to 7 overlap the bytes of "a", which end at 4`},
		{`{"a":` + f32("[1]", "[5,9]") + `}`, 9, `tensor "a": bytes 5 to 9, a hole of 5 before them`},
		{`{"a":` + f32("[1]", "[0,4]") + `}`, 3, `3 bytes of data, want the 4 of the tensors`},
		{`{"a":` + f32("[1]", "[0,4]") + `}`, 9, `9 bytes of data, want the 4 of the tensors`},
		{`{"a":` + f32("[1]", "[0,4]") + `,"a":` + f32("[1]", "[0,4]") + `}`, 4, `key "a" comes twice in the header`},
		{`{"__metadata__":{"a":1}}`, 0, `__metadata__: key "a": "1}}", want a string`},
		{`{"__metadata__":null,"__metadata__":null}`, 0, `key "__metadata__" comes twice in the header`},
		{`{"a":{"x":"\ud800"}}`, 0, `tensor "a": half of a surrogate pair in the string \ud800`},
		{`{"a":{"x":-1e999}}`, 0, `tensor "a": the number -1e999 is out of range`},
		{`{"a":{"x":` + strings.Repeat("[", 126) + strings.Repeat("]", 126) + `}}`, 0, `tensor "a": values that nest deeper than 127`},
		{`{"\ud800":` + f32("[1]", "[0,4]") + `}`, 4, `half of a surrogate pair in the string \ud800`},
	}
	for _, test := range tests {
		_, err := read(file(test.header, test.n))
		require.EqualError(t, err, test.want+": "+snug.ErrCorrupt.Error(), test.header)
	}
	product := fmt.Sprintf("[%d,3]", math.MaxInt/2)
	_, err := read(file(`{"a":`+f32(product, "[0,4]")+`}`, 4))
	require.ErrorContains(t, err, fmt.Sprintf("a shape of more than %d elements", math.MaxInt))
	_, err = Read(bytes.NewReader(nil), 3)
	require.ErrorContains(t, err, "3 bytes, want at least the 8 of the header's length")
}

func TestStringsAndOrder(t *testing.T) {
	h, err := read(file(`{ "\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t" : {"data_offsets":[2,6],"dtype":"F32","shape":[ 1 ]},
		"empty":{"dtype":"F64","shape":[9,0],"data_offsets":[2,2]}, "first":{"dtype":"I16","shape":[],"data_offsets":[0,2],"x":{"y":["]}"]}},
		"__metadata__":{"k":"\u0041é"} } `, 6))
	require.NoError(t, err)
	require.Equal(t, []Tensor{
		{"first", "I16", []int{}, 0, 2},
		{"empty", "F64", []int{9, 0}, 2, 2},
		{"é😀\"\\/\b\f\n\r\t", "F32", []int{1}, 2, 6},
	}, h.Tensors)
	require.Equal(t, map[string]string{"k": "Aé"}, h.Metadata)
	require.Nil(t, h.Find("second"))
	requireRoundTrip(t, h)
}

// TestParsingMemory has headers that hold as much as their bytes can say.
func TestParsingMemory(t *testing.T) {
	const size = 1 << 20
	fill := func(before string, item func(i int) string, after string) string {
		var b strings.Builder
		b.WriteString(before)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(item(i))
		}
		return b.String() + after
	}
	shape := func(dims string) string { return `{"a":{"dtype":"U8","shape":[` + dims + `],"data_offsets":[0,1]}}` }
	for name, header := range map[string]string{
		"tensors": fill(`{`, func(i int) string {
			return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
		}, `}`),
		"metadata":      fill(`{"__metadata__":{`, func(i int) string { return fmt.Sprintf(`"%x":""`, i) }, `}}`),
		"shape":         shape(fill("", func(int) string { return "1" }, "")),
		"long number":   shape(strings.Repeat("9", size)),
		"depth":         `{"a":` + strings.Repeat("[", size) + strings.Repeat("]", size) + `}`,
		"unknown depth": `{"a":{"x":` + strings.Repeat(`{"":`, size/4) + "1" + strings.Repeat("}", size/4) + `}}`,
		"unknown":       fill(`{"a":{"x":[`, func(int) string { return `{}` }, `]}}`),
		"escapes":       `{"` + strings.Repeat(`\u0001`, size/6) + `":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			b := file(header, 0)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := read(b)
			runtime.ReadMemStats(&after)
			require.True(t, err == nil || errors.Is(err, snug.ErrCorrupt), err)
			factor := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(b))
			t.Logf("%.1f bytes for a byte, %.60v", factor, err)
			require.Less(t, factor, 40.0)
		})
	}
}

// TestHeaderIsReadOnly has a long file, of which only the header may be read, and
// a length that must not be allocated.
func TestHeaderIsReadOnly(t *testing.T) {
	const n = 1 << 40
	text := fmt.Sprintf(`{"a":{"dtype":"U8","shape":[%d,%d],"data_offsets":[0,%d]}}`, 1<<20, 1<<10, 1<<30)
	b := file(text, 0)
	h, err := Read(limited{bytes.NewReader(b), int64(len(b))}, int64(len(b))+1<<30)
	require.NoError(t, err)
	require.Equal(t, int64(len(b)), h.Data)
	require.Equal(t, int64(1<<30), h.Tensors[0].End)

	broken := errors.New("broken")
	_, err = Read(failing{broken}, n)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, snug.ErrCorrupt)
	for cut := range b {
		_, err = Read(bytes.NewReader(b[:cut]), n)
		require.ErrorIs(t, err, snug.ErrCorrupt, cut)
	}
	require.Less(t, testing.AllocsPerRun(1, func() {
		_, err = read(append(binary.LittleEndian.AppendUint64(nil, MaxHeader), '{'))
	}), 20.0)
	require.ErrorContains(t, err, "the header's length is 100000000 bytes, only 1 follow")
}

type limited struct {
	io.ReaderAt
	end int64
}

func (l limited) ReadAt(b []byte, offset int64) (int, error) {
	if offset+int64(len(b)) > l.end {
		panic("data were read")
	}
	return l.ReaderAt.ReadAt(b, offset)
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func TestNewErrors(t *testing.T) {
	tests := []struct {
		name     string
		tensors  []Tensor
		metadata map[string]string
		want     error
	}{
		{"twice", []Tensor{{Name: "a", DType: "F32"}, {Name: "a", DType: "F16"}}, nil, snug.ErrConfig},
		{"the name of metadata", []Tensor{{Name: metadataKey, DType: "F32"}}, nil, snug.ErrConfig},
		{"a name that is not UTF-8", []Tensor{{Name: "\xff", DType: "F32"}}, nil, snug.ErrConfig},
		{"metadata that is not UTF-8", nil, map[string]string{"a": "\xff"}, snug.ErrConfig},
		{"type", []Tensor{{Name: "a", DType: "f32"}}, nil, snug.ErrDType},
		{"negative", []Tensor{{Name: "a", DType: "F32", Shape: []int{-1}}}, nil, snug.ErrShape},
		{"elements", []Tensor{{Name: "a", DType: "F32", Shape: []int{math.MaxInt, 2}}}, nil, snug.ErrShape},
		{"half a byte", []Tensor{{Name: "a", DType: "F4", Shape: []int{3}}}, nil, snug.ErrShape},
	}
	for _, test := range tests {
		_, err := New(test.tensors, test.metadata)
		require.ErrorIs(t, err, test.want, test.name)
	}
	if math.MaxInt > math.MaxInt32 {
		_, err := New([]Tensor{{Name: "a", DType: "F32", Shape: []int{math.MaxInt / 16}}}, nil)
		require.ErrorIs(t, err, snug.ErrShape, "bits")
		half := Tensor{Name: "a", DType: "U8", Shape: []int{math.MaxInt / 8}}
		var many []Tensor
		for i := range 9 {
			half.Name = fmt.Sprint(i)
			many = append(many, half)
		}
		_, err = New(many, nil)
		require.ErrorIs(t, err, snug.ErrShape, "bytes of all")
	}
	if !kerneltest.Full() {
		return // the rest takes a header of 100 MB
	}
	h, err := New([]Tensor{{Name: strings.Repeat("a", MaxHeader), DType: "F32"}}, nil)
	require.NoError(t, err)
	_, err = h.Bytes()
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestGoldenHeaders has the files that the reference implementation wrote: their
// headers are written as it did.
func TestGoldenHeaders(t *testing.T) {
	for _, name := range []string{"floats", "halves", "types"} {
		b, err := os.ReadFile("../../amp/testdata/safetensors/" + name + ".safetensors")
		require.NoError(t, err)
		h, err := read(b)
		require.NoError(t, err)
		shuffled := slices.Clone(h.Tensors)
		slices.Reverse(shuffled)
		sorted, err := New(shuffled, h.Metadata)
		require.NoError(t, err)
		require.Equal(t, h.Tensors, sorted.Tensors)
		prefix, err := sorted.Bytes()
		require.NoError(t, err)
		require.Equal(t, string(b[:h.Data]), string(prefix))
	}
}

// TestWhatIsNoFileOfWeights: what downloads leave in the place of weights is named, not taken for a length.
func TestWhatIsNoFileOfWeights(t *testing.T) {
	for text, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n": "the file is a pointer of Git LFS",
		"<!DOCTYPE html>\n<html><head></head></html>":                         "the file is a web page",
		"Access to model a/b is restricted.":                                  "the file has the answer of a server",
		"":                                                                    "the file is empty: download it again",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := Read(strings.NewReader(text), int64(len(text)))
			require.ErrorIs(t, err, snug.ErrCorrupt, text)
			require.ErrorContains(t, err, want)
		})
	}
	for _, begin := range []byte("<{vA/#") { // lengths that begin as such a text does
		text := "{}" + strings.Repeat(" ", int(begin)-2)
		h, err := read(file(text, 0))
		require.NoError(t, err, "%c", begin)
		require.Empty(t, h.Tensors)
	}
}
