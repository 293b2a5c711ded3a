package dataset

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// source is a kind of file: the names that its files have, and how they are read.
type source struct {
	name    string
	endings []string // of the names of its files, in lower case
	text    bool     // its files are text, in UTF-8
	// read adds the samples of a file. Rows go to [reader.take].
	read func(r *reader, in *input) error
}

// sources are the kinds of files. Of a folder, the files of the first kind that is there are read.
var sources = []source{
	{"Parquet", []string{".parquet"}, false, (*reader).parquet},
	{"JSON", []string{".jsonl", ".json", ".ndjson", ".jsonlines"}, true, (*reader).json},
	{"CSV", []string{".csv", ".tsv"}, true, (*reader).csv},
	{"text", []string{
		".txt", ".text", ".md", ".markdown", ".rst", ".org", ".adoc", ".tex",
		".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".hs", ".java", ".jl", ".js", ".kt", ".lua", ".php", ".pl", ".py", ".r", ".rb", ".rs",
		".scala", ".sh", ".sql", ".swift", ".ts",
	}, true, (*reader).text},
}

// packings are the endings of compressed files, which are known by their first bytes.
var packings = []string{".gz", ".gzip", ".zst", ".zstd"}

// remedies say what to do with files that people give as data and that are not read, by the endings of their names.
var remedies = map[string]string{
	".arrow": "a table of Arrow, as save_to_disk writes it: write it with to_parquet or to_json", ".feather": "a table of Arrow: write it as Parquet",
	".xlsx": "a spreadsheet: save it as CSV", ".xls": "a spreadsheet: save it as CSV", ".ods": "a spreadsheet: save it as CSV",
	".pdf": "a document: extract its text", ".docx": "a document: save it as text", ".doc": "a document: save it as text", ".epub": "a book: extract its text",
	".html": "a web page: extract its text, or give it the ending .txt", ".htm": "a web page: extract its text, or give it the ending .txt",
	".zip": "an archive: unpack it, and give the folder", ".tar": "an archive: unpack it, and give the folder", ".tgz": "an archive: unpack it, and give the folder", ".7z": "an archive: unpack it, and give the folder", ".rar": "an archive: unpack it, and give the folder",
	".bz2": "compressed by bzip2: unpack it, or compress it by gzip or zstd", ".xz": "compressed by xz: unpack it, or compress it by gzip or zstd", ".lz4": "compressed by lz4: unpack it, or compress it by gzip or zstd",
	".yaml": "YAML: write it as JSON", ".yml": "YAML: write it as JSON", ".xml": "XML: extract its text, or write it as JSON",
	".pkl": "a pickle of Python: write it as JSON", ".pt": "tensors: text is wanted", ".npy": "an array: text is wanted", ".npz": "arrays: text is wanted", ".bin": "binary: text is wanted",
	".db": "a database: write its table as CSV", ".sqlite": "a database: write its table as CSV", ".sqlite3": "a database: write its table as CSV", ".avro": "Avro: write it as Parquet", ".orc": "ORC: write it as Parquet",
}

// input is an open file, which is read once.
type input struct {
	path   string
	file   *os.File
	size   int64 // -1 for a pipe
	packed bool  // the file is compressed as a whole
	io.Reader
	first []byte // the bytes with which it begins, after decompression
}

// firstBytes is how many bytes of a file its kind is found by.
const firstBytes = 4096

// contents adds what an open file holds.
func (r *reader) contents(in *input) error {
	plain, packed, done, err := decompress(r.metered(in))
	if err != nil {
		return err
	}
	defer done()
	buffered := bufio.NewReaderSize(plain, firstBytes)
	in.first, _ = buffered.Peek(firstBytes) // an error shows again in the read
	in.Reader, in.packed = buffered, packed
	s, err := sourceOf(in)
	if err != nil {
		return err
	}
	if err := s.check(in.first); err != nil {
		return err
	}
	r.begin(in.path)
	r.rows.found.Kind = s.name
	r.again(in)
	if s.name == "text" && ending(in.path) == "" && looksTabular(in.first) {
		r.rows.warn("line 1", "table", "the file is read as text, and looks like a table: a pipe has no ending; write it to a file that ends in .csv or .tsv")
	}
	defer r.finish()
	return s.read(r, in)
}

// again warns of a file that was read before.
func (r *reader) again(in *input) {
	path, err := filepath.EvalSymlinks(in.path)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil || in.size < 0 { // a pipe gives other bytes
		return
	}
	if r.seen[path] {
		r.rows.warn("the whole file", "again", "it was read before, and its samples come twice")
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[path] = true
}

// ending returns the end of a file's name, in lower case and without those of compression.
func ending(path string) string {
	name := strings.ToLower(path)
	for _, packing := range packings {
		name = strings.TrimSuffix(name, packing)
	}
	return filepath.Ext(name)
}

// sourceNamed returns the kind of a file with this ending, nil if there is none.
func sourceNamed(ending string) *source {
	for i := range sources {
		if slices.Contains(sources[i].endings, ending) {
			return &sources[i]
		}
	}
	return nil
}

// sourceOf returns the kind of a file: Parquet by its first bytes, others by the ending of the name. A pipe has no name;
// it is JSON if it begins so, and else text.
func sourceOf(in *input) (*source, error) {
	end := ending(in.path)
	s := sourceNamed(end)
	switch {
	case isParquet(in.first):
		return sourceNamed(".parquet"), nil
	case s != nil:
		return s, nil
	case in.size < 0 || strings.HasPrefix(in.path, "/dev/"):
		if isJSON(in.first) {
			return sourceNamed(".json"), nil
		}
		if err := files.NotTheFile(in.first); err != nil {
			return nil, fmt.Errorf("what the pipe gives %w", err)
		}
		return sourceNamed(".txt"), nil
	}
	if err := files.NotTheFile(in.first); err != nil {
		return nil, err
	}
	if remedy := remedies[end]; remedy != "" {
		return nil, fmt.Errorf("%s: %w", remedy, snug.ErrConfig)
	}
	what := fmt.Sprintf("the name ends in %.20q", end)
	if end == "" {
		what = "the name has no ending"
	}
	return nil, fmt.Errorf("%s, and %s are read: give the file the ending of what it is: %w", what, Endings(), snug.ErrConfig)
}

// Endings returns the endings of the names of the files that [Open] reads, as words of a sentence: "JSON (.jsonl, .json), ...".
func Endings() string {
	var all []string
	for _, s := range sources {
		list := s.endings
		if len(list) > 4 {
			list = append(slices.Clone(list[:3]), "source code such as .py")
		}
		all = append(all, s.name+" ("+strings.Join(list, ", ")+")")
	}
	return strings.Join(all, ", ")
}

// check returns an error if a file that begins with these bytes is not what its kind says.
func (s *source) check(first []byte) error {
	bad := files.NotTheFile
	if s.name == "text" { // which may be about web pages
		bad = files.Pointer
	}
	if err := bad(first); err != nil {
		return fmt.Errorf("the file %w", err)
	}
	if !s.text {
		return nil
	}
	for _, mark := range []string{"\xff\xfe", "\xfe\xff"} {
		if bytes.HasPrefix(first, []byte(mark)) {
			return fmt.Errorf("the file is UTF-16: save it as UTF-8: %w", snug.ErrCorrupt)
		}
	}
	line, _, _ := strings.Cut(jsonStart(first), "\n")
	if s.name == "JSON" && isHeader(line) {
		return fmt.Errorf("line 1: %s is no JSON: give a table the ending .csv or .tsv, and text the ending .txt: %w", shortJSON(line), snug.ErrConfig)
	}
	if s.name != "JSON" && strings.HasPrefix(line, "{") && strings.HasSuffix(strings.TrimSpace(line), "}") && json.Valid([]byte(line)) && strings.Contains(line, ":") {
		return fmt.Errorf("the first line is an object of JSON: give the file the ending .jsonl, and its lines are rows: %w", snug.ErrConfig)
	}
	return nil
}

// isHeader reports whether a line is the names of a table's fields: words between commas, semicolons or tabs.
func isHeader(line string) bool {
	line = strings.TrimSpace(line)
	separated := false
	for _, r := range line {
		separated = separated || strings.ContainsRune(",;\t", r)
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" _-.,;\t\"", r) {
			return false
		}
	}
	r, _ := utf8.DecodeRuneInString(line)
	return separated && (unicode.IsLetter(r) || strings.Count(line, `"`) > 2)
}

// looksTabular reports whether a text looks like a table: names of fields, and a line with as many.
func looksTabular(first []byte) bool {
	lines := strings.SplitN(jsonStart(first), "\n", 3)
	if len(lines) < 2 || !isHeader(lines[0]) {
		return false
	}
	for _, comma := range []string{",", ";", "\t"} {
		if n := strings.Count(lines[0], comma); n > 0 && strings.Count(lines[1], comma) >= n {
			return true
		}
	}
	return false
}

// isJSON reports whether a file begins as an object or an array, which may follow lines of comments. JSON has none, and its
// reader says so.
func isJSON(first []byte) bool {
	text := jsonStart(first)
	for strings.HasPrefix(text, "//") {
		_, rest, _ := strings.Cut(text, "\n")
		text = jsonStart([]byte(rest))
	}
	return strings.IndexAny(text, "{[") == 0
}

// jsonStart returns what comes after white space and byte order marks.
func jsonStart(first []byte) string { return strings.TrimLeft(string(first), "\ufeff \t\r\n") }

// json adds the rows of a file of JSON: the elements of its one array, or its objects.
func (r *reader) json(in *input) error {
	if strings.HasPrefix(jsonStart(in.first), "[") {
		return readArray(in, r.rowLimit(), r.take)
	}
	return readLines(in, r.rowLimit(), r.take)
}
