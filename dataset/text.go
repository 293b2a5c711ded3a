package dataset

import (
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// text adds a text file, which is encoded and cut into samples as it is read.
func (r *reader) text(in *input) error {
	if r.options.Pairs {
		return fmt.Errorf("preferences are rows of JSON, CSV or Parquet, and this is text: %w", snug.ErrConfig)
	}
	r.rows.found.Form = "text"
	if strings.TrimPrefix(string(in.first), "\ufeff") == "" {
		return nil
	}
	end, err := r.ending()
	if err != nil {
		return err
	}
	b := cutter{Set: r.Set, last: -1}
	e, err := r.tok.Encoder(tokenizer.EncodeOptions{}, r.limit()/textShare, b.add)
	if err != nil {
		return err
	}
	if _, err := io.CopyBuffer(e, &validReader{in: in}, make([]byte, 64<<10)); err != nil {
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	if end >= 0 && b.last != end {
		if err := b.add([]int32{end}); err != nil {
			return err
		}
	}
	b.end()
	return nil
}

// cutter cuts tokens, all of them labels, into samples of Options.Context tokens. The last token of a sample, which is a
// label only, is also the first token of the next sample.
type cutter struct {
	*Set
	begun bool
	first int64 // the number of the first token of the sample that has begun
	last  int32 // the last token
}

// add appends tokens.
func (b *cutter) add(tokens []int32) error {
	if len(tokens) == 0 {
		return nil
	}
	if !b.begun {
		b.begun, b.first = true, b.spool.len()
	}
	b.last = tokens[len(tokens)-1]
	if err := b.spool.add(tokens); err != nil {
		return err
	}
	for b.spool.len()-b.first > int64(b.options.Context) {
		b.cut(b.options.Context + 1)
	}
	return nil
}

// cut makes a sample of n tokens.
func (b *cutter) cut(n int) {
	b.list.add(sample{at: b.first, n: int32(n), images: [2]int{len(b.pictures), len(b.pictures)}})
	b.stats.Tokens += int64(n - 1)
	b.stats.Trained += int64(n - 1)
	b.first += int64(n - 1)
}

// end makes a sample of the tokens that are left.
func (b *cutter) end() {
	if n := b.spool.len() - b.first; b.begun && n > 1 {
		b.cut(int(n))
	}
}
