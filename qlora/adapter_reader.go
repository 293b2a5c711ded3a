package qlora

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// AdapterReader is a folder of adapters that is open, and whose elements stay in its file, so that a program can copy adapters of
// any size a piece at a time. It is not safe for concurrent use with Close.
type AdapterReader struct {
	options  AdapterOptions
	adapters map[string]*LoRA
	saved    []amp.Tensor
	weights  adapterWeights // without Weights when the reader is closed
}

// AdapterPart is one of the matrices of an adapter.
type AdapterPart int

// The parts of an adapter.
const (
	PartA         AdapterPart = iota // [rank, in]
	PartB                            // [out, rank]
	PartMagnitude                    // [out], of DoRA
)

// OpenAdapters opens the folder that [LoadAdapters] reads, with its errors. It takes the memory of the file's header. The caller
// closes the reader.
func OpenAdapters(dir string) (*AdapterReader, error) {
	r, err := openReader(openIn(dir))
	if err != nil {
		return nil, fmt.Errorf("qlora: open adapters of %q: %w", dir, err)
	}
	return r, nil
}

func openReader(open opener) (r *AdapterReader, err error) {
	w, err := openAdapters(open)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	text, err := adapterConfigOf(open, w.Metadata()[adapterSum])
	if err != nil {
		return nil, err
	}
	c, s, err := readAdapterConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", adapterConfigFile, err)
	}
	adapters, err := describeAdapters(&c, s, w)
	if err != nil {
		return nil, err
	}
	return &AdapterReader{options: c, adapters: adapters, saved: c.savedIn(w), weights: w}, nil
}

// Options returns the config of the folder.
func (r *AdapterReader) Options() (c AdapterOptions) {
	if r == nil {
		return c
	}
	return r.options
}

// Adapters returns the adapters by their modules, without their elements: A, B and Magnitude are empty. The caller may change the
// map.
func (r *AdapterReader) Adapters() map[string]*LoRA {
	if r == nil {
		return nil
	}
	all := make(map[string]*LoRA, len(r.adapters))
	for name, a := range r.adapters {
		one := *a
		all[name] = &one
	}
	return all
}

// Saved returns the parameters of the base model that the folder has beside the adapters, as [SavedTensors] does.
func (r *AdapterReader) Saved() []amp.Tensor {
	if r == nil {
		return nil
	}
	return slices.Clone(r.saved)
}

// ReadAt reads elements lo to lo+dst.Len()-1 of a part of an adapter into dst, of any floating-point type, as [amp.Weights.LoadAt]
// does, with its errors. The error wraps [snug.ErrConfig] for a module or a part that is not there, and for a reader that is closed.
func (r *AdapterReader) ReadAt(dst snug.View, module string, part AdapterPart, lo int) error {
	if r == nil || r.weights.Weights == nil {
		return fmt.Errorf("qlora: the adapters are closed: %w", snug.ErrConfig)
	}
	a := r.adapters[module]
	if a == nil {
		return fmt.Errorf("qlora: the folder has no adapter of %.200q: %w", module, snug.ErrConfig)
	}
	parts := a.parts(r.options.DoRA)
	if part < 0 || int(part) >= len(parts) {
		return fmt.Errorf("qlora: the adapter of %.200q has no part %d: %w", module, part, snug.ErrConfig)
	}
	return r.weights.LoadAt(r.weights.names[adapterPrefix+module+parts[part].suffix], lo, dst)
}

// Close closes the file. A second call does nothing.
func (r *AdapterReader) Close() error {
	if r == nil || r.weights.Weights == nil {
		return nil
	}
	r.weights.Weights = nil
	return r.weights.close()
}
