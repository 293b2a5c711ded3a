package plan

import (
	"bytes"
	"fmt"
	"io"

	"github.com/snug-ml/snug/internal/strictjson"
)

// maxModelFile is the maximum length of the description of a model, in bytes.
const maxModelFile = 16 << 20

// ReadModel reads a model as JSON, an object with one of the members
//
//	"gpt"     the fields of [GPT], such as {"gpt": {"vocab": 32000, "dim": 768, "layers": 12, "heads": 12, "context": 1024}}
//	"vit"     the fields of [ViT]
//	"cnn"     the fields of [CNN]
//	"chain"   the fields of [Model], a list of layers
//
// Members that are unknown, in another case or given twice are errors, and so is anything
// after the object. The error wraps [snug.ErrCorrupt] for other JSON, and names the
// member; it wraps [snug.ErrShape] for a model that is not valid. The text has 16 MiB at
// most.
func ReadModel(r io.Reader) (Model, error) {
	var file struct {
		GPT   *GPT   `json:"gpt"`
		ViT   *ViT   `json:"vit"`
		CNN   *CNN   `json:"cnn"`
		Chain *Model `json:"chain"`
	}
	if r == nil {
		return Model{}, invalid("read a model: a reader is wanted, not nil")
	}
	text, err := io.ReadAll(io.LimitReader(r, maxModelFile+1))
	switch {
	case err != nil:
		return Model{}, fmt.Errorf("plan: read a model: %w", err)
	case len(text) > maxModelFile:
		return Model{}, corrupt("read a model: more than %d bytes", maxModelFile)
	case len(bytes.TrimSpace(text)) == 0:
		return Model{}, corrupt("read a model: it is empty")
	}
	if err := strictjson.Unmarshal(text, &file); err != nil {
		return Model{}, corrupt("read a model: %w", err)
	}
	var found []interface{ Model() (Model, error) }
	if file.GPT != nil {
		found = append(found, *file.GPT)
	}
	if file.ViT != nil {
		found = append(found, *file.ViT)
	}
	if file.CNN != nil {
		found = append(found, *file.CNN)
	}
	if file.Chain != nil {
		found = append(found, chain(*file.Chain))
	}
	if len(found) != 1 {
		return Model{}, corrupt(`read a model: want one of "gpt", "vit", "cnn" and "chain", got %d`, len(found))
	}
	return found[0].Model()
}

// chain is a list of layers without changes.
type chain Model

func (c chain) Model() (Model, error) { return Model(c), Model(c).Validate() }
