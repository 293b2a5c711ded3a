package transformer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/qlora"
)

// This file writes LoRA adapters as llama.cpp loads them beside a model, by --lora. For the weight W of a tensor, which is named like it
// with ".lora_a" and ".lora_b" behind, llama.cpp adds to x·Wᵀ
//
//	alpha/r · (x·Aᵀ)·Bᵀ
//
// where r is the length of the rows of B, and alpha the one adapter.lora.alpha of the file. An adapter with another scale s has B·s·r/alpha in
// place of B. Rows of B are in the order of the rows of W in a file. The A of an embedding is transposed.
//
// The source are llama.cpp's src/llama-adapter.cpp, src/llama-graph.cpp and convert_lora_to_gguf.py.

// adapterGGUFTypes are the names of the types of these files, as in convert_lora_to_gguf.py.
var adapterGGUFTypes = []string{"f32", "f16", "bf16", "q8_0"}

// AdapterGGUFTypes returns the names of the types of files that [AdapterFile.SaveGGUF] writes, the default first.
func AdapterGGUFTypes() []string { return slices.Clone(adapterGGUFTypes) }

// CheckAdapterGGUF returns an error that wraps [snug.ErrConfig] for a model whose adapters llama.cpp does not run beside it.
func (c *Config) CheckAdapterGGUF() error {
	if _, err := c.GGUF(""); err != nil {
		return err
	}
	if why := c.family().gguf.noAdapters; why != "" {
		return fmt.Errorf("transformer: %s: merge it into the model: %w", why, snug.ErrConfig)
	}
	return nil
}

// SaveGGUF writes a file that llama.cpp loads beside the file of the model. Its tensors, their shapes and bytes are those of llama.cpp's
// convert_lora_to_gguf.py, but for adapters whose scale is not lora_alpha/rank (use_rslora, alpha_pattern), which that takes for it, for GPT-2, whose
// matrices it turns, and for layers in which only some experts have adapters: those of the others are 0. The adapters
// of the experts of a layer get the largest rank among them.
//
// Of o, Type is one of the [AdapterGGUFTypes]; q8_0 leaves rows that are no whole blocks, as those of B mostly are, in f16. The other fields are as in [Model.SaveGGUF].
// ctx ends it before the next tensor.
//
// The file appears at path as a whole, see [gguf.Create]. Errors are those of [Config.GGUF] and of Create, [snug.ErrConfig] for
// adapters with magnitudes (DoRA), the cause of ctx, and [snug.ErrNonFinite].
func (f *AdapterFile) SaveGGUF(ctx context.Context, path string, o GGUFOptions) (err error) {
	defer fault.Named(&err, "transformer: SaveGGUF")
	if err := f.open(ctx); err != nil {
		return err
	}
	g, parts, err := f.describeGGUF(o.Type)
	if err != nil {
		return err
	}
	read := func(name string, lo int, dst []float32) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return f.read(parts[name], lo, dst)
	}
	return g.write(path, o, read, func(string) bool { return true })
}

// GGUFSize returns what SaveGGUF writes and takes.
func (f *AdapterFile) GGUFSize(o GGUFOptions) (s SaveSize, err error) {
	defer fault.Named(&err, "transformer: GGUFSize")
	if err := f.open(context.Background()); err != nil {
		return s, err
	}
	g, _, err := f.describeGGUF(o.Type)
	if err != nil {
		return s, err
	}
	return g.size(o.Metadata, 0)
}

// GGUFNotes says how many matrices have another type than a type's name says, a sentence each without its full stop.
func (f *AdapterFile) GGUFNotes(kind string) (notes []string, err error) {
	defer fault.Named(&err, "transformer: GGUFNotes")
	if err := f.open(context.Background()); err != nil {
		return nil, err
	}
	g, _, err := f.describeGGUF(kind)
	if err != nil {
		return nil, err
	}
	return g.Notes, nil
}

// describeGGUF describes a file. parts are what its tensors consist of, by the names of their parameters.
func (f *AdapterFile) describeGGUF(kind string) (g *GGUF, parts map[string]stacked, err error) {
	if kind == "" {
		kind = adapterGGUFTypes[0]
	}
	if !slices.Contains(adapterGGUFTypes, strings.ToLower(kind)) {
		return nil, nil, fmt.Errorf("the type %.40q, want one of %s: %w", kind, strings.Join(adapterGGUFTypes, ", "), snug.ErrConfig)
	}
	if f.options.DoRA {
		return nil, nil, fmt.Errorf("%s has the magnitudes of DoRA (use_dora), which llama.cpp does not take: merge it into the model: %w", f.dir, snug.ErrConfig)
	}
	if err := f.config.CheckAdapterGGUF(); err != nil {
		return nil, nil, err
	}
	t, err := ggufTypeOf(kind)
	if err != nil {
		return nil, nil, err
	}
	model, err := f.config.describe("f32")
	if err != nil {
		return nil, nil, err
	}
	g, parts = &GGUF{}, map[string]stacked{}
	for _, p := range model.Metadata {
		if p.Key == "general.architecture" {
			g.Metadata = append(g.Metadata, p)
		}
	}
	g.Metadata = append(g.Metadata,
		gguf.Pair{Key: "general.type", Value: "adapter"}, gguf.Pair{Key: "adapter.type", Value: "lora"},
		gguf.Pair{Key: "adapter.lora.alpha", Value: float32(f.base)},
		gguf.Pair{Key: "general.file_type", Value: uint32(t.number)}, gguf.Pair{Key: "general.quantization_version", Value: uint32(2)})
	var counts ggufCounts
	for i, tensor := range model.Tensors {
		of := &model.parts[i]
		rank := f.stack(of.params)
		if rank == 0 {
			continue
		}
		outer := tensor.Shape[:len(tensor.Shape)-2] // experts
		for _, m := range f.loraTensors(of, rank) {
			chosen := gguf.F32
			if t.base != gguf.F32 {
				chosen = fits(t.base, m.part.cols)
				counts.add(chosen, t.base)
			}
			for _, param := range of.params {
				name := param + m.suffix
				m.part.params = append(m.part.params, name)
				parts[name] = f.stackedOf(param, m.is, rank, f.base/float64(rank))
			}
			g.Tensors = append(g.Tensors, gguf.Tensor{Name: tensor.Name + m.suffix, Type: chosen, Shape: append(slices.Clone(outer), m.part.rows, m.part.cols)})
			g.parts = append(g.parts, m.part)
		}
	}
	g.Notes = append(g.Notes, counts.notes(&f.config, t)...)
	return g, parts, nil
}

// loraTensor is one of the two tensors of a weight.
type loraTensor struct {
	suffix string
	is     qlora.AdapterPart
	part   ggufPart
}

// loraTensors returns A and B of a weight, without the names of parameters.
func (f *AdapterFile) loraTensors(of *ggufPart, rank int) [2]loraTensor {
	a, b := ggufPart{rows: rank, cols: of.cols}, ggufPart{rows: of.rows, cols: rank, pairs: of.pairs, heads: of.heads}
	if f.list[of.params[0]].isTable() { // [out, rank]·[rank, rows of the table]
		a, b = ggufPart{rows: of.rows, cols: rank, transposed: true}, ggufPart{rows: of.cols, cols: rank}
	}
	return [2]loraTensor{{".lora_a", qlora.PartA, a}, {".lora_b", qlora.PartB, b}}
}

// isTable reports whether the adapter is of an embedding, whose rows are chosen.
func (a adaptedParam) isTable() bool { return a.LoRA != nil && a.Embedding }
