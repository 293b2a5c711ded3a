package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/internal/serve"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// house holds the models of a server.
type house struct {
	models  []*transformer.Model // the one whose weights the others use comes first
	restore func()               // the limits of Go's memory
}

func (h *house) close() (err error) {
	for i := range h.models {
		err = errors.Join(err, h.models[len(h.models)-1-i].Close())
	}
	h.restore()
	return err
}

func (h *house) weights() (bytes int64) {
	for _, m := range h.models {
		bytes += m.Memory().Weights
	}
	return bytes
}

// servedContext is the most tokens of a prompt and its answer, where nothing else is said.
const servedContext = 4096

// open opens the model and its adapters, and completes the options.
func (f *serveFlags) open(c *call, o *serve.Options) (h *house, err error) {
	config, err := transformer.ReadConfig(f.dir)
	if err != nil {
		return nil, err
	}
	fmt.Fprint(c.stderr, unreadFields(config))
	config = config.Held(f.options)
	switch o.Context = f.context; {
	case f.context > config.Context:
		return nil, usagef("serve: -context %d, and the model is made for %d positions", f.context, config.Context)
	case f.context == 0:
		o.Context = min(config.Context, servedContext)
	}
	process := newProcessRoom("serve", f.memory)
	h = &house{restore: func() {}}
	if f.memory > 0 {
		percent, limit := debug.SetGCPercent(gcPercent), debug.SetMemoryLimit(process.heapLimit())
		h.restore = func() {
			debug.SetGCPercent(percent)
			debug.SetMemoryLimit(limit)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
			h = nil
		}
	}()
	if f.memory > 0 {
		f.options.Stream = f.memory
		if err := process.take(quantizedBytes(config, &f.options)); err != nil { // which are in memory whatever the limit is
			return h, err
		}
	} else if err := fitsHost("serve", f.dir, config, f.options, hostMemory(os.DirFS("/"))); err != nil {
		return h, err
	}
	for _, a := range append([]namedAdapter{{name: f.name()}}, f.adapters...) {
		m, err := f.openOne(c, h, config, a)
		if err != nil {
			return h, err
		}
		o.Models = append(o.Models, m)
	}
	o.Memory, err = f.divide(h, process, o)
	return h, err
}

// openOne opens the model, or an adapter of it.
func (f *serveFlags) openOne(c *call, h *house, config *transformer.Config, a namedAdapter) (s serve.Model, err error) {
	noteLinks(c.stderr, f.dir, a.dir)
	s = serve.Model{Name: a.name}
	from, rows, note, err := tokenizerOf(f.dir, a.dir, config, "prompts and answers are written with")
	if err != nil {
		return s, err
	}
	fmt.Fprint(c.stderr, note)
	if s.Tokenizer, err = tokenizer.Open(from); err != nil {
		return s, err
	}
	s.Tokenizer = s.Tokenizer.Limit(rows)
	if hasTemplate(s.Tokenizer) || f.template != "" {
		if s.Template, err = chat.Open(s.Tokenizer, chat.Options{Name: f.template}); err != nil {
			return s, fmt.Errorf("%s: %w", from, err)
		}
	} else {
		fmt.Fprintf(c.stderr, "snug: %s has no chat template: it takes /v1/completions alone\n", escaped(from))
	}
	if note := templateNote(s.Tokenizer, f.template); note != "" {
		fmt.Fprintf(c.stderr, "snug: %s\n", escaped(note))
	}
	if in, err := vision.OpenInput(f.dir); err == nil { // of some models that see images, the template leaves the special tokens out
		bos := s.Tokenizer.Config().BOS
		s.AddsSpecial = func(text string) bool { return in.AddsSpecial(bos, text) }
	}
	if s.Ends, err = endTokens(f.dir, config, s.Tokenizer); err != nil {
		return s, err
	}
	options := f.options
	if a.dir != "" {
		if err := f.checkDoRA(config, a.dir); err != nil {
			return s, err
		}
		options = transformer.Options{AdapterDir: a.dir, Share: h.models[0]}
	}
	if s.Model, err = transformer.Open(f.dir, options); err != nil {
		return s, err
	}
	h.models = append(h.models, s.Model)
	return s, nil
}

// checkDoRA returns an error for an adapter that takes matrices from memory, where -memory leaves them in the folder.
func (f *serveFlags) checkDoRA(config *transformer.Config, adapter string) error {
	if f.memory == 0 || f.options.Base != 0 || config.Stored != 0 {
		return nil
	}
	if a, _, err := qlora.SavedTensors(adapter); err == nil && a.DoRA {
		return usagef("serve: -memory: an adapter of DoRA takes the model's matrices from memory: merge it into the model first, by snug merge")
	}
	return nil
}

// divide finds that the models fit, and returns the bytes of the caches of all requests that are computed at a time. With a limit,
// matrices come before all caches but the first, except for a quarter of what is left.
func (f *serveFlags) divide(h *house, process *processRoom, o *serve.Options) (caches int64, err error) {
	fixed, one := int64(o.Rows+o.Queue)*serve.BodyBytes(o.Context), int64(0)
	g := serve.CacheOptions(o.Context)
	for _, m := range h.models {
		cache, err := m.CacheBytes(g)
		if err != nil {
			return 0, err
		}
		all, err := m.GenerateBytes(g)
		if err != nil {
			return 0, err
		}
		vocab := m.Config().Vocab
		fixed += all - min(cache, all) + m.Memory().Weights + 4*int64(o.Rows)*int64(vocab)
		one = max(one, cache)
	}
	caches = int64(o.Rows) * one
	if f.memory == 0 {
		if !f.options.Device.IsCPU() {
			return caches, nil
		}
		return caches, process.take(fixed + caches)
	}
	largest, all := h.models[0].StreamBytes()
	if err := process.take(fixed + largest + one); err != nil {
		return 0, err
	}
	left := process.limit - process.wanted(fixed+largest+one)
	left -= left / spare // which -memory leaves free
	caches = one + min(caches-one, max(left/4, left-(all-largest)))
	if largest > 0 {
		return caches, h.models[0].SetStream(min(all, largest+left-(caches-one)))
	}
	return caches, nil
}
