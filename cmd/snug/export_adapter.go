package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
)

// This file writes adapters alone, as other programs load them beside the model.

// alone reports whether the adapter is written alone.
func (f *exportFlags) alone() bool { return f.lora || f.mlx != "" }

// checkAlone checks what is of adapters alone.
func (f *exportFlags) checkAlone() error {
	flag := "-lora"
	if f.mlx != "" {
		flag = "-mlx"
	}
	switch {
	case len(f.adapters) != 1:
		return usagef("export: %s writes one adapter: want one -adapter; several are merged into the model, without %s", flag, flag)
	case f.mlx != "":
		if err := emptyFolder(f.mlx); err != nil {
			return usagef("export: -mlx: %w", err)
		}
	}
	return nil
}

// remedy adds to the error for an adapter that another program does not take the command that makes what it takes.
func (f *exportFlags) remedy(err error) error {
	if !errors.Is(err, snug.ErrConfig) {
		return usageError{err}
	}
	what := "-gguf FILE.gguf"
	command := "export"
	if f.mlx != "" {
		command, what = "merge", "-o MERGED, and mlx_lm.convert --hf-path MERGED"
	}
	return usagef("%w; merged it runs: snug %s -model %s -adapter %s %s", err, command, shellQuote(f.model), shellQuote(f.adapters[0]), what)
}

// saveAlone writes the adapter.
func (f *exportFlags) saveAlone(c *call, stop console.Stop) (err error) {
	process := newProcessRoom("export", f.memory)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	a, err := f.config.OpenAdapter(f.adapters[0])
	if err != nil {
		return f.remedy(err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	form, err := f.formOf(a)
	if err != nil {
		return f.remedy(err)
	}
	for _, note := range append(a.Notes(), form.notes...) {
		fmt.Fprintf(c.stderr, "snug: %s\n", escaped(note))
	}
	if err := process.take(form.size.Memory); err != nil {
		return err
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(process.heapLimit()))
	if f.dryRun {
		return f.rehearse(c, form.size, process)
	}
	if err := checkRoom("export", f.rooms(form.size), files.SpaceOf); err != nil {
		return err
	}
	if err := form.save(stop.After, c); err != nil {
		return err
	}
	_, peak := meter.Resident()
	fmt.Fprintf(c.stdout, "%s: %s, peak RSS %s, %s predicted\n  %s\n", f.result(), meter.FormatBytes(form.size.Bytes), meter.FormatBytes(peak), meter.FormatBytes(process.predicted), form.next)
	return nil
}

// result is what export writes.
func (f *exportFlags) result() string {
	if f.mlx != "" {
		return f.mlx
	}
	return f.output
}

// aloneForm is an adapter in the form of a program.
type aloneForm struct {
	size  transformer.SaveSize
	notes []string
	save  func(ctx context.Context, c *call) error
	next  string // how the program takes it
}

func (f *exportFlags) formOf(a *transformer.AdapterFile) (form aloneForm, err error) {
	if f.mlx != "" {
		form.size, err = a.MLXSize()
		form.save = func(ctx context.Context, c *call) error { return f.saveMLX(ctx, c, a) }
		form.next = "mlx_lm.generate --model MODEL --adapter-path " + shellQuote(f.mlx)
		return form, err
	}
	name := f.adapters[0]
	if absolute, err := filepath.Abs(name); err == nil {
		name = absolute
	}
	o := transformer.GGUFOptions{Type: f.kind, New: true, Metadata: []gguf.Pair{{Key: "general.name", Value: filepath.Base(name)}}}
	if form.size, err = a.GGUFSize(o); err != nil {
		return form, err
	}
	form.next = "llama-cli -m MODEL.gguf --lora " + shellQuote(f.output)
	form.save = func(ctx context.Context, _ *call) error {
		if err := a.SaveGGUF(ctx, f.output, o); err != nil {
			return ofOutput("gguf", f.output, err)
		}
		return nil
	}
	form.notes, err = a.GGUFNotes(f.kind)
	return form, err
}

// saveMLX writes the folder of mlx-lm.
func (f *exportFlags) saveMLX(ctx context.Context, c *call, a *transformer.AdapterFile) (err error) {
	out, err := takeOutput(f.mlx)
	if err != nil {
		return usagef("export: -mlx: %w", err)
	}
	defer func() { err = errors.Join(err, out.drop()) }()
	out.note(c.stderr)
	if err := a.SaveMLX(ctx, f.mlx); err != nil {
		return err
	}
	return out.finish()
}
