package transformer

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
)

// Check compares the tensors of an opened folder with the parameters of the model. It returns a map from the names of
// [Config.Tensors] to the names in the folder, which may lack the prefix "model." or "transformer."; those of a
// model for images and text may be the names of transformers' modules, model.language_model.*. For a parameter of an expert of
// gpt_oss it is the name of the tensor of all experts, without _blocks and _scales.
//
// Keys and values of layers that read those of others are passed over, as in transformers.
//
// Check passes over buffers that old versions of transformers saved (rotary_emb.inv_freq, and attn.bias and
// attn.masked_bias of gpt2), and the parts for images of a multimodal model. A folder may have the matrix of a tied
// head if it equals the embedding: Check reads both, 1 MiB at a time. If Config.Stored is not 0, matrices,
// but not embeddings, may be in that form, with their scales.
//
// The error wraps [snug.ErrConfig] when tensors are missing, extra, or not F32, F16 or
// BF16, and [snug.ErrShape] when shapes differ; it names the first five of each.
func (c *Config) Check(w *amp.Weights) (_ map[string]string, err error) {
	defer fault.Named(&err, "transformer: Check")
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.compare(w)
}

func (c *Config) compare(w *amp.Weights) (map[string]string, error) {
	own := *c
	own.joined = own.isJoined(w)
	c = &own
	here := c.layout()
	for _, l := range c.layouts() {
		if _, found := w.Tensor(l.body + c.embedding()); found {
			here = l
			break
		}
	}
	if c.Whole != "" && !c.Tied && here == c.layout() { // published folders have the head under both names
		if _, found := w.Tensor("lm_head.weight"); found {
			here.head = "lm_head.weight"
		}
	}
	names := map[string]string{}
	known := map[string]bool{}
	var missing, shapes, types []string
	usual, list := c.tensors(c.layout()), c.tensors(here)
	for i, t := range list {
		names[usual[i].Name] = c.inFile(t.Name)
	}
	for _, want := range c.inFiles(list) {
		if have, blocks := c.blocksOf(w, want); blocks != nil {
			for i, b := range blocks {
				known[b.Name] = true
				switch h := have[i]; {
				case h.Name == "":
					missing = append(missing, b.Name)
				case !slices.Equal(h.Shape, b.Shape):
					shapes = append(shapes, fmt.Sprintf("%s is %v, want %v", b.Name, h.Shape, b.Shape))
				case h.DType != b.DType:
					types = append(types, fmt.Sprintf("%s is %s, want %s", b.Name, h.DType, b.DType))
				}
			}
			continue
		}
		have, found := w.Tensor(want.Name)
		coded, wrong := c.storedIs(w, want)
		known[want.Name] = coded
		switch {
		case wrong != "":
			shapes = append(shapes, wrong)
		case coded:
		case !found:
			missing = append(missing, want.Name)
		case !slices.Equal(have.Shape, want.Shape):
			shapes = append(shapes, fmt.Sprintf("%s is %v, want %v", want.Name, have.Shape, want.Shape))
		case !have.ElementType().IsFloat():
			types = append(types, fmt.Sprintf("%s is %s, want F32, F16 or BF16", want.Name, have.DType))
		}
	}
	var extra []string
	for _, t := range w.Tensors() {
		if _, parameter := known[t.Name]; !parameter && !c.passedOver(t.Name, here) && !c.describesStored(t.Name, known) {
			extra = append(extra, t.Name)
		}
	}
	if err := differences(missing, extra, shapes, types); err != nil {
		return nil, err
	}
	if err := cmp.Or(c.compareHead(w, here), c.zeroBiases(w, known)); err != nil {
		return nil, err
	}
	return names, nil
}

// differences returns the error of a folder whose tensors are not the model's.
func differences(missing, extra, shapes, types []string) error {
	var parts []string
	kind := snug.ErrConfig
	for _, p := range []struct {
		what string
		list []string
	}{{"missing", missing}, {"not parameters of the model", extra}, {"of another type", types}, {"of another shape", shapes}} {
		if len(p.list) == 0 {
			continue
		}
		if p.what == "of another shape" && parts == nil {
			kind = snug.ErrShape
		}
		quoted := strings.Join(p.list[:min(5, len(p.list))], ", ")
		parts = append(parts, fmt.Sprintf("%d tensors are %s (%.600q)", len(p.list), p.what, quoted))
	}
	if parts == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(parts, "; "), kind)
}

// passedOver reports whether Check passes over a tensor that is no parameter.
func (c *Config) passedOver(name string, here layout) bool {
	rest, inBody := strings.CutPrefix(name, here.body)
	if inBody && c.names().further && c.behind(rest) {
		return true
	}
	if inBody && c.names().buffers.MatchString(rest) {
		return true
	}
	if rest, found := strings.CutPrefix(name, here.body); found && c.isUnused(rest) {
		return true
	}
	if c.Tied && slices.ContainsFunc(c.layouts(), func(l layout) bool { return l.head == name }) {
		return true
	}
	if n := c.names().beside; n != "" && strings.HasPrefix(name, n) {
		return true
	}
	return c.whole().hasImages(name)
}

// hasImages reports whether a name is of a part for images. A nil whole has none.
func (w *whole) hasImages(name string) bool {
	name = strings.TrimPrefix(name, "model.")
	return w != nil && slices.ContainsFunc(w.images, func(part string) bool { return strings.HasPrefix(name, part) })
}

// zeroBiases returns an error unless the biases beside quantized matrices, which the family does not have, are zeros, as AutoGPTQ wrote
// them in 2023.
func (c *Config) zeroBiases(w *amp.Weights, known map[string]bool) error {
	if !storedForms[c.Stored].zeroBias {
		return nil
	}
	for _, t := range w.Tensors() {
		module, is := strings.CutSuffix(t.Name, ".bias")
		if _, parameter := known[t.Name]; !is || parameter || !known[module+".weight"] {
			continue
		}
		if !t.ElementType().IsFloat() || len(t.Shape) != 1 || t.Shape[0] > maxCount {
			return fmt.Errorf("%s is %s of %v, want a bias of floats: %w", t.Name, t.DType, t.Shape, snug.ErrConfig)
		}
		x := make([]float32, t.Shape[0])
		if err := w.Load(t.Name, snug.SliceView(x)); err != nil {
			return err
		}
		if slices.ContainsFunc(x, func(v float32) bool { return v != 0 }) {
			return fmt.Errorf("%s is not 0, and the family has no bias there: %w", t.Name, snug.ErrConfig)
		}
	}
	return nil
}

// compareHead returns an error unless the saved matrix of a tied head equals the embedding.
func (c *Config) compareHead(w *amp.Weights, here layout) error {
	if !c.Tied {
		return nil
	}
	embedding, _ := w.Tensor(here.body + c.embedding())
	done := ""
	for _, l := range c.layouts() {
		head, found := w.Tensor(l.head)
		if !found || l.head == done {
			continue
		}
		done = l.head
		same, err := equal(w, head, embedding)
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("tie_word_embeddings is true, but %s is not %s: %w", head.Name, embedding.Name, snug.ErrConfig)
		}
	}
	return nil
}

// equal reports whether two tensors have the same type, shape and bytes.
func equal(w *amp.Weights, a, b amp.Tensor) (bool, error) {
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
		return false, nil
	}
	const piece = 1 << 19
	x, y := make([]byte, piece), make([]byte, piece)
	for lo := int64(0); lo < a.Bytes(); lo += piece {
		n := min(piece, a.Bytes()-lo)
		if err := w.ReadBytes(a.Name, lo, x[:n]); err != nil {
			return false, err
		}
		if err := w.ReadBytes(b.Name, lo, y[:n]); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}
