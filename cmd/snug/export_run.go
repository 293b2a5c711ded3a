package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
)

func runExport(c *call) (err error) {
	var f exportFlags
	if _, err := c.parse(f.table(), 0, 0); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	noteLinks(c.stderr, append([]string{f.model}, f.adapters...)...)
	if f.alone() {
		if f.config, err = transformer.ReadConfig(f.model); err != nil {
			return usageError{err}
		}
		return untilSignal(c, func(stop console.Stop) error { return f.saveAlone(c, stop) })
	}
	if err := f.describe(c); err != nil {
		return usageError{err}
	}
	page := ""
	if f.modelfile != "" {
		text, note, err := f.page()
		if err != nil {
			return usageError{err}
		}
		if page = text; note != "" {
			fmt.Fprintf(c.stderr, "snug: %s has no TEMPLATE: %s\n", f.modelfile, note)
		}
	}
	return untilSignal(c, func(stop console.Stop) error { return f.save(c, stop, page) })
}

// untilSignal runs what a signal ends with nothing written.
func untilSignal(c *call, do func(stop console.Stop) error) error {
	stop, release := console.OnSignals(console.Options{Name: "snug", Stderr: c.stderr, Advice: "the next run removes what is unfinished"})
	defer release()
	err := do(stop)
	if err != nil && stop.Asked() {
		return console.Interruption{Text: "interrupted, and nothing is written", Status: stop.Status()}
	}
	return err
}

// save writes the file of the model, with its adapters merged, a matrix at a time, and then that for Ollama.
func (f *exportFlags) save(c *call, stop console.Stop, page string) (err error) {
	o := transformer.Options{SaveOnly: true, Context: stop.After}
	if n := len(f.adapters); n > 0 {
		o.AdapterDir, o.Before = f.adapters[n-1], f.adapters[:n-1]
	}
	if err := setForms(&o, f.form, f.compute); err != nil {
		return err
	}
	if f.compute == "" && gguf.IsFile(f.model) { // whose blocks no 16 bits hold
		o.DType = snug.F32
	}
	process := newProcessRoom("export", f.memory)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	m, err := openToMerge(f.model, f.config, o)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	g := transformer.GGUFOptions{Type: f.kind, Metadata: f.metadata, New: true}
	size, err := m.text.GGUFSize(g)
	if err != nil {
		return usageError{err}
	}
	if err := process.take(size.Memory); err != nil {
		return err
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(process.heapLimit()))
	if f.dryRun {
		return f.rehearse(c, size, process)
	}
	if err := checkRoom("export", f.rooms(size), files.SpaceOf); err != nil {
		return err
	}
	if page != "" {
		place, failed := beginPage(f.modelfile, page)
		if failed != nil {
			return ofOutput("modelfile", f.modelfile, failed)
		}
		defer func() { err = place(err) }()
	}
	if err := m.text.SaveGGUF(f.output, g); err != nil {
		return ofOutput("gguf", f.output, err)
	}
	_, peak := meter.Resident()
	fmt.Fprintf(c.stdout, "%s: %s, peak RSS %s, %s predicted\n", f.output, meter.FormatBytes(size.Bytes), meter.FormatBytes(peak), meter.FormatBytes(process.predicted))
	if lost := m.text.LostByMerging(); lost.NormShare() > mostLost {
		fmt.Fprintf(c.stderr, "snug: %d of %d updates lost to rounding, %.2f %% of their norm: -compute f32 keeps them\n",
			lost.Lost, lost.Updates, 100*lost.NormShare())
	}
	return nil
}

// beginPage writes the file for Ollama. place gives it its name, or removes it if there is no file for it to name.
func beginPage(path, page string) (place func(failed error) error, err error) {
	file, err := files.Begin(path, true)
	if err != nil {
		return nil, err
	}
	if _, err := file.WriteAt([]byte(page), 0); err != nil {
		return nil, errors.Join(err, file.Abort())
	}
	return func(failed error) error {
		if failed != nil {
			return errors.Join(failed, file.Abort())
		}
		if err := file.Commit(); err != nil {
			return ofOutput("modelfile", path, err)
		}
		return nil
	}, nil
}

// ofOutput says what is wrong with a file to write.
func ofOutput(flag, path string, err error) error {
	switch {
	case errors.Is(err, files.ErrLocked):
		return usagef("export: -%s: another run writes %s: name another file", flag, path)
	case errors.Is(err, fs.ErrExist):
		return usagef("export: -%s: %s exists, and nothing is overwritten", flag, path)
	}
	return err
}

// rooms returns what the run will write, less the room of what a killed run left.
func (f *exportFlags) rooms(size transformer.SaveSize) []room {
	bytes := size.Bytes
	if f.mlx != "" {
		return []room{{"the adapter", f.mlx, bytes}}
	}
	if left, err := os.Lstat(f.output + ".unfinished"); err == nil && left.Mode().IsRegular() {
		bytes -= left.Size()
	}
	return []room{{"the file", filepath.Dir(f.output), bytes}}
}

// rehearse says what the file takes.
func (f *exportFlags) rehearse(c *call, size transformer.SaveSize, process *processRoom) error {
	fmt.Fprintf(c.stdout, "output    %s\nlargest   %s, a tensor\nmemory    %s at most, predicted\n",
		meter.FormatBytes(size.Bytes), meter.FormatBytes(size.Largest), meter.FormatBytes(process.predicted))
	if f.result() == "" {
		return nil
	}
	return showRoom(c, "export", f.rooms(size))
}

// showRoom says what is free where a run would write, and returns the error that it would return.
func showRoom(c *call, command string, list []room) error {
	space, err := files.SpaceOf(list[0].dir)
	if err != nil {
		fmt.Fprintf(c.stdout, "disk      of %s: it is not known what is free\n", list[0].dir)
		return nil
	}
	fmt.Fprintf(c.stdout, "disk      %s free in %s\n", meter.FormatBytes(space.Free), list[0].dir)
	return checkRoom(command, list, files.SpaceOf)
}
