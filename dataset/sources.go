package dataset

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// source is a kind of file: the names that its files have, and how they are read.
type source struct {
	name    string   // as -format has it
	endings []string // of the names of its files, in lower case
	// begins reports whether a file that begins with these bytes is of this kind; nil if the first bytes do not say.
	begins func(first []byte) bool
	// read adds the samples of a file. Rows go to [reader.take].
	read func(r *reader, in *input) error
}

// sources are the kinds of files, those that first bytes prove before the others.
var sources = []source{
	{"parquet", []string{".parquet"}, isParquet, (*reader).parquet},
	{"json", []string{".jsonl", ".json", ".ndjson", ".jsonlines"}, isJSON, (*reader).json},
	{"text", []string{".txt", ".text", ".md"}, nil, (*reader).text},
}

// input is an open file, which is read once.
type input struct {
	path string
	file *os.File
	size int64
	io.Reader
	first []byte // the bytes with which it begins, after decompression
}

// firstBytes is how many bytes of a file its kind is found by.
const firstBytes = 4096

// contents adds what an open file holds.
func (r *reader) contents(in *input) error {
	plain, done, err := decompress(in.file)
	if err != nil {
		return err
	}
	defer done()
	buffered := bufio.NewReaderSize(plain, firstBytes)
	in.first, _ = buffered.Peek(firstBytes) // an error shows again in the read
	in.Reader = buffered
	s, err := sourceOf(in.path, in.first)
	if err != nil {
		return err
	}
	r.begin(in.path)
	defer r.finish()
	return s.read(r, in)
}

// sourceOf returns the kind of a file: what its first bytes prove if its name does not contradict, or what its name says.
func sourceOf(path string, first []byte) (source, error) {
	name := strings.ToLower(path)
	for _, packed := range []string{".gz", ".zst"} {
		name = strings.TrimSuffix(name, packed)
	}
	ending := filepath.Ext(name)
	for _, s := range sources {
		if slices.Contains(s.endings, ending) {
			return s, nil
		}
	}
	for _, s := range sources {
		if s.begins != nil && s.begins(first) {
			return s, nil
		}
	}
	return source{}, fmt.Errorf("the name ends in %q, want %s: %w", ending, endings(), snug.ErrConfig)
}

// endings lists the endings of names, for errors.
func endings() string {
	var all []string
	for _, s := range sources {
		all = append(all, s.endings...)
	}
	return strings.Join(all, ", ") + ", each also with .gz or .zst"
}

// isJSON reports whether a file begins as an object or an array.
func isJSON(first []byte) bool { return strings.IndexAny(jsonStart(first), "{[") == 0 }

// jsonStart returns what comes after white space and a byte order mark.
func jsonStart(first []byte) string {
	return strings.TrimLeft(strings.TrimPrefix(string(first), "\ufeff"), " \t\r\n")
}

// json adds the rows of a file of JSON: the elements of its one array, or its objects.
func (r *reader) json(in *input) error {
	if strings.HasPrefix(jsonStart(in.first), "[") {
		return readArray(in, maxLine, r.take)
	}
	return readLines(in, maxLine, r.take)
}
