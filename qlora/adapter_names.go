package qlora

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// This file has the names of tensors in files that were saved from wrapped models.

// unwrap maps PEFT's names to the names in the file. They differ if the model was wrapped when it was saved: by torch.compile
// ("_orig_mod." anywhere), by DistributedDataParallel ("module." first, or behind PEFT's prefix), or by PEFT twice. The error
// wraps snug.ErrConfig when two tensors then have one name.
func (w *adapterWeights) unwrap() error {
	w.names = map[string]string{}
	for _, t := range w.Weights.Tensors() {
		name := unwrapped(t.Name)
		if other, found := w.names[name]; found {
			return fmt.Errorf("the tensors %q and %q are both %q without what wraps the model: %w", other, t.Name, name, snug.ErrConfig)
		}
		w.names[name] = t.Name
	}
	return nil
}

// unwrapped returns the name of a tensor without wrappers.
func unwrapped(name string) string {
	name = strings.ReplaceAll(name, "_orig_mod.", "")
	for whole := ""; whole != name; {
		whole = name
		if rest := strings.TrimPrefix(name, "module."); strings.HasPrefix(rest, adapterPrefix) {
			name = rest
		}
		if rest, found := strings.CutPrefix(name, adapterPrefix); found {
			rest = strings.TrimPrefix(rest, "module.")
			if strings.HasPrefix(rest, adapterPrefix) {
				name = rest
			} else {
				name = adapterPrefix + rest
			}
		}
	}
	return name
}

// Tensors returns the tensors of the file, with their names without wrappers.
func (w adapterWeights) Tensors() []amp.Tensor {
	list := w.Weights.Tensors()
	for i := range list {
		list[i].Name = unwrapped(list[i].Name)
	}
	return list
}

// Tensor returns a tensor by its name without wrappers.
func (w adapterWeights) Tensor(name string) (amp.Tensor, bool) {
	t, found := w.Weights.Tensor(w.names[name])
	t.Name = name
	return t, found
}

// Load reads a tensor by its name without wrappers.
func (w adapterWeights) Load(name string, to snug.View) error {
	return w.Weights.Load(w.names[name], to)
}
