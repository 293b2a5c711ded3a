package dataset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
)

// plainValue is a value as encoding/json decodes it with UseNumber.
func plainValue(v value) any {
	switch v := v.(type) {
	case list:
		l := make([]any, len(v))
		for i := range v {
			l[i] = plainValue(v[i])
		}
		return l
	case object:
		m := map[string]any{}
		for _, x := range v {
			m[x.Name] = plainValue(x.Value)
		}
		return m
	}
	return v
}

// FuzzJSON: what the reader takes is what encoding/json reads, and what it refuses is refused there, or has a repeated name,
// half of a surrogate pair, a word that is not JSON, bytes that are not UTF-8, or is too deep.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{`{"a": 1}`, `[1.5e+3, -0, "\u00e9\ud83d\ude00\\\n", null, true, {"b": [], "": {}}]`, `{"a": NaN}`, `{"a": 1, "a": 2}`, `"\ud800"`, " \r\n\t[ ]", "-", `{"a" : "x`, "\ufeff1"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want any
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		wantErr := dec.Decode(&want)
		if wantErr == nil {
			if _, err := dec.Token(); err != io.EOF {
				wantErr = fmt.Errorf("more follows")
			}
		}
		d := newDecoder(bytes.NewReader(text), maxLine)
		got, err := d.next()
		if err == nil {
			if err = d.space(); err == nil && d.peek() >= 0 {
				err = fmt.Errorf("more follows")
			}
		}
		if wantErr == nil && err != nil {
			message := err.Error()
			ok := false
			for _, why := range []string{"comes twice", "half of a pair", "not UTF-8", "nest deeper", "is 0, as UTF-16", "more than 1024 characters"} {
				ok = ok || strings.Contains(message, why)
			}
			require.True(t, ok, "%q: %v", text, err)
			return
		}
		if err == nil && wantErr != nil {
			require.True(t, strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Infinity") || strings.Contains(string(text), "\ufeff"), "%q: %v", text, wantErr)
			return
		}
		if err == nil {
			require.True(t, reflect.DeepEqual(want, plainValue(got)), "%q: %v and %v", text, want, got)
		}
	})
}

// FuzzCSV: rows have as many fields as the first line has names, and damaged files are errors.
func FuzzCSV(f *testing.F) {
	for _, text := range []string{"a,b\n1,2\n", "a;b\n\"x\ny\";2", "\ufeffa\n\"\"\"\"", "a,b\n1", "a\n\"x"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		names := -1
		err := readCSV(bytes.NewReader(text), ',', 0, 1<<20, func(x row) error {
			if names < 0 {
				names = len(x.fields)
			}
			require.Len(t, x.fields, names)
			require.NotEmpty(t, x.at)
			return nil
		})
		if err != nil {
			require.NotContains(t, err.Error(), "runtime error")
		}
	})
}

// damage changes a file in one of the ways that disks, downloads and editors do.
func damage(rng *rand.Rand, text []byte) []byte {
	b := bytes.Clone(text)
	for range 1 + rng.IntN(3) {
		if len(b) == 0 {
			return b
		}
		at := rng.IntN(len(b))
		switch rng.IntN(8) {
		case 0:
			b = b[:at]
		case 1:
			b[at] ^= 1 << rng.IntN(8)
		case 2:
			b[at] = byte(rng.IntN(256))
		case 3:
			to := min(len(b), at+1+rng.IntN(50))
			b = append(b[:at], b[to:]...)
		case 4:
			to := min(len(b), at+1+rng.IntN(50))
			b = append(b[:to], bytes.Clone(b[at:])...)
		case 5:
			clear(b[at:min(len(b), at+rng.IntN(20))])
		case 6:
			for i := at; i < min(len(b), at+4); i++ {
				b[i] = 0xff
			}
		case 7:
			b = append(b[:at], append([]byte(`"{[,:]}\u`)[:1+rng.IntN(8)], b[at:]...)...)
		}
	}
	return b
}

// TestDamagedFiles: of a thousand damaged files of all kinds none ends in a panic, hangs, or takes more memory than it may.
func TestDamagedFiles(t *testing.T) {
	c, err := chat.Parse(tokenizer.Config{ChatTemplate: "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"}, chat.Options{})
	require.NoError(t, err)
	var lines, csv strings.Builder
	var rows []nested
	csv.WriteString("id,text\n")
	for i := range 50 {
		fmt.Fprintf(&lines, `{"id": %d, "text": "word %d \u00e9 \ud83d\ude00", "list": [1, {"a": null}]}`+"\n", i, i)
		fmt.Fprintf(&csv, "%d,\"word, \"\"%d\"\"\nmore\"\n", i, i)
		rows = append(rows, nested{Text: fmt.Sprint("word ", i%5), Words: []string{"a", "b"}})
	}
	kinds := []struct{ name, contents string }{
		{"a.jsonl", lines.String()}, {"a.json", "[" + strings.ReplaceAll(strings.TrimSpace(lines.String()), "\n", ",\n") + "]"}, {"a.csv", csv.String()},
		{"a.txt", strings.Repeat("some words é 中文.\n", 200)}, {"a.jsonl.gz", gzipped(t, lines.String())}, {"a.txt.zst", zstded(t, lines.String()[1:])},
		{"a.parquet", table(t, rows, parquet.DataPageVersion(1), parquet.Compression(&parquet.Snappy))}, {"b.parquet", table(t, rows, parquet.Compression(&parquet.Zstd))},
		{"c.parquet", table(t, rows, parquet.Compression(&parquet.Uncompressed))}, {"d.parquet", table(t, rows, parquet.Compression(&parquet.Gzip), parquet.MaxRowsPerRowGroup(7))},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	refused := 0
	const files = 1000
	for i := range files {
		k := kinds[i%len(kinds)]
		path := filepath.Join(dir, k.name)
		require.NoError(t, os.WriteFile(path, damage(rng, []byte(k.contents)), 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		s, err := Open([]string{path}, tok, Options{Context: 16, EOS: eos, Template: c, Memory: 8 << 20})
		runtime.ReadMemStats(&after)
		require.Less(t, time.Since(began), 10*time.Second)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%s, file %d: %v", k.name, i, err)
		if err != nil {
			refused++
			require.True(t, errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrConfig), err)
			require.NotContains(t, err.Error(), "runtime error")
			continue
		}
		require.NoError(t, s.Close())
	}
	require.Greater(t, refused, files/4)
}

// TestMemoryLimit: a row or a word beyond the limit is refused by its size, and one within it is read.
func TestMemoryLimit(t *testing.T) {
	long := strings.Repeat("word ", 1<<19) // 2.5 MiB
	for name, c := range map[string]struct {
		file, contents string
		memory         int64
		says           string
	}{
		"a long line":               {"a.jsonl", `{"text": "` + long + `"}`, 8 << 20, "line 1: text: the row takes more than 2097152 bytes of memory"},
		"a long line that fits":     {"a.jsonl", `{"text": "` + long + `"}`, 64 << 20, ""},
		"many values":               {"a.jsonl", `{"text": "x", "a": [` + strings.Repeat("1,", 1<<17) + `1]}`, 8 << 20, "a: the row takes more than"},
		"many names":                {"a.jsonl", `{` + manyNames(1<<15) + `, "text": "x"}`, 8 << 20, "the row takes more than"},
		"a long element":            {"a.json", `[{"text": "` + long + `"}]`, 8 << 20, "element 1: line 1: text: the row takes more than"},
		"a field without its quote": {"a.csv", "text\n\"" + long, 8 << 20, "a row of more than"},
		"a long word":               {"a.txt", strings.Repeat("é", 1<<20), 8 << 20, "have no place at which this tokenizer cuts them"},
		"a long word that fits":     {"a.txt", strings.Repeat("é", 1<<20), 64 << 20, ""},
		"a long text":               {"a.txt", long, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open([]string{write(t, c.file, c.contents)}, tok, Options{Context: 8, EOS: eos, Memory: c.memory})
			if c.says == "" {
				require.NoError(t, err, name)
				require.NoError(t, s.Close())
				return
			}
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.ErrorContains(t, err, c.says, name)
		})
	}
	last, calls := int64(0), 0
	path := write(t, "a.txt", long)
	_, err := Open([]string{path}, tok, Options{Context: 8, EOS: eos, Progress: func(name string, read, of int64) {
		require.Equal(t, path, name)
		require.Greater(t, read, last)
		require.EqualValues(t, len(long), of)
		last, calls = read, calls+1
	}})
	require.NoError(t, err)
	require.EqualValues(t, len(long), last)
	require.Greater(t, calls, 3)
}
