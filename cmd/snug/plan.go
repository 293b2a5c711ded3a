package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
)

func planCommand() *command {
	return &command{
		name: "plan", args: "[FOLDER]", operands: "file", summary: "predict the memory of training, and find what fits",
		flags: []string{"-model:" + strings.Join(plan.Models(), " "), "-device:" + strings.Join(deviceNames(), " "), "-memory", "-host-memory", "-disk", "-batch",
			"-context", "-ranks", "-network", "-latency", "-shard:replicate state gradients weights", "-rank", "-adapter:" + strings.Join(adapterKinds, " "), "-dora", "-dropout", "-optimizer:" + strings.Join(plan.Optimizers(), " "), "-compute:bf16 f16 f32", "-masters:full split split24 none",
			"-gradients:f32 bf16 in-backward folded", "-state:32 16 8 4", "-base:bf16 nf4 fp4 mxfp4 fp8 int8", "-tiles:auto", "-o:file", "-report:file", "-json"},
		help: planHelp(),
		run:  runPlan,
	}
}

func deviceNames() (names []string) {
	for _, d := range plan.Devices() {
		names = append(names, d.Name)
	}
	return names
}

func planHelp() string {
	return `Predicts the memory and the time of a training step from a model's shapes, and finds
the fastest way to run it within a limit. The batch never changes. FOLDER is a published
model or its config.json; without it, -model names the model. The plan does not need the
weights; if the folder has them, they are compared with config.json. Of the weights of a
published model, only matrices that are frozen in 4 or 8 bits can lie on the host or the disk.

  -model NAME        ` + wrap(plan.Models(), 21) + `,
                     or a file that ends in .json, see below; - reads it from standard input
  -device NAME       ` + wrap(deviceNames(), 21) + `
                     (GPUs with that much memory); default: 24GB
  -memory SIZE       limit of the device's memory; default: all that the device gives a program
  -host-memory SIZE  host memory that the plan may use; default: none
  -disk SIZE         disk that the plan may use; default: none
  -batch N           samples in a step: sequences or images; default 32
  -context N         tokens in a sequence, at most as many as the model has positions for;
                     default: the preset's, or the folder's but at most 2048
  -ranks N           processes that make a step together, each on such a device; -batch is for all of them
  -network SIZE      with -ranks: bytes a second that a rank sends, as "mpiexec -n 2 snug devices" measures
                     them; default: 10GB, with 16GB-unified 1GB
  -latency DURATION  with -ranks: time of a message between ranks; default: 20us, with 16GB-unified 50us
  -rank N            freeze the weights, train adapters of rank N on all matrices of the layers (tune: -lora)
  -adapter KIND      what the adapters are: ` + wrap(adapterKinds, 43) + `;
                     default: lora
  -dora              the same as -adapter dora
  -dropout           the inputs of the adapters have dropout
  -optimizer NAME    ` + wrap(plan.Optimizers(), 21) + `;
                     default: adamw
  -o FILE            also write an SVG chart of the bytes
  -report FILE.html  also write a page with pictures: memory by component against its limit, the memory
                     during a step, what is computed again and what is paged. The report of a run is not
                     overwritten
  -json              write JSON instead of text

The plan chooses from these comma-separated lists. The values after "or" change the
arithmetic of a step more, so the plan uses them only when you name them:

  -compute LIST      types of weights and activations; default bf16,f32; or f16
  -masters LIST      master weights for 16-bit weights: full (4 bytes), split (2 bytes);
                     or split24 (1 byte: with the bf16 weight a number of 24 bits), none
  -gradients LIST    f32 (sums in float32), in-backward (one gradient at a time, in a single
                     micro-batch); or bf16 (sums in bfloat16), folded (in-backward with several
                     micro-batches, whose gradients are folded into the optimizer's state)
  -state LIST        bits of an element of optimizer state; default 32,8; or 16,4
  -base LIST         forms of the frozen weights below adapters: bf16 (any type of -compute), nf4
                     or fp4 (4.13 bits with their scales), mxfp4 (4.25), fp8 or int8 (8 and scales); at
                     most one below 16 bits; default bf16,nf4. Matrices that are quantized in a folder
                     keep their form, and its others stay in floats, unless you name the folder's form
  -shard LIST        what the ranks divide: replicate (nothing); state (of the optimizer, and master weights,
                     ZeRO-1); gradients (state and gradients, ZeRO-2); weights (the model's matrices too,
                     ZeRO-3; under adapters all gradients stay on each rank); default: what the optimizer
                     allows
  -tiles LIST        numbers of tiles of rows in which the MLPs of a published model run; default 1; or
                     more, such as 4 or 1,2,8; auto: 1,2,4,8,16,32

The components of the memory:

  weights            what the forward pass reads
  master weights     float32 precision kept in addition to 16-bit weights
  gradients          sums over the micro-batches of a step
  optimizer state    moments and their scales
  activations        values kept for the backward pass or passed between layers
  workspace          scratch of one layer at a time
  allowance          what an allocator may lose to fragmentation

Times assume half the rates of data sheets. Use them only to compare plans.

When nothing fits, the exit status is 1, and the message says how much memory is missing
and which change costs the least time; -json lists every change that makes it fit.

  snug plan -memory 6GiB Qwen3-0.6B
  snug plan -model llama-2b -memory 24GB
  snug plan -model llama-7b -device 24GB -host-memory 64GiB -disk 1TB
  snug plan -model llama-7b -device 8GB -rank 16 -base nf4
  snug plan -model gpt2 -memory 6GiB -batch 512 -o gpt2.svg -report gpt2.html
  snug plan -model my.json -json

A model file is an object with exactly one of four members; unknown fields are errors:

  {"gpt": {"vocab": 32000, "dim": 768, "layers": 12, "heads": 12, "context": 1024}}
      optional: name, kv_heads, hidden, positions, and true or false: gated, rmsnorm, rotary, untied,
      bias, split_qkv
  {"vit": {"image": 224, "patch": 16, "classes": 1000, "dim": 768, "layers": 12, "heads": 12}}
      optional: name, channels, hidden
  {"cnn": {"image": 224, "classes": 1000, "blocks": [3, 4, 6, 3], "bottleneck": true}}
      optional: name, channels, width
  {"chain": {"name": "mlp", "input": 784, "layers": [
      {"name": "linear", "repeat": 4, "params": [[784, 784], [784]],
       "output": 784, "kept": 784, "forward": 784, "backward": 784, "macs": 614656}]}}
      counts are elements of one sample; "go doc github.com/snug-ml/snug/plan.Layer" explains every field
`
}

// wrap joins words with commas, in indented lines of at most 90 letters.
func wrap(words []string, indent int) string {
	var b strings.Builder
	width := indent
	for i, w := range words {
		if i > 0 {
			b.WriteByte(',')
			width++
		}
		if width+len(w)+2 > 90 {
			b.WriteString("\n" + strings.Repeat(" ", indent))
			width = indent
		} else if i > 0 {
			b.WriteByte(' ')
			width++
		}
		b.WriteString(w)
		width += len(w)
	}
	return b.String()
}

// planFlags are the command line of plan.
type planFlags struct {
	model, device, memory, host, disk string
	batch, context, rank, ranks       int
	dropout                           bool
	adapterFlags
	longest                                int        // tokens of the longest sequence that the model of a folder is made for
	stored                                 qlora.Type // form of the matrices of a folder
	unread                                 string     // the line about fields of its config.json that change nothing
	optimizer                              string
	compute, masters, gradients, stateBits string
	base, tiles, shard, network            string
	latency                                time.Duration
	output, page                           string
	json                                   bool
	set                                    *flag.FlagSet // the parsed flags
}

func (p *planFlags) define(fs *flag.FlagSet) {
	p.set = fs
	fs.StringVar(&p.model, "model", "", "")
	fs.StringVar(&p.device, "device", "", "")
	fs.StringVar(&p.memory, "memory", "", "")
	fs.StringVar(&p.host, "host-memory", "", "")
	fs.StringVar(&p.disk, "disk", "", "")
	fs.IntVar(&p.batch, "batch", 32, "")
	fs.IntVar(&p.context, "context", 0, "")
	fs.IntVar(&p.rank, "rank", 0, "")
	fs.IntVar(&p.ranks, "ranks", 1, "")
	fs.StringVar(&p.shard, "shard", "", "")
	fs.StringVar(&p.network, "network", "", "")
	fs.DurationVar(&p.latency, "latency", 0, "")
	fs.StringVar(&p.kind, "adapter", "", "")
	fs.BoolVar(&p.dora, "dora", false, "")
	fs.BoolVar(&p.dropout, "dropout", false, "")
	fs.StringVar(&p.optimizer, "optimizer", "adamw", "")
	fs.StringVar(&p.compute, "compute", "", "")
	fs.StringVar(&p.masters, "masters", "", "")
	fs.StringVar(&p.gradients, "gradients", "", "")
	fs.StringVar(&p.stateBits, "state", "", "")
	fs.StringVar(&p.base, "base", "", "")
	fs.StringVar(&p.tiles, "tiles", "", "")
	fs.StringVar(&p.output, "o", "", "")
	fs.StringVar(&p.page, "report", "", "")
	fs.BoolVar(&p.json, "json", false, "")
}

func runPlan(c *call) error {
	var f planFlags
	folder, err := c.parse(f.define, 0, 1)
	if err != nil {
		return err
	}
	task, limit, err := f.task(c, folder)
	if err != nil {
		return err
	}
	p, err := task.Fit(limit)
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
	if len(folder) > 0 {
		if process, err = p.Task.Resident(p.Run, plan.Process{}); err != nil {
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
	if err := p.WriteTable(c.stdout); err != nil || process == 0 {
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "\na process that trains so on the CPU takes about %s of resident memory on %s\n",
		plan.FormatBytes(process), console.Count(runtime.GOMAXPROCS(0), "core"))
	return err
}

// defaultDevice is assumed if no device is named; the output says so.
const (
	defaultDevice = "24GB"
	assumed       = " (assumed, as no -device is named)"
)

// task returns the task that the flags and the operand describe, and the limit.
func (f *planFlags) task(c *call, folder []string) (t plan.Task, limit int64, err error) {
	switch {
	case f.model == "" && len(folder) == 0:
		return t, 0, usagef("plan: want a folder with a config.json, or -model: one of %s, or a file of JSON", strings.Join(plan.Models(), ", "))
	case f.model != "" && len(folder) > 0:
		return t, 0, usagef("plan: %.40q and -model %.40q: want one of the two", folder[0], f.model)
	case f.context < 0:
		return t, 0, usagef("plan: -context %d: want 1 or more", f.context)
	case f.model != "":
		t.Model, err = f.readModel(c)
	default:
		noteLinks(c.stderr, folder[0])
		t.Model, err = f.readFolder(folder[0])
		fmt.Fprint(c.stderr, f.unread)
	}
	if err != nil {
		return t, 0, err
	}
	if t.Device, err = plan.DeviceNamed(cmp.Or(f.device, defaultDevice)); err != nil {
		return t, 0, usageError{err}
	}
	if f.device == "" {
		t.Device.Name += assumed
	}
	for _, s := range []struct {
		flag, text string
		to         *int64
	}{{"memory", f.memory, &limit}, {"host-memory", f.host, &t.Device.Host}, {"disk", f.disk, &t.Device.Disk}} {
		if s.text == "" {
			continue
		}
		if *s.to, err = plan.ParseBytes(s.text); err != nil {
			return t, 0, usagef("plan: -%s: %w", s.flag, err)
		}
	}
	if f.ranks < 1 || f.ranks > f.batch {
		return t, 0, usagef("plan: -ranks %d: want 1 to %d, the samples of -batch", f.ranks, f.batch)
	}
	if err := f.setNetwork(&t.Device); err != nil {
		return t, 0, err
	}
	t.Batch, t.Ranks, t.Rank, t.Optimizer = (f.batch+f.ranks-1)/f.ranks, f.ranks, f.rank, f.optimizer
	t.Dropout, t.PagesFrozen, t.PagesCheckpoints = f.dropout, len(folder) > 0, len(folder) > 0
	if f.output != "" && !strings.HasSuffix(f.output, ".svg") {
		return t, 0, usagef("plan: -o %s: the chart is SVG, so the name ends in .svg", f.output)
	}
	if f.page != "" {
		if err := checkReport(f.page, true); err != nil {
			return t, 0, usagef("plan: -report: %w", err)
		}
	}
	return t, limit, f.choices(&t)
}

// setNetwork sets the rate and the latency of the ranks' messages.
func (f *planFlags) setNetwork(d *plan.Device) error {
	if (f.network != "" || f.latency != 0) && f.ranks == 1 {
		return usagef("plan: -network and -latency are for -ranks")
	}
	if f.network != "" {
		rate, err := plan.ParseBytes(f.network)
		if err != nil {
			return usagef("plan: -network: %w", err)
		}
		d.Network = float64(rate)
	}
	if f.latency < 0 {
		return usagef("plan: -latency %v: want 0 or more", f.latency)
	}
	if f.latency > 0 {
		d.Latency = f.latency.Seconds()
	}
	return nil
}

// choices parses the lists of choices.
func (f *planFlags) choices(t *plan.Task) (err error) {
	if t.Compute, err = list("compute", f.compute, snug.ParseDType); err != nil {
		return err
	}
	if t.Masters, err = list("masters", f.masters, named(masterForms...)); err != nil {
		return err
	}
	if t.Gradients, err = list("gradients", f.gradients, named(plan.SumF32, plan.SumBF16, plan.InBackward, plan.Folded)); err != nil {
		return err
	}
	if t.StateBits, err = list("state", f.stateBits, strconv.Atoi); err != nil {
		return err
	}
	if t.Shard, err = list("shard", f.shard, parseSharding); err != nil {
		return err
	}
	if t.Tiles = manyTiles; f.tiles != "auto" {
		if t.Tiles, err = list("tiles", f.tiles, parseTile); err != nil {
			return err
		}
	}
	if f.rank == 0 && (f.kind != "" || f.dora || f.dropout) {
		return usagef("plan: -adapter, -dora and -dropout want -rank: they are for adapters")
	}
	if err := f.adapterFlags.check(); err != nil {
		return usagef("plan: %w", err)
	}
	f.describe(t)
	if f.base != "" && f.rank == 0 {
		return usagef("plan: -base wants -rank: without adapters no weights are frozen")
	}
	if f.kind == "loftq" {
		if f.base != "" && f.base != "nf4" {
			return usagef("plan: -base %.60q: -adapter loftq begins with what NF4 loses, and wants nf4", f.base)
		}
		f.base = "nf4"
	}
	forms, err := list("base", f.base, baseForm)
	if f.stored != 0 && f.rank > 0 {
		if f.init() != "" {
			return usagef("plan: -adapter %s begins with a part of the matrices before they are quantized, and the folder has them in %s", f.kind, f.stored)
		}
		if f.base != "" && f.base != f.stored.String() {
			return usagef("plan: -base %.60q: the folder has matrices in %s", f.base, f.stored)
		}
		forms = []qlora.Type{f.stored}
	}
	for _, form := range forms {
		bits := 16
		if form != 0 {
			if t.Base != 0 && t.Base != form {
				return usagef("plan: -base %.60q: want at most one form below 16 bits", f.base)
			}
			t.Base, bits = form, lowBits(form)
		}
		t.Frozen = append(t.Frozen, bits)
	}
	return err
}

var parseSharding = named(plan.Replicate, plan.ShardState, plan.ShardGradients, plan.ShardWeights)

// baseNames are the forms of frozen weights below 16 bits.
const baseNames = "nf4, fp4, mxfp4, fp8 or int8"

// lowBits returns the bits of the codes of a form.
func lowBits(form qlora.Type) int {
	switch form {
	case qlora.FP8, qlora.FP8E5M2, qlora.INT8:
		return 8
	}
	return 4
}

// parseBase returns a form of frozen weights below 16 bits.
func parseBase(name string) (qlora.Type, error) {
	t, err := qlora.ParseType(name)
	if err != nil || t == qlora.FP8E5M2 { // which only folders have
		return 0, fmt.Errorf("%.40q, want %s", name, baseNames)
	}
	return t, nil
}

// baseForm returns the form of frozen weights, 0 for 16 bits. For a plan FP4 is NF4.
func baseForm(name string) (qlora.Type, error) {
	if name == "bf16" {
		return 0, nil
	}
	t, err := parseBase(name)
	if err != nil {
		return 0, fmt.Errorf("%.40q, want some of bf16,nf4,fp4,mxfp4,fp8,int8", name)
	}
	if t == qlora.FP4 {
		t = qlora.NF4
	}
	return t, nil
}

// list parses words with commas between them.
func list[T any](flag, text string, parse func(string) (T, error)) (all []T, err error) {
	if text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		v, err := parse(strings.TrimSpace(word))
		if err != nil {
			return nil, usagef("plan: -%s: %w", flag, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// named returns a parser of the names of values.
func named[T fmt.Stringer](values ...T) func(string) (T, error) {
	return func(name string) (v T, err error) {
		var names []string
		for _, v := range values {
			if v.String() == name {
				return v, nil
			}
			names = append(names, v.String())
		}
		return v, fmt.Errorf("%.40q, want some of %s", name, strings.Join(names, ","))
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

func noFlags(*flag.FlagSet) {}
