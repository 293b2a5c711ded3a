package gguf_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestMetadataOfPython: a value of every type that gguf.GGUFWriter writes.
func TestMetadataOfPython(t *testing.T) {
	require.Equal(t, []gguf.Pair{
		{"general.architecture", "snug"},
		{"a.uint8", uint8(200)},
		{"a.int8", int8(-100)},
		{"a.uint16", uint16(60000)},
		{"a.int16", int16(-30000)},
		{"a.uint32", uint32(4000000000)},
		{"a.int32", int32(-2000000000)},
		{"a.uint64", uint64(1<<63 + 5)},
		{"a.int64", int64(math.MinInt64)},
		{"a.float32", float32(0.1)},
		{"a.float64", 0.1},
		{"a.bool", true},
		{"a.string", "snug ü \x00 end"},
		{"list.strings", []string{"", "a", "ｂ"}},
		{"list.int32", []int32{1, -2, 3}},
		{"list.float32", []float32{0.5, -1.25}},
		{"list.bool", []bool{true, false, true}},
		{"list.bytes", []uint8{0, 1, 255}},
	}, golden(t).Metadata())
}

// copied writes the contents of a file to another.
func copied(t *testing.T, f *gguf.File, path string) {
	t.Helper()
	w, err := gguf.Create(path, f.Metadata(), f.Tensors())
	require.NoError(t, err)
	for _, x := range f.Tensors() {
		b := bytesOf(t, f, x.Name)
		require.NoError(t, w.Write(x.Name, b[:len(b)/3]))
		require.NoError(t, w.Write(x.Name, b[len(b)/3:]))
	}
	require.NoError(t, w.Close())
}

// TestWrittenFileIsThatOfPython: a copy of its file has the same bytes.
func TestWrittenFileIsThatOfPython(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy.gguf")
	copied(t, golden(t), path)
	want, err := os.ReadFile("testdata/golden.gguf")
	require.NoError(t, err)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestClosedEarly: a writer that lacks bytes leaves what was there, and nothing else.
func TestClosedEarly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	w, err := gguf.Create(path, nil, []gguf.Tensor{{Name: "a", Type: gguf.F32, Shape: []int{2}}})
	require.NoError(t, err)
	require.NoError(t, w.Write("a", make([]byte, 4)))
	require.ErrorIs(t, w.Close(), snug.ErrConfig)
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Write("a", make([]byte, 4)), snug.ErrConfig)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestRefusedBeforeWriting: what the format or llama.cpp cannot hold is refused, with nothing written.
func TestRefusedBeforeWriting(t *testing.T) {
	long := func(n int) string { return strings.Repeat("k", n) }
	for name, c := range map[string]struct {
		metadata []gguf.Pair
		tensors  []gguf.Tensor
		is       error
		want     string
	}{
		"no key":                {[]gguf.Pair{{"", uint8(1)}}, nil, snug.ErrConfig, "a key of 0 bytes"},
		"a long key":            {[]gguf.Pair{{long(1 << 16), uint8(1)}}, nil, snug.ErrConfig, "a key of 65536 bytes"},
		"a key in Greek":        {[]gguf.Pair{{"λ", uint8(1)}}, nil, snug.ErrConfig, "ASCII"},
		"a key twice":           {[]gguf.Pair{{"a", uint8(1)}, {"a", uint8(1)}}, nil, snug.ErrConfig, "comes twice"},
		"no value":              {[]gguf.Pair{{"a", nil}}, nil, snug.ErrConfig, "Go's type <nil>"},
		"an int":                {[]gguf.Pair{{"a", 1}}, nil, snug.ErrConfig, "Go's type int,"},
		"a list of lists":       {[]gguf.Pair{{"a", [][]int32{{1}}}}, nil, snug.ErrConfig, "Go's type [][]int32"},
		"a string of any bytes": {[]gguf.Pair{{"a", "\xff"}}, nil, snug.ErrConfig, "not UTF-8"},
		"strings of any bytes":  {[]gguf.Pair{{"a", []string{"", "\xff"}}}, nil, snug.ErrConfig, "string 1"},
		"no alignment":          {[]gguf.Pair{{"general.alignment", nil}}, nil, snug.ErrConfig, "a power of two"},
		"an alignment of 24":    {[]gguf.Pair{{"general.alignment", uint32(24)}}, nil, snug.ErrConfig, "a power of two"},
		"an alignment of 2 MiB": {[]gguf.Pair{{"general.alignment", uint32(1 << 21)}}, nil, snug.ErrConfig, "up to 1048576"},
		"no name":               {nil, []gguf.Tensor{{"", gguf.F32, []int{1}}}, snug.ErrConfig, "a name of 0 bytes"},
		"a long name":           {nil, []gguf.Tensor{{long(64), gguf.F32, []int{1}}}, snug.ErrConfig, "a name of 64 bytes"},
		"a name of any bytes":   {nil, []gguf.Tensor{{"\xff", gguf.F32, []int{1}}}, snug.ErrConfig, "not UTF-8"},
		"a name twice":          {nil, []gguf.Tensor{{"a", gguf.F32, []int{1}}, {"a", gguf.F16, []int{1}}}, snug.ErrConfig, "comes twice"},
		"no shape":              {nil, []gguf.Tensor{{"a", gguf.F32, nil}}, snug.ErrShape, "1 to 4 dimensions"},
		"five dimensions":       {nil, []gguf.Tensor{{"a", gguf.F32, []int{1, 1, 1, 1, 1}}}, snug.ErrShape, "1 to 4 dimensions"},
		"a negative dimension":  {nil, []gguf.Tensor{{"a", gguf.F32, []int{-1, 2}}}, snug.ErrShape, "dimension 0 is -1"},
		"a part of a block":     {nil, []gguf.Tensor{{"a", gguf.Q8_0, []int{2, 48}}}, snug.ErrShape, "whole blocks of 32"},
		"a type of none":        {nil, []gguf.Tensor{{"a", 99, []int{1}}}, snug.ErrDType, "type 99"},
		"many elements":         {nil, []gguf.Tensor{{"a", gguf.Q4_0, []int{math.MaxInt, math.MaxInt, 32}}}, snug.ErrShape, "too many"},
		"many bytes":            {nil, []gguf.Tensor{{"a", gguf.F32, []int{1 << 30, 4, math.MaxInt32}}}, snug.ErrShape, "too many"},
		"many bytes in all":     {nil, []gguf.Tensor{{"a", gguf.F32, []int{1 << 30, 1 << 30}}, {"b", gguf.F32, []int{1 << 30, 1 << 30}}, {"c", gguf.F32, []int{1 << 30, 1 << 30}}}, snug.ErrShape, "too many"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := gguf.Create(filepath.Join(dir, "a.gguf"), c.metadata, c.tensors)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.want)
			require.True(t, strings.HasPrefix(err.Error(), "gguf: "), err)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

// TestOrderOfWriting: tensors come in their order, not more bytes than they have, and those without elements may be left out.
func TestOrderOfWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.gguf")
	w, err := gguf.Create(path, nil, []gguf.Tensor{
		{"none", gguf.Q4_K, []int{3, 0}}, {"a", gguf.F32, []int{2}}, {"empty", gguf.F32, []int{0, 7}}, {"b", gguf.Type(24), []int{5}}, {"last", gguf.F16, []int{0}},
	})
	require.NoError(t, err)
	require.ErrorIs(t, w.Write("b", make([]byte, 5)), snug.ErrConfig)
	require.ErrorIs(t, w.Write("a", make([]byte, 9)), snug.ErrShape)
	require.NoError(t, w.Write("a", []byte{1, 2, 3}))
	require.NoError(t, w.Write("a", nil))
	require.ErrorIs(t, w.Write("a", make([]byte, 6)), snug.ErrShape)
	require.NoError(t, w.Write("a", []byte{4, 5, 6, 7, 8}))
	require.NoError(t, w.Write("empty", nil))
	require.ErrorIs(t, w.Write("a", []byte{1}), snug.ErrConfig)
	require.NoError(t, w.Write("b", []byte{9, 9, 9, 9, 9}))
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())

	f, err := gguf.Open(path)
	require.NoError(t, err)
	require.Empty(t, f.Metadata())
	require.Equal(t, []int{3, 0}, f.Tensors()[0].Shape)
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, bytesOf(t, f, "a"))
	require.Equal(t, []byte{9, 9, 9, 9, 9}, bytesOf(t, f, "b"))
	require.Empty(t, bytesOf(t, f, "last"))
	part := make([]byte, 3)
	require.NoError(t, f.ReadAt("a", part, 5))
	require.Equal(t, []byte{6, 7, 8}, part)
	for _, offset := range []int64{-1, 6, 9, math.MaxInt64, math.MinInt64} {
		require.ErrorIs(t, f.ReadAt("a", part, offset), snug.ErrShape, offset)
	}
	require.NoError(t, f.ReadAt("a", nil, 8))
	require.ErrorIs(t, f.ReadAt("c", part, 0), snug.ErrConfig)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Size()%32)
	require.NoError(t, os.Truncate(path, info.Size()-40))
	require.ErrorIs(t, f.ReadAt("b", part, 0), snug.ErrCorrupt)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.ReadAt("a", part, 0), snug.ErrConfig)
	require.Len(t, f.Tensors(), 5)
}

// TestTwoWriters: one writes at a time, whether it replaces a file or not, and the next when that has ended.
func TestTwoWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.gguf")
	tensors := []gguf.Tensor{{"a", gguf.F32, []int{1}}}
	write := func(w *gguf.Writer, x byte) {
		require.NoError(t, w.Write("a", []byte{x, x, x, x}))
		require.NoError(t, w.Close())
		f, err := gguf.Open(path)
		require.NoError(t, err)
		require.Equal(t, []byte{x, x, x, x}, bytesOf(t, f, "a"))
		require.NoError(t, f.Close())
		entries, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, entries, 1)
		size, err := gguf.FileSize(nil, tensors)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, info.Size(), size)
	}
	first, err := gguf.CreateNew(path, nil, tensors)
	require.NoError(t, err)
	for _, create := range []func(string, []gguf.Pair, []gguf.Tensor) (*gguf.Writer, error){gguf.Create, gguf.CreateNew} {
		_, err = create(path, nil, tensors)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "being written")
	}
	write(first, 1)
	_, err = gguf.CreateNew(path, nil, tensors)
	require.ErrorIs(t, err, fs.ErrExist)
	second, err := gguf.Create(path, nil, tensors)
	require.NoError(t, err)
	write(second, 2)
}

// TestCreateNewKeepsWhatAppears: a file that appears at the path meanwhile stays, and nothing else is left.
func TestCreateNewKeepsWhatAppears(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.gguf")
	w, err := gguf.CreateNew(path, nil, []gguf.Tensor{{"a", gguf.F32, []int{1}}})
	require.NoError(t, err)
	require.NoError(t, w.Write("a", make([]byte, 4)))
	require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o600))
	err = w.Close()
	require.ErrorIs(t, err, fs.ErrExist)
	require.ErrorContains(t, err, path)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(got))
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// parts writes a model that is split into three files, and returns the path of each.
func parts(t *testing.T, change func(part int, metadata []gguf.Pair) []gguf.Pair) []string {
	t.Helper()
	dir := t.TempDir()
	paths := make([]string, 3)
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprintf("model-%05d-of-00003.gguf", i+1))
		metadata := []gguf.Pair{{"split.no", uint16(i)}, {"split.count", uint16(3)}, {"split.tensors.count", int32(3)}}
		if i == 0 {
			metadata = append(metadata, gguf.Pair{"general.architecture", "llama"})
		}
		if change != nil {
			metadata = change(i, metadata)
		}
		name := fmt.Sprintf("t%d", i)
		w, err := gguf.Create(paths[i], metadata, []gguf.Tensor{{name, gguf.F32, []int{i + 1}}})
		require.NoError(t, err)
		require.NoError(t, w.Write(name, bytes.Repeat([]byte{byte(i)}, 4*(i+1))))
		require.NoError(t, w.Close())
	}
	return paths
}

// TestParts: a model in several files is opened by the first of them.
func TestParts(t *testing.T) {
	paths := parts(t, nil)
	f, err := gguf.Open(paths[0])
	require.NoError(t, err)
	architecture, found := f.Value("general.architecture")
	require.True(t, found)
	require.Equal(t, "llama", architecture)
	require.Len(t, f.Tensors(), 3)
	require.Equal(t, bytes.Repeat([]byte{2}, 12), bytesOf(t, f, "t2"))
	require.NoError(t, f.Close())

	_, err = gguf.Open(paths[1])
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "not the first of the 3 files of its model, want "+paths[0])
	other := filepath.Join(filepath.Dir(paths[0]), "other.gguf")
	require.NoError(t, os.Rename(paths[0], other))
	_, err = gguf.Open(other)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "NAME-00001-of-00003.gguf")
	require.NoError(t, os.Rename(other, paths[0]))
	require.NoError(t, os.Remove(paths[2]))
	_, err = gguf.Open(paths[0])
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, paths[2])
	require.NoError(t, os.Link(paths[1], paths[2]))
	_, err = gguf.Open(paths[0])
	require.ErrorIs(t, err, snug.ErrCorrupt)

	for want, change := range map[string]func(part int, metadata []gguf.Pair) []gguf.Pair{
		"the name says 3":              func(_ int, m []gguf.Pair) []gguf.Pair { m[1].Value = uint16(2); return m },
		"want at most 10000":           func(_ int, m []gguf.Pair) []gguf.Pair { m[1].Value = uint64(1 << 40); return m },
		"split.count is a value":       func(_ int, m []gguf.Pair) []gguf.Pair { m[1].Value = "3"; return m },
		"split.no is -1":               func(_ int, m []gguf.Pair) []gguf.Pair { m[0].Value = int32(-1); return m },
		"it is part 0 of 3":            func(_ int, m []gguf.Pair) []gguf.Pair { m[0].Value = uint8(0); return m },
		"it is part 0 of 0":            func(i int, m []gguf.Pair) []gguf.Pair { return m[min(i, 1)*3:] },
		"split.tensors.count is 4":     func(_ int, m []gguf.Pair) []gguf.Pair { m[2].Value = int32(4); return m },
		"it is part 1 of 4, counted f": func(i int, m []gguf.Pair) []gguf.Pair { m[1].Value = uint16(3 + min(i, 1)); return m },
	} {
		_, err := gguf.Open(parts(t, change)[0])
		require.ErrorIs(t, err, snug.ErrCorrupt, want)
		require.ErrorContains(t, err, want)
	}
}

// TestLinksAndOtherFiles: links are followed, as in caches of downloads, and what is no regular file is refused.
func TestLinksAndOtherFiles(t *testing.T) {
	dir := t.TempDir()
	whole, err := filepath.Abs("testdata/golden.gguf")
	require.NoError(t, err)
	link := filepath.Join(dir, "link.gguf")
	if err := os.Symlink(whole, link); err != nil {
		t.Skip(err)
	}
	f, err := gguf.Open(link)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Symlink(filepath.Join(dir, "nothing"), filepath.Join(dir, "dangling.gguf")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lfs.gguf"), []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty.gguf"), nil, 0o600))
	for name, is := range map[string]error{"": snug.ErrConfig, "dangling.gguf": snug.ErrConfig, "lfs.gguf": snug.ErrCorrupt, "empty.gguf": snug.ErrCorrupt, "none.gguf": fs.ErrNotExist} {
		_, err := gguf.Open(filepath.Join(dir, name))
		require.ErrorIs(t, err, is, name)
		require.True(t, strings.HasPrefix(err.Error(), "gguf: "), err)
	}
	_, err = gguf.Create(dir, nil, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = gguf.Create(filepath.Join(dir, "none", "a.gguf"), nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestAlignments: the data begin where the alignment says.
func TestAlignments(t *testing.T) {
	for _, align := range []uint32{1, 8, 32, 256, 1 << 20} {
		path := filepath.Join(t.TempDir(), "a.gguf")
		w, err := gguf.Create(path, []gguf.Pair{{"general.alignment", align}}, []gguf.Tensor{{"a", gguf.F16, []int{3}}, {"b", gguf.F16, []int{1}}})
		require.NoError(t, err)
		require.NoError(t, w.Write("a", []byte("abcdef")))
		require.NoError(t, w.Write("b", []byte("gh")))
		require.NoError(t, w.Close())
		f, err := gguf.Open(path)
		require.NoError(t, err)
		require.Equal(t, "gh", string(bytesOf(t, f, "b")))
		require.NoError(t, f.Close())
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Zero(t, bytes.Index(b, []byte("abcdef"))%int(align))
		require.Zero(t, bytes.LastIndex(b, []byte("gh"))%int(align))
		require.Zero(t, len(b)%int(align))
	}
}

func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t, gguf.Open, gguf.Create, gguf.CreateNew, gguf.FileSize, gguf.ParseType, gguf.Type(0), gguf.Q4_K, gguf.Type(99), gguf.Tensor{}, (*gguf.Tensor)(nil), &gguf.File{}, (*gguf.File)(nil), &gguf.Writer{}, (*gguf.Writer)(nil))
}
