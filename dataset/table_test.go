package dataset

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
)

// nested has every way in which columns nest.
type nested struct {
	Text  string             `parquet:"text,dict"`
	Maybe *string            `parquet:"maybe,optional"`
	Words []string           `parquet:"words"`
	List  []string           `parquet:"list,list"`
	Turns []turnRow          `parquet:"turns,list"`
	Inner struct{ A, B int } `parquet:"inner"`
	Map   map[string]string  `parquet:"map"`
	Score float64            `parquet:"score"`
	Deep  [][]string         `parquet:"-"`
	Yes   bool               `parquet:"yes"`
}

type turnRow struct {
	Role    string   `parquet:"role"`
	Content *string  `parquet:"content,optional"`
	Calls   []string `parquet:"calls,list"`
}

// asObject is what a row of nested is as an object of JSON.
func (n nested) asObject() object {
	text := func(s *string) value {
		if s == nil {
			return nil
		}
		return *s
	}
	texts := func(all []string) list {
		l := list{}
		for _, s := range all {
			l = append(l, s)
		}
		return l
	}
	turns := list{}
	for _, t := range n.Turns {
		turns = append(turns, object{{Name: "role", Value: t.Role}, {Name: "content", Value: text(t.Content)}, {Name: "calls", Value: texts(t.Calls)}})
	}
	pairs := object{}
	for k, v := range n.Map {
		pairs = append(pairs, member{Name: k, Value: v})
	}
	number := func(i int) value { return json.Number(fmt.Sprint(i)) }
	return object{{Name: "text", Value: n.Text}, {Name: "maybe", Value: text(n.Maybe)}, {Name: "words", Value: texts(n.Words)}, {Name: "list", Value: texts(n.List)}, {Name: "turns", Value: turns},
		{Name: "inner", Value: object{{Name: "A", Value: number(n.Inner.A)}, {Name: "B", Value: number(n.Inner.B)}}}, {Name: "map", Value: pairs}, {Name: "score", Value: floatOf(n.Score, 64)}, {Name: "yes", Value: n.Yes}}
}

// rowsOf reads all columns of a table.
func rowsOf(t require.TestingT, text string, limit int64) (rows []object, err error) {
	f := strings.NewReader(text)
	file, err := parquet.OpenFile(f, f.Size())
	require.NoError(t, err)
	for _, group := range file.RowGroups() {
		r := &tableRows{chunks: group.ColumnChunks(), types: leavesOf(file), budget: budget{limit: limit}}
		var fields []*columnNode
		for _, c := range file.Root().Columns() {
			fields = append(fields, r.node(c))
		}
		for i := range group.NumRows() {
			err := r.row(i+1, fields, func(x row) error {
				rows = append(rows, x.fields)
				return nil
			})
			if err != nil {
				r.close()
				return nil, err
			}
		}
		require.NoError(t, r.end())
		r.close()
	}
	return rows, nil
}

// nestedRows: rows come out of a table as they went in, whatever its pages and row groups are.
func nestedRows(t *rapid.T) {
	text := rapid.StringMatching(`[a-cé ]{0,8}`)
	rows := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) nested {
		var n nested
		n.Text = text.Draw(t, "text")
		if rapid.Bool().Draw(t, "there") {
			s := text.Draw(t, "maybe")
			n.Maybe = &s
		}
		n.Words, n.List = rapid.SliceOfN(text, 0, 3).Draw(t, "words"), rapid.SliceOfN(text, 0, 3).Draw(t, "list")
		for range rapid.IntRange(0, 3).Draw(t, "turns") {
			turn := turnRow{Role: text.Draw(t, "role"), Calls: rapid.SliceOfN(text, 0, 2).Draw(t, "calls")}
			if rapid.Bool().Draw(t, "content") {
				s := text.Draw(t, "content")
				turn.Content = &s
			}
			n.Turns = append(n.Turns, turn)
		}
		n.Inner.A, n.Inner.B = rapid.IntRange(-5, math.MaxInt32).Draw(t, "A"), rapid.Int().Draw(t, "B")
		if rapid.Bool().Draw(t, "map") {
			n.Map = map[string]string{text.Draw(t, "key"): text.Draw(t, "value")}
		}
		n.Score, n.Yes = rapid.Float64().Draw(t, "score"), rapid.Bool().Draw(t, "yes")
		return n
	}), 1, 30).Draw(t, "rows")
	var want []object
	for _, n := range rows {
		want = append(want, n.asObject())
	}
	got, err := rowsOf(t, table(t, rows, parquet.DataPageVersion(rapid.IntRange(1, 2).Draw(t, "version")),
		parquet.MaxRowsPerRowGroup(int64(rapid.IntRange(1, 20).Draw(t, "group"))), parquet.PageBufferSize(rapid.IntRange(1, 300).Draw(t, "page"))), 1<<20)
	require.NoError(t, err)
	for i := range want { // columns are in the order of the file
		for _, m := range want[i] {
			v, found := got[i].Get(m.Name)
			require.True(t, found, m.Name)
			require.Equal(t, m.Value, v, m.Name)
		}
		require.Len(t, got[i], len(want[i]))
	}
	require.Len(t, got, len(want))
}

func TestNestedRows(t *testing.T) { rapid.Check(t, nestedRows) }

func FuzzNestedRows(f *testing.F) { f.Fuzz(rapid.MakeFuzz(nestedRows)) }

// TestTableBombs: a small file of which the pages or the rows are large is refused before memory is taken for them.
func TestTableBombs(t *testing.T) {
	type lists struct {
		Texts []string `parquet:"messages,dict"`
	}
	long := strings.Repeat("a ", 1<<15)
	short := parquet.SkipPageBounds("completion") // no long values beside the pages
	many := make([]string, 100)
	for i := range many {
		many[i] = long
	}
	for name, c := range map[string]struct{ contents, says string }{
		"a long value":         {table(t, []pairRow{{Prompt: "x", Completion: strings.Repeat(long, 128)}}, parquet.Compression(&parquet.Zstd), short), "the pages of column completion take"},
		"a long value in LZ4":  {table(t, []pairRow{{Prompt: "x", Completion: strings.Repeat(long, 128)}}, parquet.Compression(&parquet.Lz4Raw), short), "the pages of column completion take"},
		"one value many times": {table(t, []lists{{many}}, parquet.Compression(&parquet.Zstd), short), "row 1: messages: the row takes more than 2097152 bytes of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.parquet")
			require.NoError(t, os.WriteFile(path, []byte(c.contents), 0o600))
			_, err := Open([]string{path}, tok, Options{Context: 8, EOS: eos, Memory: 8 << 20})
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.ErrorContains(t, err, c.says, name)
		})
	}
	// What fits is read.
	s, err := Open([]string{write(t, "a.parquet", table(t, []pairRow{{Prompt: "x", Completion: strings.Repeat(long, 16)}}))}, tok, Options{Context: 8, EOS: eos, Memory: 64 << 20})
	require.NoError(t, err)
	require.Equal(t, 1, s.Stats().Samples)
}

// TestTableWithALongEnd: no memory is made for a description that is longer than the file.
func TestTableWithALongEnd(t *testing.T) {
	for _, length := range []string{"\xff\xff\xff\x7f", "\xff\xff\xff\xff", "\x01\x00\x00\x00"} {
		text := "PAR1" + length + "PAR1"
		require.Negative(t, footerOf(strings.NewReader(text), int64(len(text))))
	}
	require.EqualValues(t, 1, footerOf(strings.NewReader("PAR1x\x01\x00\x00\x00PAR1"), 13))
}
