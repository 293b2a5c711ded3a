package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/transformer"
)

// traceEvents is the number of events that the history of -trace keeps.
const traceEvents = 1 << 16

// traceRows is the number of rows in the printed table of the peak.
const traceRows = 16

// checkFile returns an error if the file that a flag names cannot be written, has another ending than those given, or is
// in a folder that the run uses.
func (f *tuneFlags) checkFile(name, path string, ends ...string) error {
	want := "want a name that ends in " + strings.Join(ends, " or ")
	if path == "" {
		return nil
	}
	if !slices.Contains(ends, filepath.Ext(path)) {
		return usagef("tune: -%s %s: %s", name, path, want)
	}
	folders := append(strings.Split(f.files, ","), f.dir)
	if f.output != "" {
		folders = append(folders, f.output, filepath.Clean(f.output)+".pages")
	}
	if f.checkpoint != "" {
		folders = append(folders, f.checkpoint)
	}
	for _, folder := range folders {
		if within(path, folder) {
			return usagef("tune: -%s %s is in %s, which this run reads or writes", name, path, folder)
		}
	}
	if f.dryRun && name == "trace" { // which a dry run does not write
		return nil
	}
	if err := writable(path); err != nil {
		return usagef("tune: -%s: %w", name, err)
	}
	return nil
}

// writable returns an error if a file cannot be replaced. It finds that before hours of work.
func writable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	trial, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	var at *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: the folder %s does not exist", path, filepath.Dir(path))
	case errors.As(err, &at): // which has the name of the trial
		return &fs.PathError{Op: "create", Path: path, Err: at.Err}
	case err != nil:
		return err
	}
	return errors.Join(trial.Close(), os.Remove(trial.Name()))
}

// startTrace makes the monitor, before the process is measured.
func (t *tuning) startTrace() (err error) {
	if t.trace != "" {
		t.monitor, err = meter.New(meter.Options{History: traceEvents, Samples: 2})
	}
	return err
}

func (t *tuning) endTrace() error {
	if t.monitor == nil {
		return nil
	}
	return t.monitor.Close()
}

// counted returns a store whose pages in memory the monitor counts.
func (t *tuning) counted(s *offload.Store, rest meter.Component) transformer.Checkpoints {
	if t.monitor == nil {
		return s
	}
	return t.monitor.Pages(s, meter.OnDevice, rest, func() int64 { return s.Stats().HostBytes })
}

// writeTrace prints what holds memory at the peak, and writes the file of -trace. Later calls do nothing.
func (t *tuning) writeTrace() error {
	if t.monitor == nil || t.traced {
		return nil
	}
	t.traced = true
	if t.monitor.Peak(meter.OnDevice) > 0 {
		fmt.Fprintln(t.call.stdout)
		if err := t.monitor.WritePeak(t.call.stdout, meter.OnDevice, traceRows); err != nil {
			return err
		}
	}
	err := files.Replace(t.trace, func(w io.Writer) error {
		if filepath.Ext(t.trace) == ".svg" {
			return t.monitor.WritePeakSVG(w, meter.OnDevice, folderName(t.dir, t.plan.Task.Model.Name))
		}
		return t.monitor.WriteTrace(w)
	})
	if err != nil {
		return fmt.Errorf("tune: -trace: %w", err)
	}
	fmt.Fprintf(t.call.stdout, "the trace is in %s\n", t.trace)
	return nil
}
