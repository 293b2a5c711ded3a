package transformer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/qlora"
)

// AdapterFile is a folder of LoRA adapters of a model that is open to be written in the form of another program:
// [AdapterFile.SaveGGUF] and [AdapterFile.SaveMLX]. The weights of the model are not needed, and a matrix of an adapter is in memory at
// a time. It is not safe for concurrent use.
type AdapterFile struct {
	config  Config // whose head may be the embedding
	noMLX   error  // why mlx-lm does not have the model
	mlxBody string // before the names of its text in mlx-lm
	dir     string
	from    *qlora.AdapterReader
	options qlora.AdapterOptions
	base    float64 // scale of an adapter of rank 1 without a pattern, times its rank: alpha of the folder, as lora_alpha/rank has it
	list    map[string]adaptedParam
	notes   []string
}

// adaptedParam is the adapter of a parameter, without its elements.
type adaptedParam struct {
	*qlora.LoRA
	module string // PEFT's
}

// OpenAdapter opens a folder of adapters of the model of a Config, as Options.AdapterDir takes it. The caller closes it.
//
// The error wraps [snug.ErrConfig], and names it, for what is no LoRA of matrices: VeRA, parameters of ModulesToSave, a vocabulary of
// another size, and adapters of an embedding or a head that are one matrix. Such adapters are merged into the model, by [Model.Save] or
// [Model.SaveGGUF]. The error also wraps it for adapters of LoftQ, which are for weights in nf4. Others are those of
// [qlora.OpenAdapters], and of [Open] for adapters that are not of the model.
func (c *Config) OpenAdapter(dir string) (_ *AdapterFile, err error) {
	defer fault.Named(&err, "transformer: OpenAdapter")
	if err := c.check(); err != nil {
		return nil, err
	}
	if gguf.IsFile(dir) {
		return nil, fmt.Errorf("%s is a file of llama.cpp, want the folder of an adapter as PEFT writes it: %w", dir, snug.ErrConfig)
	}
	is, err := qlora.IsVeRA(dir)
	switch {
	case err != nil:
		return nil, err
	case is:
		return nil, fmt.Errorf("%s has adapters of VeRA, which other programs do not take: merge them into the model: %w", dir, snug.ErrConfig)
	}
	f := &AdapterFile{config: *c, dir: dir}
	if f.from, err = qlora.OpenAdapters(dir); err != nil {
		return nil, err
	}
	f.options = f.from.Options()
	if err := f.match(); err != nil {
		return nil, errors.Join(err, f.from.Close())
	}
	return f, nil
}

// match finds the parameters of the adapters.
func (f *AdapterFile) match() error {
	if modules := f.options.ModulesToSave; len(modules) > 0 {
		return fmt.Errorf("%s: modules_to_save has %.200q, which trained whole and are no adapters: merge the folder into the model: %w", f.dir, modules, snug.ErrConfig)
	}
	for _, t := range f.from.Saved() {
		if !strings.HasSuffix(t.Name, ".base_layer.weight") { // that of the model, beside its adapter
			return fmt.Errorf("%s has the whole matrix %s beside the adapters: merge the folder into the model: %w", f.dir, t.Name, snug.ErrConfig)
		}
	}
	m := &Model{config: f.config, whole: f.config.Whole, options: Options{AdapterDir: f.dir}, dev: snug.CPU()}
	m.config.Whole = ""
	if err := m.readTables(); err != nil {
		return err
	}
	loaded := f.from.Adapters()
	count := len(loaded)
	chosen, err := m.chooseAdapters(func(string) (map[string]*qlora.LoRA, error) {
		m.adapters = f.options
		return loaded, nil
	})
	switch {
	case err != nil:
		return err
	case m.config.Vocab != m.tables.vocab:
		return fmt.Errorf("%s has a vocabulary of %d rows, the model has %d: merge the folder into the model: %w", f.dir, m.config.Vocab, m.tables.vocab, snug.ErrConfig)
	case m.tables.tied && len(m.tables.adapters) > 0:
		return fmt.Errorf("%s has an adapter of %s, which is embedding and head in one, and the adapter is of one of them: merge the folder into the model: %w",
			f.dir, slices.Sorted(maps.Keys(m.tables.adapters))[0], snug.ErrConfig)
	}
	f.list = make(map[string]adaptedParam, len(chosen))
	add := func(param string, a *qlora.LoRA) {
		f.list[param] = adaptedParam{a, m.adapterName(strings.TrimSuffix(param, ".weight"))}
	}
	for name, a := range m.tables.adapters {
		add(name, a)
	}
	for _, c := range chosen {
		add(c.module+".weight", c.loaded)
	}
	if images := count - len(f.list); images > 0 {
		f.notes = append(f.notes, fmt.Sprintf("%d adapters are of the part for images, and are left out", images))
	}
	f.noMLX = f.config.CheckMLX()
	if w := f.config.whole(); w != nil {
		f.mlxBody = w.mlx
	}
	f.config.Whole = "" // the names of parameters are the family's
	f.base = float64(f.options.Alpha)
	if f.options.RSLoRA {
		f.base *= math.Sqrt(float64(f.options.Rank))
	}
	return nil
}

// Notes say what of the folder the files do not have, a sentence each without its full stop.
func (f *AdapterFile) Notes() []string {
	if f == nil {
		return nil
	}
	return slices.Clone(f.notes)
}

// Close closes the folder. A second call does nothing.
func (f *AdapterFile) Close() error {
	if f == nil {
		return nil
	}
	f.list = nil
	return f.from.Close()
}

// open returns an error for an AdapterFile that is closed or zero, and for a context that is nil.
func (f *AdapterFile) open(ctx context.Context) error {
	switch {
	case f == nil || f.list == nil:
		return fmt.Errorf("want an AdapterFile of Config.OpenAdapter that is not closed: %w", snug.ErrConfig)
	case ctx == nil:
		return fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	}
	return context.Cause(ctx)
}

// stacked is one matrix of an adapter in a file that has those of several adapters in one tensor.
type stacked struct {
	adaptedParam                   // without a LoRA: there is none, and the elements are 0
	part         qlora.AdapterPart // A or B
	rank         int               // in the file: columns of B and rows of A beyond that of the LoRA are 0
	factor       float32           // of B
}

// stack returns the largest rank of the adapters of parameters, 0 if none has one.
func (f *AdapterFile) stack(params []string) (rank int) {
	for _, p := range params {
		if a := f.list[p]; a.LoRA != nil {
			rank = max(rank, a.Rank)
		}
	}
	return rank
}

// stackedOf returns a matrix of the adapter of a parameter in a file. scale is the one that a program multiplies with.
func (f *AdapterFile) stackedOf(param string, part qlora.AdapterPart, rank int, scale float64) stacked {
	s := stacked{adaptedParam: f.list[param], part: part, rank: rank, factor: 1}
	if s.LoRA != nil && part == qlora.PartB {
		const rounding = 1e-6 // of a scale
		if x := float64(s.Scale) / scale; math.Abs(x-1) > rounding {
			s.factor = float32(x)
		}
	}
	return s
}

// read reads elements of a matrix in a file from one on. Of B they are whole rows.
func (f *AdapterFile) read(s stacked, lo int, dst []float32) error {
	clear(dst)
	if s.LoRA == nil {
		return nil
	}
	load := func(lo int, dst []float32) error {
		if len(dst) == 0 {
			return nil
		}
		return f.from.ReadAt(snug.ViewOf(dst), s.module, s.part, lo)
	}
	switch {
	case s.part == qlora.PartMagnitude:
		return load(lo, dst)
	case s.part == qlora.PartA:
		return load(lo, dst[:min(len(dst), max(0, s.Rank*s.In-lo))])
	case s.rank == s.Rank:
		if err := load(lo, dst); err != nil {
			return err
		}
	default:
		for row := range len(dst) / s.rank {
			if err := load((lo/s.rank+row)*s.Rank, dst[row*s.rank:][:s.Rank]); err != nil {
				return err
			}
		}
	}
	if s.factor != 1 {
		for i := range dst {
			dst[i] *= s.factor
		}
	}
	return nil
}
