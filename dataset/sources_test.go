package dataset

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// learnedOf returns the samples of a set, in the order of the files.
func (s *Set) learnedOf(t *testing.T) (texts []string) {
	for _, x := range s.all() {
		texts = append(texts, shown(s.stored(t, x)))
	}
	return texts
}

// TestSources: what each kind of file holds is read by the ending of its name.
func TestSources(t *testing.T) {
	const line1, line2 = `{"text": "one"}`, `{"text": "two"}`
	both := []string{"[one§]", "[two§]"}
	for _, c := range []struct {
		about, file, contents string
		want                  []string
	}{
		{"lines", "a.jsonl", line1 + "\n" + line2, both},
		{"lines, by another ending", "a.ndjson", line1 + "\n" + line2 + "\n", both},
		{"lines, by a third ending", "A.JSONLINES", line1 + "\r\n" + line2 + "\r\n", both},
		{"lines in .json", "a.json", line1 + "\n\n" + line2, both},
		{"a mark before a line", "a.jsonl", "\ufeff" + line1 + "\n\ufeff" + line2, both},
		{"an array", "a.json", "[" + line1 + ", " + line2 + "]", both},
		{"an array over lines", "a.jsonl", "\ufeff[\n" + line1 + ",\n" + line2 + "\n]\n", both},
		{"objects over lines", "a.json", "{\n  \"text\":\n  \"one\"\n}\n{\n\"text\": \"two\"}", both},
		{"objects without a break", "a.jsonl", line1 + line2, both},
		{"an empty array beside lines", "a.json", "[ ]", nil},
		{"NaN in a field that is not used", "a.jsonl", `{"score": NaN, "text": "one", "b": [-Infinity, Infinity]}` + "\n" + line2, both},
		{"exact names", "a.jsonl", `{"text": "one", "TEXT": "drop", "Text": 3}` + "\n" + line2, both},
		{"an escaped backslash", "a.jsonl", `{"text": "\\ud83d"}`, []string{`[\ud83d§]`}},
		{"CSV", "a.csv", "text\none\ntwo\n", both},
		{"CSV with a quote in a value", "a.csv", "id,text\n\"1\",5\" one\n2,two\r\n", []string{`[5" one§]`, "[two§]"}},
		{"TSV with quotes in a value", "a.tsv", "id\ttext\n1\tone \"a\" b\"\n2\ttwo\n", []string{`[one "a" b"§]`, "[two§]"}},
		{"CSV with quotes", "a.csv", "id,text\r\n1,\"one, \"\"a\"\"\nb\"\r\n2,two", []string{"[one, \"a\"\nb§]", "[two§]"}},
		{"CSV with semicolons and a mark", "a.csv", "\ufeffid;text\n1;one, x\n2;two", []string{"[one, x§]", "[two§]"}},
		{"CSV of Excel", "a.csv", "\ufeffsep=;\r\nid;text\r\n1;one, x\r\n2;two\r\n", []string{"[one, x§]", "[two§]"}},
		{"numbers as texts", "a.jsonl", `{"text": 1.50}` + "\n" + `{"text": true}`, []string{"[1.50§]", "[true§]"}},
		{"TSV", "a.tsv", "text\tid\none, x\t1\ntwo\t2", []string{"[one, x§]", "[two§]"}},
		{"CSV of prompts", "a.csv", "prompt,completion\nsay: ,one\n", []string{"say:[ one§]"}},
		{"text", "a.txt", "one two", []string{"[one two§]"}},
		{"text with a mark", "a.md", "\ufeffone two", []string{"[one two§]"}},
		{"text of another ending", "a.PY", "one two", []string{"[one two§]"}},
		{"text that begins as JSON", "a.txt", "{ one }", []string{"[{ one }§]"}},
		{"gzip", "a.csv.gz", gzipped(t, "text\none\ntwo\n"), both},
		{"zstd", "a.ndjson.zst", zstded(t, line1+"\n"+line2), both},
	} {
		t.Run(c.about, func(t *testing.T) {
			beside := write(t, "beside.txt", "x")
			s, err := Open([]string{beside, write(t, c.file, c.contents)}, tok, Options{Context: 64, EOS: eos})
			require.NoError(t, err)
			require.Equal(t, c.want, append([]string(nil), s.learnedOf(t)[1:]...))
			require.NoError(t, s.Close())
		})
	}
}

// TestSourcesRefused: what is no data, or damaged, is an error that says where and what to do.
func TestSourcesRefused(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n"
	for _, c := range []struct {
		about, file, contents string
		kind                  error
		says                  []string
	}{
		{"no ending", "data", "text", snug.ErrConfig, []string{"the name has no ending", ".jsonl", ".csv", ".parquet", ".txt"}},
		{"an unknown ending", "a.dat", "text", snug.ErrConfig, []string{`the name ends in ".dat"`}},
		{"JSON without an ending", "data", `{"text": "x"}`, snug.ErrConfig, []string{"the name has no ending"}},
		{"Arrow", "a.arrow", "ARROW1", snug.ErrConfig, []string{"to_parquet"}},
		{"an archive", "a.zip", "PK", snug.ErrConfig, []string{"unpack it"}},
		{"a pointer", "a.jsonl", pointer, snug.ErrCorrupt, []string{"git lfs pull"}},
		{"a pointer as a table", "a.parquet", pointer, snug.ErrCorrupt, []string{"git lfs pull"}},
		{"a pointer as text", "a.txt", pointer, snug.ErrCorrupt, []string{"git lfs pull"}},
		{"a page", "a.jsonl", "\n<!DOCTYPE html><html>", snug.ErrCorrupt, []string{"a web page"}},
		{"a page as CSV", "a.csv", "<html>", snug.ErrCorrupt, []string{"a web page"}},
		{"a page as a table", "a.parquet", "<html>", snug.ErrCorrupt, []string{"a web page"}},
		{"UTF-16", "a.csv", "\xff\xfea\x00", snug.ErrCorrupt, []string{"UTF-16: save it as UTF-8"}},
		{"UTF-16 without a mark", "a.txt", "a\x00b\x00", snug.ErrCorrupt, []string{"byte 1 is 0", "UTF-8"}},
		{"Latin-1", "a.txt", "caf\xe9", snug.ErrCorrupt, []string{"byte 3 is not UTF-8"}},
		{"lines as text", "a.txt", `{"messages": []}` + "\n", snug.ErrConfig, []string{"give the file the ending .jsonl"}},
		{"lines as CSV", "a.csv", `{"text": "a"}` + "\n", snug.ErrConfig, []string{"give the file the ending .jsonl"}},
		{"text as lines", "a.jsonl", "Once upon a time", snug.ErrCorrupt, []string{"line 1: byte 0", "want a value of JSON"}},
		{"strings as rows", "a.json", `["one"]`, snug.ErrConfig, []string{"element 1: line 1: a string, want an object"}},
		{"an array without its end", "a.json", "[\n{\"text\": \"x\"}\n", snug.ErrCorrupt, []string{"line 3", "the file ends here, want ',' or ']'"}},
		{"only its begin", "a.jsonl", "[", snug.ErrCorrupt, []string{"the file ends here"}},
		{"text after an array", "a.json", "[]\n{\"text\": \"x\"}", snug.ErrCorrupt, []string{"line 2", "write one array, or one object a line"}},
		{"two arrays", "a.jsonl", "[{\"text\": \"x\"}]\n[{\"text\": \"x\"}]", snug.ErrCorrupt, []string{"line 2"}},
		{"a cut line", "a.jsonl", "{\"text\": \"x\"\n{\"text\": \"y\"}", snug.ErrCorrupt, []string{"line 2: byte 0", "in the row that begins at line 1"}},
		{"a cut string", "a.jsonl", "{\"text\": \"x\n", snug.ErrCorrupt, []string{"line 1: text: byte 11: the line ends within a string"}},
		{"a name twice", "a.jsonl", `{"text": "x", "text": "y"}`, snug.ErrCorrupt, []string{"line 1: text: the name comes twice"}},
		{"a name twice within", "a.jsonl", `{"messages": [{"role": "user"}, {"role": "a", "content": "x", "role": "b"}]}`, snug.ErrCorrupt, []string{"messages[1].role: the name comes twice"}},
		{"a name twice by an escape", "a.jsonl", `{"text": "x", "te\u0078t": "y"}`, snug.ErrCorrupt, []string{"the name comes twice"}},
		{"a name twice among many", "a.jsonl", `{` + manyNames(40) + `, "n7": 1}`, snug.ErrCorrupt, []string{"n7: the name comes twice"}},
		{"half a pair", "a.jsonl", `{"text": "a \ud83d b"}`, snug.ErrCorrupt, []string{"line 1: text: ", `\ud83d is half of a pair`}},
		{"the other half", "a.jsonl", `{"text": "\ude00"}`, snug.ErrCorrupt, []string{"half of a pair"}},
		{"halves in the wrong order", "a.jsonl", `{"text": "\ude00\ud83d"}`, snug.ErrCorrupt, []string{"half of a pair"}},
		{"half before another escape", "a.jsonl", `{"text": "\ud83d\n"}`, snug.ErrCorrupt, []string{"half of a pair"}},
		{"two first halves", "a.jsonl", `{"text": "\ud83d\ud83d"}`, snug.ErrCorrupt, []string{"half of a pair"}},
		{"half a pair as a name", "a.jsonl", `{"\ud83d": 1}`, snug.ErrCorrupt, []string{"half of a pair"}},
		{"Python", "a.jsonl", `{'text': 'a'}`, snug.ErrCorrupt, []string{"want the name of a member in quotes"}},
		{"Python's strings", "a.jsonl", `{"text": 'a'}`, snug.ErrCorrupt, []string{"line 1: text: byte 9", "json.dumps"}},
		{"Python's names", "a.jsonl", `{'text': "a"}`, snug.ErrCorrupt, []string{"strings of JSON are in double quotes"}},
		{"a comma before the end", "a.jsonl", `{"text": "a",}`, snug.ErrCorrupt, []string{"'}' after a comma", "remove the comma"}},
		{"a comma in a list", "a.jsonl", `{"text": "a", "b": [1, ]}`, snug.ErrCorrupt, []string{"']' after a comma", "remove the comma"}},
		{"a comma in the file's array", "a.json", `[{"text": "a"},` + "\n]", snug.ErrCorrupt, []string{"line 2", "']' after a comma", "remove the comma"}},
		{"a comment", "a.jsonl", "{\"text\": \"a\"} // one\n", snug.ErrCorrupt, []string{"JSON has no comments"}},
		{"a comment of Python", "a.json", "# one\n{\"text\": \"a\"}", snug.ErrCorrupt, []string{"JSON has no comments"}},
		{"CSV as lines", "a.jsonl", "question,answer\na,b\n", snug.ErrConfig, []string{`line 1: "question,answer" is no JSON: give a table the ending .csv`}},
		{"CSV of old Macs", "a.csv", "question,answer\ra,b\r", snug.ErrCorrupt, []string{"end with CR alone", "tr "}},
		{"CSV with sep and too many", "a.csv", "sep=;\ntext\none;two\n", snug.ErrCorrupt, []string{"line 3: 2 fields"}},
		{"Python's None", "a.jsonl", `{"text": None}`, snug.ErrCorrupt, []string{"json.dumps"}},
		{"too deep", "a.jsonl", `{"a": ` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}", snug.ErrCorrupt, []string{"nest deeper than 100"}},
		{"a control character", "a.jsonl", "{\"text\": \"a\x01\"}", snug.ErrCorrupt, []string{"control character 0x1"}},
		{"a number", "a.jsonl", `{"a": 01}`, snug.ErrCorrupt, []string{"want ',' or '}'"}},
		{"CSV with too many", "a.csv", "text\none,two\n", snug.ErrCorrupt, []string{"line 2: 2 fields, and the first line has 1"}},
		{"CSV with a quote", "a.csv", "text\n\"one\ntwo\n", snug.ErrCorrupt, []string{"within quotes", "the row that begins at line 2"}},
		{"CSV with a quote within quotes", "a.csv", "id,text\n1,two\n2,\"on\"e\n", snug.ErrCorrupt, []string{"line 3: a quote within a value that begins with a quote"}},
		{"CSV with a quote behind a blank", "a.csv", "id,text\n1, \"one, two\"\n", snug.ErrCorrupt, []string{"line 2: blanks before a value in quotes"}},
		{"TSV with a quote at the beginning", "a.tsv", "id\ttext\n1\t\"one\" two\n", snug.ErrCorrupt, []string{"line 2: a quote within a value that begins with a quote"}},
		{"CSV with a name twice", "a.csv", "text,text\n1,2\n", snug.ErrCorrupt, []string{`"text" comes twice`}},
		{"a table in gzip", "a.parquet.gz", gzipped(t, table(t, []pairRow{{}})), snug.ErrConfig, []string{"unpack it"}},
	} {
		t.Run(c.about, func(t *testing.T) {
			_, err := Open([]string{write(t, c.file, c.contents)}, tok, Options{Context: 64, EOS: eos, Template: template(t, "{{ messages }}")})
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.file)
			for _, says := range c.says {
				require.ErrorContains(t, err, says)
			}
		})
	}
}

func manyNames(n int) string {
	var members []string
	for i := range n {
		members = append(members, fmt.Sprintf(`"n%d": %d`, i, i))
	}
	return strings.Join(members, ", ")
}

// TestFolders: of a folder one kind of data is read, and the report says what is not.
func TestFolders(t *testing.T) {
	line := func(word string) string { return fmt.Sprintf("{\"text\": %q}\n", word) }
	for _, c := range []struct {
		about   string
		files   map[string]string
		want    []string
		skipped []string // the paths that are not read
	}{
		{"texts in order of their names", map[string]string{"b.txt": "two", "a/x.txt": "one", "c.py": "x"}, []string{"[one§]", "[two§]", "[x§]"}, nil},
		{"a clone", map[string]string{".git/HEAD": "ref", ".git/hooks/a.sample": "x", ".gitattributes": "*", "train.jsonl": line("one"), "README.md": "# x", "LICENSE": "MIT", "load.py": "x"},
			[]string{"[one§]"}, []string{".git", ".gitattributes", "LICENSE", "README.md", "load.py"}},
		{"a download", map[string]string{".cache/huggingface/download/data.jsonl.metadata": "x", "data.jsonl": line("one"), "dataset_infos.json": "{}", "x.metadata": "x"},
			[]string{"[one§]"}, []string{".cache", "dataset_infos.json", "x.metadata"}},
		{"splits", map[string]string{"data/train-0.jsonl": line("one"), "data/test-0.jsonl": line("x"), "data/validation.jsonl": line("x"), "data/train_sft.jsonl": line("two")},
			[]string{"[one§]", "[two§]"}, []string{"data/test-0.jsonl", "data/validation.jsonl"}},
		{"tests alone", map[string]string{"test.jsonl": line("one")}, []string{"[one§]"}, nil},
		{"the same in two kinds", map[string]string{"a.csv": "text\nx\n", "a.jsonl": line("one"), "a.json": line("two")}, []string{"[two§]", "[one§]"}, []string{"a.csv"}},
		{"tables first", map[string]string{"a.parquet": table(t, []struct {
			Text string `parquet:"text"`
		}{{"one"}}), "b.jsonl": line("x")}, []string{"[one§]"}, []string{"b.jsonl"}},
		{"unknown beside data", map[string]string{"a.txt": "one", "a.bin": "x", "b": "x"}, []string{"[one§]"}, []string{"a.bin", "b"}},
	} {
		t.Run(c.about, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			s, err := Open([]string{dir}, tok, Options{Context: 8, EOS: eos})
			require.NoError(t, err)
			require.Equal(t, c.want, s.learnedOf(t))
			var skipped []string
			read := 0
			for _, f := range s.Stats().Files {
				if f.Skipped == "" {
					read++
					require.NotEmpty(t, f.Kind)
					continue
				}
				require.Equal(t, []string{"not read: " + f.Skipped}, f.Lines())
				name, err := filepath.Rel(dir, f.Path)
				require.NoError(t, err)
				skipped = append(skipped, filepath.ToSlash(name))
			}
			slices.Sort(skipped)
			require.Equal(t, c.skipped, skipped)
			require.Equal(t, len(c.want), read)
		})
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data-0.arrow"), []byte("x"), 0o600))
	_, err := Open([]string{dir}, tok, Options{Context: 8, EOS: eos})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "the folder has no files of Parquet")
	require.ErrorContains(t, err, "to_parquet")
	require.ErrorContains(t, err, "README.md: describes the data")
}

// TestRowsAreExact: a row has the names, the order and the values that the file has.
func TestRowsAreExact(t *testing.T) {
	const text = `{"b": 1.50, "a": [true, false, null, {}, [], "x\/\u00e9\n\ud83d\ude00"], "B": -0, "c": 1e400, "d": {"z": 1, "y": 2}, "": 12345678901234567890}`
	var got []row
	require.NoError(t, readLines(strings.NewReader(text), maxLine, func(x row) error {
		got = append(got, x)
		return nil
	}))
	require.Equal(t, []row{{"line 1", object{
		{Name: "b", Value: json.Number("1.50")},
		{Name: "a", Value: list{true, false, nil, object{}, list{}, "x/é\n😀"}},
		{Name: "B", Value: json.Number("-0")}, {Name: "c", Value: json.Number("1e400")},
		{Name: "d", Value: object{{Name: "z", Value: json.Number("1")}, {Name: "y", Value: json.Number("2")}}},
		{Name: "", Value: json.Number("12345678901234567890")},
	}}}, got)
	require.Equal(t, []string{"b", "a", "B", "c", "d", ""}, namesOf(got[0].fields))
	v, found := got[0].fields.Get("B")
	require.True(t, found)
	require.Equal(t, json.Number("-0"), v)
	_, found = got[0].fields.Get("C")
	require.False(t, found)
}

// TestFileTwice: a file that is read a second time, by whatever name, is said.
func TestFileTwice(t *testing.T) {
	path := write(t, "a.jsonl", `{"text": "one two"}`)
	link := filepath.Join(t.TempDir(), "b.jsonl")
	require.NoError(t, os.Symlink(path, link))
	s, err := Open([]string{path, link, write(t, "a.jsonl", `{"text": "one two"}`)}, tok, Options{Context: 8, EOS: eos})
	require.NoError(t, err)
	require.Equal(t, 3, s.Stats().Samples)
	var said [][]string
	for _, f := range s.Stats().Files {
		said = append(said, f.Lines())
	}
	require.Equal(t, [][]string{{"read as text"}, {"read as text", "the whole file: it was read before, and its samples come twice"}, {"read as text"}}, said)
}
