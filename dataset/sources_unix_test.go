//go:build unix

package dataset

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/snug-ml/snug"
)

// piped returns a named pipe into which contents are written once.
func piped(t *testing.T, name, contents string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, unix.Mkfifo(path, 0o600))
	done := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, _ = f.WriteString(contents) // the reader may leave early
			err = f.Close()
		}
		done <- err
	}()
	t.Cleanup(func() { require.NoError(t, <-done) })
	return path
}

// TestPipes: a pipe is read to its end, as JSON or as text by its first bytes. A table cannot be read from one.
func TestPipes(t *testing.T) {
	o := Options{Context: 8, EOS: eos}
	for _, c := range []struct{ name, contents, want string }{
		{"63", `{"text": "one"}`, "[one§]"},
		{"63", `[{"text": "one"}]`, "[one§]"},
		{"63", "\n\ufeff" + `{"text": "one"}`, "[one§]"},
		{"63", "\ufeff\n" + `[{"text": "one"}]`, "[one§]"},
		{"63", "one two", "[one two§]"},
		{"63", "// one", "[// one§]"},
		{"63", gzipped(t, `{"text": "one"}`), "[one§]"},
		{"rows.csv", "text\none\n", "[one§]"},
	} {
		s, err := Open([]string{piped(t, c.name, c.contents)}, tok, o)
		require.NoError(t, err)
		require.Equal(t, []string{c.want}, s.learnedOf(t))
	}
	s, err := Open([]string{piped(t, "63", "question,answer\na,b\n")}, tok, o)
	require.NoError(t, err)
	require.Equal(t, []Warning{{Text: "the file is read as text, and looks like a table: a pipe has no ending; write it to a file that ends in .csv or .tsv", Rows: 1, First: "line 1"}}, s.Stats().Files[0].Warnings)
	_, err = Open([]string{piped(t, "63", table(t, []pairRow{{}}))}, tok, o)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "Parquet from a pipe")
	_, err = Open([]string{piped(t, "63", "\x00\x01\x02")}, tok, o)
	require.ErrorIs(t, err, snug.ErrCorrupt)

	for contents, want := range map[string]string{
		"<!DOCTYPE html><html>":               "what the pipe gives is a web page",
		"// comment\n" + `{"text": "one"}`:    "line 1: byte 0",
		"\n// a\n// b\n[{\"text\": \"one\"}]": "line 2",
	} {
		_, err := Open([]string{piped(t, "63", contents)}, tok, o)
		require.ErrorIs(t, err, snug.ErrCorrupt, contents)
		require.ErrorContains(t, err, want, contents)
	}

	// What never ends and is no text ends at once.
	_, err = Open([]string{"/dev/zero"}, tok, o)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	_, err = Open([]string{"-"}, tok, o)
	require.ErrorContains(t, err, "standard input is /dev/stdin")
}

// TestLinks: links to files are followed, also a link to the folder that is given. Links within a folder to other folders
// are not, and pipes in it are passed over.
func TestLinks(t *testing.T) {
	o := Options{Context: 8, EOS: eos}
	file := write(t, "one.jsonl", `{"text": "one"}`)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(file, filepath.Join(dir, "a.jsonl")))
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "loop")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "lost.jsonl")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe.jsonl"), 0o600))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, path := range []string{filepath.Join(dir, "a.jsonl"), dir, link} {
		s, err := Open([]string{path}, tok, o)
		require.NoError(t, err, path)
		require.Equal(t, []string{"[one§]"}, s.learnedOf(t))
	}
	s, err := Open([]string{dir}, tok, o)
	require.NoError(t, err)
	var why []string
	for _, f := range s.Stats().Files {
		if f.Skipped != "" {
			why = append(why, filepath.Base(f.Path)+": "+f.Skipped)
		}
	}
	require.Equal(t, []string{"loop: a link to a folder; give its name to read it", "lost.jsonl: a link that leads nowhere", "pipe.jsonl: not a regular file"}, why)
}

// TestDescriptors: a pipe by the number of its descriptor, as shells give it for <(command), is read.
func TestDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	_, err = w.Write(bytes.Repeat([]byte("one "), 3))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	s, err := Open([]string{fmt.Sprintf("/dev/fd/%d", r.Fd())}, tok, Options{Context: 8, EOS: eos})
	require.NoError(t, err)
	require.Equal(t, []string{"[one one one §]"}, s.learnedOf(t))
}
