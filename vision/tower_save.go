package vision

import (
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
)

// Save writes a folder that transformers loads: config.json and model.safetensors in the type of the tower, and the
// preprocessor_config.json that the tower's folder had. Of a model of images and text it writes the tower alone. The folder's weights are
// replaced as by [amp.SaveShards].
func (t *Tower) Save(dir string) (err error) {
	defer fault.Named(&err, "vision: Save")
	if err := t.usable(); err != nil {
		return err
	}
	if dir == "" {
		return fmt.Errorf("the folder has no name: %w", snug.ErrConfig)
	}
	text, err := t.config.text(t.text, t.dtype)
	if err != nil {
		return err
	}
	if err := amp.SaveShards(dir, 0, t.tensors(), map[string]string{"format": "pt"}); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{configName, text}, {pixelsName, t.pixels}} {
		if f.text == nil {
			continue
		}
		if err := replace(dir, f.name, f.text); err != nil {
			return err
		}
	}
	return nil
}

// fileTypes are the names of types in files.
var fileTypes = map[snug.DType]string{snug.F32: "F32", snug.F16: "F16", snug.BF16: "BF16"}

// joined returns what makes a tensor on the host of two vectors, one after the other.
func joined(a, b snug.View) func() (snug.View, error) {
	return func() (v snug.View, err error) {
		if v, _, err = snug.MakeView(snug.CPU(), a.DType(), a.Len()+b.Len()); err != nil {
			return v, err
		}
		for lo, from := range map[int]snug.View{0: a, a.Len(): b} {
			part, err := v.Slice(lo, lo+from.Len())
			if err == nil {
				err = snug.Copy(part, from)
			}
			if err != nil {
				return v, err
			}
		}
		return v, nil
	}
}

// tensors yields what Save writes.
func (t *Tower) tensors() iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		halves := map[string]snug.View{} // the first of tensors that have two parameters
		for _, p := range t.Model.Params() {
			at := t.family.spellings[0].slot(p.Name, p)
			info, v := amp.Tensor{Name: at.tensor, DType: fileTypes[t.dtype], Shape: at.shape}, p.Value
			if !at.whole(p) {
				first, has := halves[at.tensor]
				if halves[at.tensor] = v; !has {
					continue
				}
				info.Make, v = joined(first, v), snug.View{}
			}
			if !yield(info, v) {
				return
			}
		}
		for _, k := range t.kept {
			if !yield(k.Tensor, k.v) {
				return
			}
		}
	}
}
