package dataset

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

func gzipped(t require.TestingT, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func zstded(t require.TestingT, text string, o ...zstd.EOption) string {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, o...)
	require.NoError(t, err)
	_, err = w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// table is rows in the format of Parquet.
func table[T any](t require.TestingT, rows []T, o ...parquet.WriterOption) string {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, o...)
	_, err := w.Write(rows)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

type pairRow struct {
	ID         int64   `parquet:"id"`
	Prompt     string  `parquet:"prompt,dict"`
	Completion string  `parquet:"completion"`
	Score      float64 `parquet:"score"`
}

// TestStoredForms: the same samples in lines, compressed lines and tables of every compression are the same set.
func TestStoredForms(t *testing.T) {
	var lines strings.Builder
	var rows []pairRow
	for i := range 100 {
		p := pairRow{int64(i), fmt.Sprintf("question %d é", i%7), fmt.Sprintf("answer <&> %d", i), float64(i)}
		rows = append(rows, p)
		fmt.Fprintf(&lines, "{\"prompt\": %q, \"completion\": %q, \"id\": %d}\n", p.Prompt, p.Completion, i)
	}
	o := Options{Context: 32, EOS: eos, Seed: 3, HeldOut: 0.1}
	want, err := Open([]string{write(t, "a.jsonl", lines.String())}, tok, o)
	require.NoError(t, err)
	check := func(path string) {
		t.Helper()
		got, err := Open([]string{path}, tok, o)
		require.NoError(t, err)
		require.Equal(t, want.sum(t), got.sum(t))
		require.Equal(t, want.batchesOf(t, 5, 8, 4), got.batchesOf(t, 5, 8, 4))
	}
	check(write(t, "a.jsonl.gz", gzipped(t, lines.String())))
	check(write(t, "a.jsonl.zst", zstded(t, lines.String())))
	check(write(t, "zipped.JSONL", gzipped(t, lines.String()))) // as its first bytes say
	for _, codec := range []compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Gzip, &parquet.Zstd, &parquet.Lz4Raw, &parquet.Brotli} {
		check(write(t, "a.parquet", table(t, rows, parquet.Compression(codec), parquet.MaxRowsPerRowGroup(30), parquet.PageBufferSize(200))))
	}
	check(write(t, "other name", table(t, rows, parquet.DataPageVersion(1))))

	// Folders as hubs have them, patterns, and what lies beside tables.
	folder := t.TempDir()
	for i := range 4 {
		name := filepath.Join(folder, "data", fmt.Sprintf("train-0000%d-of-00004.parquet", i))
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(table(t, rows[i*25:][:25])), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "README.md"), []byte("what it is"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, ".gitattributes"), []byte("x"), 0o600))
	check(folder)
	check(filepath.Join(folder, "data", "train-*.parquet"))
	_, err = Open([]string{filepath.Join(folder, "data", "test-*.parquet")}, tok, o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "no file has such a name")

	text, err := Open([]string{write(t, "a.txt", "# "+lines.String())}, tok, o)
	require.NoError(t, err)
	zipped, err := Open([]string{write(t, "a.txt.zst", zstded(t, "# "+lines.String()))}, tok, o)
	require.NoError(t, err)
	require.Equal(t, text.sum(t), zipped.sum(t))
}

// TestPyarrow: conversations that pyarrow stored, with columns that are not read.
func TestPyarrow(t *testing.T) {
	lines := `{"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c é"}]}
{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y <&> \u2028"}]}
{"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}
`
	o := Options{Context: 64, EOS: eos, Template: template(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}")}
	want, err := Open([]string{write(t, "a.jsonl", lines)}, tok, o)
	require.NoError(t, err)
	got, err := Open([]string{"testdata/chats.parquet"}, tok, o)
	require.NoError(t, err)
	require.Equal(t, want.sum(t), got.sum(t))
	require.Equal(t, 3, got.Stats().Samples)

	// As with an empty file of lines, a table without rows is no error beside others.
	got, err = Open([]string{"testdata/empty.parquet", "testdata/chats.parquet"}, tok, o)
	require.NoError(t, err)
	require.Equal(t, want.sum(t), got.sum(t))
	_, err = Open([]string{"testdata/empty.parquet"}, tok, o)
	require.ErrorContains(t, err, "there is no text to train on")
}

func TestStoredFormsRefused(t *testing.T) {
	type text struct {
		Text *string `parquet:"text,optional"`
	}
	one, bad := "one", "\xff"
	encrypted := func(footer bool) string {
		return table(t, []text{{&one}}, parquet.WithEncryption(&parquet.EncryptionConfig{FooterKey: make([]byte, 16), EncryptedFooter: footer}))
	}
	const wide = "\x28\xb5\x2f\xfd\x00\x90\x01\x00\x00" // a frame with a window of 2^28 bytes, and no others
	for name, c := range map[string]struct {
		file, contents string
		want           error
		says           string
	}{
		"no column":      {"a.parquet", table(t, []struct{ A, B string }{{"1", "2"}}), snug.ErrConfig, "the fields of the row are A, B, want those of a form: messages"},
		"null":           {"a.parquet", table(t, []text{{nil}}), snug.ErrConfig, "row 1: text is null, want a text or messages"},
		"other names":    {"a.parquet", table(t, []struct{ Question, Answer string }{{"1", "2"}}), snug.ErrConfig, "differ only in case or blanks from those of a form: -map question=Question,answer=Answer"},
		"not UTF-8":      {"a.parquet", table(t, []text{{&bad}}), snug.ErrCorrupt, "row 1: text: byte 0 of a string is not UTF-8"},
		"no table":       {"a.parquet", "PAR1 and something else", snug.ErrCorrupt, "does not begin and end as Parquet does"},
		"secret footer":  {"a.parquet", encrypted(true), snug.ErrConfig, "the table is encrypted"},
		"secret columns": {"a.parquet", encrypted(false), snug.ErrConfig, "the table is encrypted"},
		"empty table":    {"a.parquet", table(t, []text{}), snug.ErrConfig, "there is no text to train on"},
		"no gzip":        {"a.jsonl.gz", "\x1f\x8bnothing of it", snug.ErrCorrupt, "gzip: "},
		"wide window":    {"a.jsonl.zst", wide, snug.ErrConfig, "looks back more than"},
		"empty":          {"a.jsonl.zst", "", snug.ErrConfig, "there is no text to train on"},
		"a line in gzip": {"a.jsonl.gz", gzipped(t, "{\"text\": {}}\n"), snug.ErrConfig, "line 1: "},
	} {
		_, err := Open([]string{write(t, c.file, c.contents)}, tok, Options{Context: 8, EOS: eos})
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.says, name)
	}
	_, err := Open([]string{write(t, "a.txt.gz", gzipped(t, "words"))}, tok, Options{Context: 8, EOS: eos, Pairs: true})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestCutShort: every beginning of a compressed file is an error.
func TestCutShort(t *testing.T) {
	lines := strings.Repeat("{\"text\": \"some words\"}\n{\"text\": \"and others\"}\n", 4)
	for name, whole := range map[string]string{"a.jsonl.gz": gzipped(t, lines), "a.jsonl.zst": zstded(t, lines)} {
		for n := 4; n < len(whole); n++ {
			_, err := Open([]string{write(t, name, whole[:n])}, tok, Options{Context: 8, EOS: eos})
			require.ErrorIs(t, err, snug.ErrCorrupt, "%s of %d bytes", name, n)
		}
	}
}

// damaged opens a table with a byte that is another, which must be an error or text, and no panic.
func damaged(t *rapid.T) {
	file := []byte(table(t, []pairRow{{1, "a", "b", 1}, {2, "a", "c", 2}, {3, "d", "e", 3}}, parquet.Compression(&parquet.Zstd)))
	at := rapid.IntRange(0, len(file)-1).Draw(t, "at")
	file[at] ^= byte(1 + rapid.IntRange(0, 254).Draw(t, "bits"))
	_, err := readTable(file)
	if err != nil && !strings.Contains(err.Error(), "snug: ") {
		t.Fatalf("byte %d: an error of no kind: %v", at, err)
	}
}

func readTable(file []byte) (Stats, error) {
	r := &reader{Set: newSet(Options{Context: 8, EOS: eos}), tok: tok}
	r.begin("")
	err := r.table(bytes.NewReader(file), int64(len(file)))
	return r.stats, err
}

func TestDamagedTables(t *testing.T) { rapid.Check(t, damaged) }

// TestDamagedLZ4: a page of LZ4 that does not decompress is an error, and takes no memory without end.
func TestDamagedLZ4(t *testing.T) {
	rows := make([]pairRow, 40)
	for i := range rows {
		rows[i] = pairRow{int64(i), strings.Repeat("question ", i), strings.Repeat("answer ", i), 1}
	}
	for version := 1; version <= 2; version++ {
		whole := table(t, rows, parquet.Compression(&parquet.Lz4Raw), parquet.DataPageVersion(version), parquet.PageBufferSize(200))
		_, err := readTable([]byte(whole))
		require.NoError(t, err)
		refused, step := 0, 3
		if !kerneltest.Full() {
			step = 7
		}
		for at := 0; at < len(whole); at += step {
			file := []byte(whole)
			file[at] ^= 0x55
			if _, err := readTable(file); err != nil {
				require.ErrorContains(t, err, "snug: ")
				refused++
			}
		}
		require.Greater(t, refused, 100)
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte(table(f, []pairRow{{1, "a", "b", 1}})))
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) < 1<<16 && footerOf(bytes.NewReader(file), int64(len(file))) >= 0 {
			_, _ = readTable(file)
		}
	})
}
