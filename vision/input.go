package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// Input is how a [Model] reads: the processor of its images, and how many rows of the text an image has. It has no weights, does not change,
// and serves any number of goroutines.
type Input struct {
	Processor *Processor
	connection
}

// OpenInput reads the files of a model's folder that [OpenProcessor] reads, and config.json. Errors are those of OpenProcessor, and of
// [OpenModel] about config.json.
func OpenInput(dir string) (in *Input, err error) {
	defer fault.Named(&err, "vision: OpenInput")
	in = &Input{}
	if _, in.connection, _, err = readConnection(dir); err != nil {
		return nil, err
	}
	if in.Processor, err = OpenProcessor(dir); err != nil {
		return nil, err
	}
	return in, nil
}

// Token is [Model.Token].
func (in *Input) Token() int32 {
	if in == nil {
		return 0
	}
	return in.token
}

// Rows returns the rows of the text for an image of a layout. The error wraps [snug.ErrShape] if the model does not take such images, and
// [snug.ErrConfig] if the processor writes another number of placeholders than the model has rows.
func (in *Input) Rows(l Layout) (int, error) {
	if in == nil || in.connection.rows == nil {
		return 0, fmt.Errorf("vision: an Input that OpenInput did not make: %w", snug.ErrConfig)
	}
	rows, err := in.connection.rows(l)
	if err == nil && rows != l.Tokens {
		err = fmt.Errorf("vision: the processor writes %d placeholders for an image of which the model has %d rows: its files do not fit config.json: %w", l.Tokens, rows, snug.ErrConfig)
	}
	return rows, err
}
