package dataset

import (
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// text adds a text file.
func (r *reader) text(f *input) error {
	if r.options.Pairs {
		return fmt.Errorf("preferences are rows of JSON or Parquet, and this is text: %w", snug.ErrConfig)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(b) > maxFile {
		return fmt.Errorf("more than %d bytes of text: cut the file: %w", maxFile, snug.ErrConfig)
	}
	if at := firstInvalid(b); at >= 0 {
		return fmt.Errorf("byte %d is not UTF-8: %w", at, snug.ErrCorrupt)
	}
	if len(b) == 0 {
		return nil
	}
	if r.tokens, err = r.tok.Encode(string(b), tokenizer.EncodeOptions{}); err != nil {
		return err
	}
	r.end(0)
	err = r.addBlocks(r.tokens)
	r.tokens = nil // it may be long
	return err
}
