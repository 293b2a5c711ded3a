package dataset

import (
	"unicode/utf8"

	"github.com/snug-ml/snug/tokenizer"
)

// maxLine is how many bytes a row takes at most without Options.Memory.
const maxLine = defaultMemory / rowShare

// reader adds files to a Set.
type reader struct {
	*Set
	tok  *tokenizer.Tokenizer
	rows *rows // of this file
	// template is what the chat template can express, nil if that is not known yet.
	template *knowledge
	specials *specials       // nil if they are not known yet
	seen     map[string]bool // files that were read
	skipped  int             // files of folders that were not read
	other    taker           // takes the rows, if these are no samples of text; else nil
	// unlearned says why the first row that was left out has nothing to learn.
	unlearned error
}

// taker takes rows that are no samples of text.
type taker interface {
	// reads reports whether it reads a column of a table.
	reads(column string) bool
	// begin takes the notes of programs that are kept in a table of Parquet, by their keys.
	begin(note func(key string) (text string, found bool)) error
	take(x row) error
}

// reads reports whether a column of a table is read.
func (r *reader) reads(column string) bool {
	if r.other != nil {
		return r.other.reads(column)
	}
	return r.options.reads(column)
}

func firstInvalid(b []byte) int {
	for at := 0; at < len(b); {
		c, n := utf8.DecodeRune(b[at:])
		if c == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
	return -1
}
