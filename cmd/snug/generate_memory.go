package main

import (
	"errors"
	"runtime/debug"

	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// openWithin opens the model with the limit -memory: as many of its matrices stay in memory as fit. The limit of Go's memory stays set until
// the writer is closed.
func (f *generateFlags) openWithin(w *writer, config *transformer.Config, o transformer.GenerateOptions) (err error) {
	if f.adapter != "" && f.options.Base == 0 && config.Stored == 0 {
		if a, _, err := qlora.SavedTensors(f.adapter); err == nil && a.DoRA {
			return usagef("generate: -memory: an adapter of DoRA takes the model's matrices from memory: merge it into the model first, by snug merge")
		}
	}
	process := newProcessRoom("generate", f.memory)
	percent, limit := debug.SetGCPercent(gcPercent), debug.SetMemoryLimit(process.heapLimit())
	w.restore = func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
	defer func() {
		if err != nil {
			w.restore()
		}
	}()
	if bytes := quantizedBytes(config, &f.options); bytes > 0 { // which are in memory whatever the limit is
		if err := process.take(bytes); err != nil {
			return err
		}
	}
	f.options.Stream = f.memory
	if w.model, err = transformer.Open(f.dir, f.options); err != nil {
		return err
	}
	if err := f.stream(w, process, o); err != nil {
		return errors.Join(err, w.model.Close())
	}
	return nil
}

// stream gives the matrices what the limit leaves, and makes the generator.
func (f *generateFlags) stream(w *writer, process *processRoom, o transformer.GenerateOptions) error {
	beside, err := w.model.GenerateBytes(o)
	if err != nil {
		return err
	}
	beside += w.model.Memory().Weights
	largest, all := w.model.StreamBytes()
	if err := process.take(beside + largest); err != nil {
		return err
	}
	left := process.limit - process.wanted(beside+largest) // a part of it, 1/spare, stays free
	if largest > 0 {
		if err := w.model.SetStream(min(all, largest+left-left/spare)); err != nil {
			return err
		}
	}
	w.Generator, err = w.model.Generate(o)
	return err
}
