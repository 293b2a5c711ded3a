package segment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/layers"
)

// Save writes a folder in the layout that the model was opened in: transformers loads it as SamModel, or segment_anything, MobileSAM or
// TinySAM load the tensors of its model.safetensors. The prompt encoder and the mask decoder are in float32, and the encoder's tensors and
// the files of the processor as they are where the model was opened, which must still be there. It holds one tensor at a
// time. The folder's weights are replaced as by [amp.SaveShards].
func (m *Model) Save(dir string) (err error) {
	defer fault.Named(&err, "segment: Save")
	if m == nil || m.model == nil {
		return fmt.Errorf("a Model that Open did not make, or is closed: %w", snug.ErrConfig)
	}
	if dir == "" {
		return fmt.Errorf("the folder has no name: %w", snug.ErrConfig)
	}
	s, err := openSource(m.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err = s.same(&m.config, m.layout); err != nil {
		return err
	}
	counters, err := readCounters(s.Weights)
	if err != nil {
		return err
	}
	if err = amp.SaveShards(dir, 0, m.tensors(s.Weights, counters), m.layout.metadata()); err != nil {
		return err
	}
	return m.layout.extras(m.dir, dir)
}

// readCounters returns the bytes of the tensors that are not floats, such as how many batches a BatchNorm has seen.
func readCounters(w *amp.Weights) (map[string]snug.View, error) {
	all := map[string]snug.View{}
	for _, t := range w.Tensors() {
		if t.ElementType() == 0 {
			b := make([]uint8, t.Bytes())
			if err := w.ReadBytes(t.Name, 0, b); err != nil {
				return nil, err
			}
			all[t.Name] = snug.ViewOf8(b)
		}
	}
	return all, nil
}

// tensors yields the parameters of the model, and the other tensors of a file.
func (m *Model) tensors(w *amp.Weights, counters map[string]snug.View) iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		own := map[string]bool{}
		for _, p := range m.model.Params() {
			if own[p.Name] = true; !yield(described(p), p.Value) {
				return
			}
		}
		for _, t := range w.Tensors() {
			if own[t.Name] {
				continue
			}
			if t.ElementType() != 0 {
				t.Make = func() (snug.View, error) {
					v, _, err := snug.MakeView(snug.CPU(), t.ElementType(), t.Len())
					if err == nil {
						err = w.Load(t.Name, v)
					}
					return v, err
				}
			}
			if !yield(t, counters[t.Name]) {
				return
			}
		}
	}
}

func described(p *layers.Param) amp.Tensor {
	return amp.Tensor{Name: p.Name, DType: "F32", Shape: p.Shape}
}

func replace(dir, name string, text []byte) error {
	return files.Replace(filepath.Join(dir, name), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// inFloat32 returns a config.json whose type is float32, in which transformers then keeps all weights.
func inFloat32(text []byte) ([]byte, error) {
	whole := map[string]json.RawMessage{}
	if err := lenientJSON.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	for _, name := range []string{"vision_config", "prompt_encoder_config", "mask_decoder_config"} {
		part := map[string]json.RawMessage{}
		if whole[name] == nil || lenientJSON.Unmarshal(whole[name], &part) != nil {
			continue
		}
		delete(part, "dtype")
		delete(part, "torch_dtype")
		whole[name], _ = json.Marshal(part) // of raw messages that were read
	}
	delete(whole, "torch_dtype")
	whole["dtype"] = json.RawMessage(`"float32"`)
	return json.MarshalIndent(whole, "", "  ")
}

// Create writes the folder of a new model with random values, which depend on seed, in float32, with the settings of a processor. It holds
// the model. With a vision transformer the folder is transformers', with TinyViT that of MobileSAM without the head of a classifier. The error
// wraps [snug.ErrConfig], or is that of the file system.
func Create(dir string, c Config, seed uint64) (err error) {
	defer fault.Named(&err, "segment: Create")
	if dir == "" {
		return fmt.Errorf("the folder has no name: %w", snug.ErrConfig)
	}
	if err := c.check(); err != nil {
		return err
	}
	k, err := c.kind()
	if err != nil {
		return err
	}
	l, err := k.layout(&c)
	if err != nil {
		return err
	}
	m, err := newModel(c, l, Options{}, seed, nil)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range m.decoder.waves.Value.Float32s() { // of a deviation of 1, as in the paper's code
		m.decoder.waves.Value.Float32s()[i] = float32(rng.NormFloat64())
	}
	e, err := newEncoder(c, l, layers.Options{Seed: seed}, nil)
	if err != nil {
		return err
	}
	err = amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, p := range append(e.model.Params(), m.model.Params()...) {
			if !yield(described(p), p.Value) {
				return
			}
		}
		for _, f := range e.folded {
			for _, n := range f.neutral() {
				if !yield(n.Tensor, n.View) {
					return
				}
			}
		}
	}, l.metadata())
	if err != nil {
		return err
	}
	side := c.Encoder.Image
	pixels := fmt.Sprintf(`{"image_processor_type": "SamImageProcessor", "size": {"longest_edge": %d}, "pad_size": {"height": %d, "width": %d}, "mask_size": {"longest_edge": %d}, "mask_pad_size": {"height": %d, "width": %d}}`,
		side, side, side, c.Side(), c.Side(), c.Side())
	if err := replace(dir, pixelsName, []byte(pixels)); err != nil {
		return err
	}
	return l.extras(dir, dir)
}

// text returns a config.json. Numbers that transformers wants to be floats have a point or an exponent.
func (c Config) text() ([]byte, error) {
	whole := map[string]any{"model_type": "sam", "architectures": []string{"SamModel"}, "dtype": "float32"}
	for name, of := range map[string]any{"vision_config": c.Encoder, "prompt_encoder_config": c.Prompt, "mask_decoder_config": c.Decoder} {
		text, err := json.Marshal(of)
		if err != nil {
			return nil, err
		}
		part := map[string]any{}
		if err = json.Unmarshal(text, &part); err != nil {
			return nil, err
		}
		for _, float := range []string{"mlp_ratio", "layer_norm_eps"} {
			if v, is := part[float].(float64); is {
				part[float] = strictjson.Float(v)
			}
		}
		part["model_type"] = map[string]string{"vision_config": "sam_vision_model", "prompt_encoder_config": "sam_prompt_encoder", "mask_decoder_config": "sam_mask_decoder"}[name]
		if g, has := part["global_attn_indexes"]; has && g == nil {
			part["global_attn_indexes"] = []int{}
		}
		whole[name] = part
	}
	return json.MarshalIndent(whole, "", "  ")
}
