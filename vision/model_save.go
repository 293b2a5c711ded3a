package vision

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/transformer"
)

// Save writes a folder that transformers loads as the whole model, in the type of the text: adapters are merged and matrices in few bits
// decoded, as by [transformer.Model.Save]. The tower's tensors of floats, in the types that they have, and the files of the processor are copied
// from the folder that the model was opened from, which must still be there. A file of weights has at most maxShardBytes bytes of tensors;
// 0 is 5 GB. It holds one tensor at a time. Errors are those of [transformer.Model.Save], and of the folder.
func (m *Model) Save(dir string, maxShardBytes int64) (err error) {
	defer fault.Named(&err, "vision: Save")
	if m == nil || m.Text == nil {
		return fmt.Errorf("a Model that OpenModel did not make: %w", snug.ErrConfig)
	}
	w, err := amp.OpenWeights(m.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	text, err := readConfig(m.dir)
	if err != nil {
		return err
	}
	if !bytes.Equal(text, m.text) {
		return fmt.Errorf("%s has another %s than when the model was opened: %w", m.dir, configName, snug.ErrCorrupt)
	}
	if text, err = m.config(text); err != nil {
		return err
	}
	err = m.Text.Weights(func(own iter.Seq2[amp.Tensor, snug.View]) error {
		return amp.SaveShards(dir, maxShardBytes, m.all(own, w), map[string]string{"format": "pt"})
	})
	if err != nil {
		return err
	}
	for _, name := range []string{pixelsName, "processor_config.json", "video_preprocessor_config.json"} {
		old, err := files.ReadInput(filepath.Join(m.dir, name), files.Description)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = replace(dir, name, old)
		}
		if err != nil {
			return err
		}
	}
	return replace(dir, configName, text)
}

func replace(dir, name string, text []byte) error {
	return files.Replace(filepath.Join(dir, name), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// config returns config.json for weights in the type of the model.
func (m *Model) config(text []byte) ([]byte, error) {
	whole := map[string]json.RawMessage{}
	if err := lenientJSON.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	inner := map[string]json.RawMessage{}
	if whole["text_config"] != nil {
		if err := lenientJSON.Unmarshal(whole["text_config"], &inner); err != nil {
			return nil, err
		}
	}
	for _, of := range []map[string]json.RawMessage{whole, inner} {
		for _, name := range []string{"dtype", "torch_dtype", "quantization_config"} {
			delete(of, name)
		}
	}
	dtype, err := json.Marshal(map[snug.DType]string{snug.F32: "float32", snug.F16: "float16", snug.BF16: "bfloat16"}[m.dtype])
	if whole["dtype"] = dtype; err == nil && whole["text_config"] != nil {
		whole["text_config"], err = json.Marshal(inner)
	}
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(whole, "", "  ")
}

// textName returns the name in a whole model of a tensor of the text.
func (w *modelFamily) textName(name string) string {
	if rest, of := strings.CutPrefix(name, "model."); of && w.body != "" {
		return w.body + rest
	}
	return w.text + name
}

// all yields the tensors of the text, of the projector, and of the tower in the folder.
func (m *Model) all(text iter.Seq2[amp.Tensor, snug.View], w *amp.Weights) iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		for t, v := range text {
			t.Name = m.family.textName(t.Name)
			if !yield(t, v) {
				return
			}
		}
		outer := ""
		if m.family.body != "" {
			outer = "model."
		}
		for _, p := range m.projector.Params() {
			if !yield(amp.Tensor{Name: outer + p.Name, DType: fileTypes[m.dtype], Shape: p.Shape}, p.Value) {
				return
			}
		}
		trained := m.trained()
		for _, t := range w.Tensors() {
			from, to := t.Name, strings.TrimPrefix(t.Name, "model.")
			if !strings.HasPrefix(to, m.family.towers[0]) || m.projector.Shape(to) != nil || t.ElementType() == 0 { // such as position_ids, which old versions wrote
				continue
			}
			t.Name = outer + to
			if v, has := trained[from]; has {
				t.DType = fileTypes[v.DType()]
				if !yield(t, v) {
					return
				}
				continue
			}
			t.Make = func() (snug.View, error) {
				v, _, err := snug.MakeView(snug.CPU(), t.ElementType(), t.Len())
				if err == nil {
					err = w.Load(from, v)
				}
				return v, err
			}
			if !yield(t, snug.View{}) {
				return
			}
		}
	}
}

// trained returns the tensors of a tower that trains, by their names in the folder.
func (m *Model) trained() map[string]snug.View {
	if m.trains() == nil {
		return nil
	}
	return m.through.tower.values()
}

// SaveSize returns what Save writes and takes, see [transformer.Model.SaveSize], with the projector and the tower's tensors as the folder has
// them now. It is the zero SaveSize for a Model that is closed or whose folder cannot be read.
func (m *Model) SaveSize() (s transformer.SaveSize) {
	if m == nil || m.Text == nil {
		return s
	}
	w, err := amp.OpenWeights(m.dir)
	if err != nil {
		return s
	}
	err = m.Text.Weights(func(own iter.Seq2[amp.Tensor, snug.View]) error {
		for t := range m.all(own, w) {
			s.Bytes, s.Largest = s.Bytes+t.Bytes(), max(s.Largest, t.Bytes())
		}
		return nil
	})
	if errors.Join(err, w.Close()) != nil {
		return transformer.SaveSize{}
	}
	for _, p := range m.projector.Params() {
		s.Memory += int64(p.Value.Bytes())
	}
	s.Memory += m.Text.SaveSize().Memory + s.Largest
	return s
}
