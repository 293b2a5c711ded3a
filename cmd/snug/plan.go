package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/tokenizer"
)

func runPlan(c *call) (err error) {
	var f planFlags
	f.flags = f.table()
	folder, err := c.parse(f.flags, 0, 1)
	if err != nil {
		return err
	}
	preset, remove, err := layOut(f.model)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	if preset != "" && len(folder) == 0 {
		f.model, folder = "", []string{preset}
	}
	task, err := f.task(c, folder)
	if err != nil {
		return err
	}
	p, err := f.fit(task, strings.Join(folder, ""))
	var miss *plan.MissError
	switch {
	case errors.As(err, &miss) && f.json:
		return errors.Join(writeJSON(c.stdout, missReport(miss)), err)
	case errors.As(err, &miss):
		return err
	case err != nil:
		return usageError{err} // an error of the model or an option
	}
	if f.output != "" {
		if err := writeSVG(f.output, p); err != nil {
			return err
		}
	}
	assumption, process := f.assumedContext(task.Model.Context), int64(0)
	if len(folder) > 0 || f.memory > 0 {
		if process, err = p.Task.Resident(p.Run); err != nil {
			return err
		}
	}
	if f.page != "" {
		if err := f.writeReport(p, process); err != nil {
			return err
		}
	}
	if f.json {
		r := planReport(p)
		r.Process = process
		r.ContextAssumed = assumption != ""
		return writeJSON(c.stdout, r)
	}
	if _, err := io.WriteString(c.stdout, assumption); err != nil {
		return err
	}
	if err := p.WriteTable(c.stdout); err != nil {
		return err
	}
	if f.memory > 0 {
		noteOtherType(c.stdout, p, f.memory, f.process)
	}
	if process == 0 {
		return f.planImages(c.stdout, task, folder)
	}
	_, err = fmt.Fprintf(c.stdout, "\na process that trains so on the CPU takes about %s of resident memory on %s\n",
		meter.FormatBytes(process), console.Count(runtime.GOMAXPROCS(0), "core"))
	return errors.Join(err, f.planImages(c.stdout, task, folder))
}

// defaultDevice is assumed if no device is named; the output says so.
const (
	defaultDevice = "24GB"
	assumed       = " (assumed, as no -device is named)"
)

// task returns the task that the flags and the operand describe.
func (f *planFlags) task(c *call, folder []string) (t plan.Task, err error) {
	switch {
	case f.model == "" && len(folder) == 0:
		return t, usagef("plan: want a folder with a config.json, or -model: one of %s, or a file of JSON", strings.Join(planModels(), ", "))
	case f.model != "" && len(folder) > 0:
		return t, usagef("plan: %.40q and -model %.40q: want one of the two", folder[0], f.model)
	case len(f.images) > 0 && len(folder) == 0:
		return t, usagef("plan: -pixels: want a folder of a model that sees images")
	case f.model != "":
		t.Model, err = f.readModel(c)
	default:
		noteLinks(c.stderr, folder[0])
		t.Model, err = f.readFolder(folder[0])
		fmt.Fprint(c.stderr, f.unread)
	}
	if err != nil {
		return t, err
	}
	if t.Device, err = plan.DeviceNamed(cmp.Or(f.device, defaultDevice)); err != nil {
		return t, usageError{err}
	}
	if f.device == "" {
		t.Device.Name += assumed
	}
	if f.memory > 0 {
		t.Device = processor(0)
	}
	t.Device.Host, t.Device.Disk = f.host, f.disk
	if f.ranks < 1 || f.ranks > f.batch {
		return t, usagef("plan: -ranks %d: want 1 to %d, the samples of -batch", f.ranks, f.batch)
	}
	if f.network > 0 {
		t.Device.Network = float64(f.network)
	}
	if f.latency > 0 {
		t.Device.Latency = f.latency.Seconds()
	}
	t.Batch, t.Ranks, t.Rank, t.Optimizer = (f.batch+f.ranks-1)/f.ranks, f.ranks, f.rank, f.optimizer
	_, err = plan.GPTNamed(f.model)
	t.Dropout, t.Own = f.dropout > 0, f.own || f.model != "" && err != nil // nothing in snug trains other models without a folder
	if f.output != "" && !strings.HasSuffix(f.output, ".svg") {
		return t, usagef("plan: -o %s: the chart is SVG, so the name ends in .svg", f.output)
	}
	if f.page != "" {
		if err := checkReport(f.page, true); err != nil {
			return t, usagef("plan: -report: %w", err)
		}
	}
	return t, f.choices(&t)
}

// fit returns the best plan: of a process within -memory as tune finds it for a folder, or else of a device.
func (f *planFlags) fit(t plan.Task, folder string) (plan.Plan, error) {
	if f.memory == 0 {
		return plan.Best(t.Fit(f.deviceMemory))
	}
	if t.Compute == nil {
		t.Compute = []snug.DType{snug.BF16}
	}
	tok, _ := tokenizer.Open(folder) // nil without one
	f.process = plan.ThisProcess()
	runtime.KeepAlive(tok)
	f.process.Base += readingBytes + f.extra
	return fitProcess("plan", gentlest(t, t.Ranks > 1), f.memory, f.process)
}

// parseBase returns a form of frozen weights below 16 bits.
func parseBase(name string) (qlora.Type, error) {
	t, err := qlora.ParseType(name)
	if err != nil || t == qlora.FP8E5M2 { // which only folders have
		return 0, fmt.Errorf("%.40q, want %s", name, either(lowForms))
	}
	return t, nil
}

// named returns a parser of the names of values.
func named[T fmt.Stringer](values ...T) func(string) (T, error) {
	return func(name string) (v T, err error) {
		all := names(values)
		if i := slices.Index(all, name); i >= 0 {
			return values[i], nil
		}
		return v, fmt.Errorf("%.40q, want some of %s", name, strings.Join(all, ","))
	}
}

// readModel returns a preset, or the model that a file or the input describes.
func (f *planFlags) readModel(c *call) (plan.Model, error) {
	m, err := plan.ModelNamed(f.model, f.context)
	if err == nil {
		return m, nil
	}
	if isFolder(f.model) {
		return m, usagef("plan: -model is for presets and files of JSON; a folder is given without it: snug plan %s", f.model)
	}
	if err := notDownloaded("plan: -model", f.model); err != nil && strings.Contains(f.model, "/") {
		return m, err
	}
	if !strings.HasSuffix(f.model, ".json") && f.model != "-" {
		return m, usagef("%w, or a file whose name ends in .json", err)
	}
	if f.context != 0 {
		return m, usagef("plan: -context is for presets, a file has its own")
	}
	in := c.stdin
	if f.model != "-" {
		file, _, err := files.Open(f.model)
		if err != nil {
			return m, usageError{err}
		}
		defer file.Close()
		in = file
	}
	if m, err = plan.ReadModel(in); err != nil {
		return m, usagef("%s: %w", f.model, err)
	}
	return m, nil
}

func writeSVG(name string, p plan.Plan) error {
	if err := console.Writable(name, ".svg"); err != nil {
		return err
	}
	return console.WriteFile(name, p.WriteSVG)
}
