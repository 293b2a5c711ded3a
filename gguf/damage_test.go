package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// small returns the bytes of a file with values of several types and four tensors.
func small(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.gguf")
	w, err := Create(path, []Pair{
		{"general.architecture", "llama"}, {"general.alignment", uint32(64)}, {"a.bool", true}, {"a.list", []string{"one", "two"}}, {"a.numbers", []int32{1, 2, 3}},
	}, []Tensor{{"a", F32, []int{3}}, {"b", Q8_0, []int{2, 64}}, {"none", F16, []int{0, 5}}, {"c", Q4_K, []int{1, 1, 256}}})
	require.NoError(t, err)
	for _, e := range w.entries {
		if e.bytes > 0 {
			require.NoError(t, w.Write(e.Name, bytes.Repeat([]byte{7}, int(e.bytes))))
		}
	}
	require.NoError(t, w.Close())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func parse(b []byte) (*contents, error) { return readContents(bytes.NewReader(b), int64(len(b))) }

// TestDamagedFiles: a file that says what is not so.
func TestDamagedFiles(t *testing.T) {
	whole := small(t)
	at := func(text string, after int) int { // the first byte after a text, and more
		i := bytes.Index(whole, []byte(text))
		require.GreaterOrEqual(t, i, 0)
		return i + len(text) + after
	}
	u32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	u64 := func(at int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[at:], v); return b }
	}
	replaced := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(new), 1) }
	}
	tensorB := at("\x01\x00\x00\x00\x00\x00\x00\x00b", 0) // its dimensions, their lengths, its type, its offset
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		want   string
	}{
		"nothing":               {func([]byte) []byte { return nil }, "begins with \"\""},
		"another file":          {replaced("GGUF", "GGML"), `begins with "GGML`},
		"a web page":            {func([]byte) []byte { return []byte("<!DOCTYPE html><html>") }, "web page"},
		"big-endian":            {u32(4, 3<<24), "other order of bytes"},
		"version 1":             {u32(4, 1), "version 1"},
		"version 4":             {u32(4, 4), "version 4"},
		"many tensors":          {u64(8, math.MaxUint64), "18446744073709551615 values"},
		"a tensor more":         {u64(8, 5), "tensor 4 of 5, \"\": a name of 0 bytes"},
		"many pairs":            {u64(16, 1<<40), "1099511627776 values"},
		"a pair more":           {u64(16, 6), "tensor 0 of 4, \"\": a name of 0 bytes"},
		"a long key":            {u64(24, 1<<62), "a string"},
		"no key":                {u64(24, 0), "a key of 0 bytes"},
		"a key twice":           {replaced("a.list", "a.bool"), `"a.bool" comes twice`},
		"a value of no type":    {u32(at("general.architecture", 0), 13), "a value of type 13"},
		"an array of arrays":    {u32(at("a.list", 4), 9), "a value of type 9"},
		"a long array":          {u64(at("a.numbers", 8), 1<<61), "values of at least 4 bytes"},
		"a long list":           {u64(at("a.list", 8), math.MaxUint64), "values of at least 8 bytes"},
		"a long string":         {u64(at("general.architecture", 4), math.MaxUint64), "a string"},
		"a bool of 2":           {func(b []byte) []byte { b[at("a.bool", 4)] = 2; return b }, "a bool of 2"},
		"alignment of another":  {u32(at("general.alignment", 0), 5), "general.alignment is 64 of type int32"},
		"alignment of 0":        {u32(at("general.alignment", 4), 0), "general.alignment is 0"},
		"alignment of 48":       {u32(at("general.alignment", 4), 48), "power of two"},
		"alignment of 128":      {u32(at("general.alignment", 4), 128), "begins at byte 64 of the data, want 128"},
		"alignment of 2 GiB":    {u32(at("general.alignment", 4), 1<<31), "the file has"},
		"many dimensions":       {u32(tensorB, 5), "5 dimensions"},
		"a long dimension":      {u64(tensorB+4, math.MaxUint64), "a dimension"},
		"a row of part blocks":  {u64(tensorB+4, 48), "whole blocks of 32"},
		"many elements":         {u64(tensorB+12, math.MaxInt64/32), "too many bytes"},
		"elements beyond bytes": {u64(tensorB+12, 1<<40), "the file has"},
		"a type of a future":    {u32(tensorB+20, 99), "type 99 is not one of ggml's"},
		"a removed type":        {u32(tensorB+20, 4), "type 4 is not one of ggml's"},
		"an offset too large":   {u64(tensorB+24, math.MaxUint64), "an offset of"},
		"an offset of another":  {u64(tensorB+24, 0), "begins at byte 0 of the data, want 64"},
		"a name twice":          {func(b []byte) []byte { b[tensorB-1] = 'a'; return b }, "comes twice"},
		"a long name":           {u64(tensorB-9, 70000), "a string"},
		"the last byte missing": {func(b []byte) []byte { return b[:len(b)-112-1] }, `tensor "c" of 144 bytes`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.damage(bytes.Clone(whole)))
			require.ErrorIs(t, err, snug.ErrCorrupt)
			if math.MaxInt == math.MaxInt32 && strings.Contains(name, "elements") {
				c.want = "a dimension of"
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestTruncatedFiles: every beginning of a file is refused, and the padding of the last tensor may be missing.
func TestTruncatedFiles(t *testing.T) {
	whole := small(t)
	c, err := parse(whole)
	require.NoError(t, err)
	last := c.tensors[len(c.tensors)-1]
	for n := range len(whole) {
		_, err := parse(whole[:n])
		if int64(n) >= last.offset+last.bytes {
			require.NoError(t, err, n)
			continue
		}
		require.ErrorIs(t, err, snug.ErrCorrupt, n)
	}
}

// TestMutatedFiles: files with changed bytes are read or refused, without a panic and without more memory than a few times the
// file.
func TestMutatedFiles(t *testing.T) {
	whole := small(t)
	rng := rand.New(rand.NewPCG(1, 2))
	read := 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range 20_000 {
		b := bytes.Clone(whole)
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(b))
			switch rng.IntN(4) {
			case 0:
				b[at] ^= 1 << rng.IntN(8)
			case 1:
				b[at] = byte(rng.Uint32())
			case 2:
				b = append(b[:at], b[at+rng.IntN(min(9, len(b)-at)):]...)
			case 3:
				for k := at; k < min(at+8, len(b)); k++ {
					b[k] = 0xff
				}
			}
		}
		c, err := parse(b)
		if i%100 == 99 {
			runtime.ReadMemStats(&after)
			require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(100*20*len(whole)), "mutations up to %d", i)
			before = after
		}
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt, "mutation %d", i)
			continue
		}
		read++
		for _, e := range c.tensors {
			require.True(t, e.offset >= 0 && e.bytes >= 0 && e.offset+e.bytes <= int64(len(b)), "mutation %d", i)
		}
	}
	require.Greater(t, read, 100)
	require.Less(t, read, 19_000)
}

// TestHugeCountsTakeNoMemory: arrays that would be larger than memory, in a file that is as large as they say, stop at the limit
// of a header.
func TestHugeCountsTakeNoMemory(t *testing.T) {
	b := binary.LittleEndian.AppendUint32([]byte(magic), version)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = appendString(b, "a")
	b = binary.LittleEndian.AppendUint32(b, arrayKind)
	b = binary.LittleEndian.AppendUint32(b, 10)
	b = binary.LittleEndian.AppendUint64(b, 1<<37)
	path := filepath.Join(t.TempDir(), "huge.gguf")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	if err := os.Truncate(path, 1<<41); err != nil {
		t.Skip(err) // no sparse files of this size
	}
	_, err := Open(path)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "header of at most 268435456")
}

// TestOldVersion: a file of version 2 differs in its number alone.
func TestOldVersion(t *testing.T) {
	b := small(t)
	b[4] = 2
	c, err := parse(b)
	require.NoError(t, err)
	require.Len(t, c.tensors, 4)
	require.Equal(t, []int{2, 64}, c.tensors[1].Shape)
	require.Zero(t, c.tensors[1].offset%64)
}

// FuzzOpen reads any bytes.
func FuzzOpen(f *testing.F) {
	f.Add(small(f))
	f.Add([]byte(magic + "\x03\x00\x00\x00" + strings.Repeat("\x00", 16)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parse(b)
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			return
		}
		for _, e := range c.tensors {
			require.True(t, e.offset >= 0 && e.bytes >= 0 && e.offset <= int64(len(b))-e.bytes, e.Name)
		}
	})
}
