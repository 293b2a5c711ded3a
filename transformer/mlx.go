package transformer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/qlora"
)

// This file writes LoRA and DoRA adapters as mlx-lm loads them. For the weight W of a module, mlx-lm computes
//
//	x·Wᵀ + scale·(x·lora_a)·lora_b
//
// with one scale and one rank r for all modules: lora_a is Aᵀ, [in, r], and lora_b is Bᵀ, [r, out]. With DoRA the sum is divided by the norms
// of the rows of W + scale·lora_bᵀ·lora_aᵀ, and multiplied by m. The experts of a layer are one module, whose lora_a is
// [experts, r, in] and lora_b [experts, out, r]; the lora_a of an embedding is [rows, r].
//
// The source are mlx_lm/tuner/lora.py, dora.py and utils.py, and the classes of mlx_lm/models, of mlx-lm 0.32.

// mlxWeights and mlxConfig are the files of a folder.
const mlxWeights, mlxConfig = "adapters.safetensors", "adapter_config.json"

// mlxConfigFile is what mlx-lm reads of mlxConfig.
type mlxConfigFile struct {
	Model  string        `json:"model,omitempty"`
	Kind   string        `json:"fine_tune_type"`
	Layers int           `json:"num_layers"` // the last layers of the model
	LoRA   mlxParameters `json:"lora_parameters"`
}

type mlxParameters struct {
	Rank    int      `json:"rank"`
	Scale   float64  `json:"scale"`
	Dropout float32  `json:"dropout"`
	Keys    []string `json:"keys"` // modules of a layer, or of the model
}

// mlxTensor is a tensor of the file.
type mlxTensor struct {
	name  string
	shape []int
	parts []stacked // several are one after the other
	turn  bool      // the last two dimensions are swapped
}

// CheckMLX returns an error that wraps [snug.ErrConfig] for a model for which there is no [AdapterFile.SaveMLX].
func (c *Config) CheckMLX() error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.family().mlx == "" {
		return fmt.Errorf("the layout of mlx-lm is not written for %s: %w", c.Family, snug.ErrConfig)
	}
	if w := c.whole(); w != nil && w.mlx == "" {
		return fmt.Errorf("the layout of mlx-lm is not written for %s: %w", c.Whole, snug.ErrConfig)
	}
	return nil
}

// SaveMLX writes a folder that mlx-lm loads beside the model, as its --adapter-path: adapters.safetensors, in float32, and
// adapter_config.json. mlx-lm has one rank and one scale: adapters of a smaller rank than the largest end in zeros, and the B of those with another scale
// than the config's is multiplied. Modules between the adapted ones and the last layer, which the format names too, are not in the file, so
// that they stay as they are.
//
// It makes the folder if it is missing, and replaces each file as a whole, the weights first. ctx ends it before the next tensor.
// It takes two of the largest tensors in float32.
//
// The error wraps [snug.ErrConfig] for a model that mlx-lm does not have, and for DoRA of experts and of embeddings. Others are the cause
// of ctx, [snug.ErrNonFinite], and those of [amp.SaveWeights].
func (f *AdapterFile) SaveMLX(ctx context.Context, dir string) (err error) {
	defer fault.Named(&err, "transformer: SaveMLX")
	if err := f.open(ctx); err != nil {
		return err
	}
	config, list, err := f.describeMLX()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(config, "", "    ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	var values, turned []float32
	tensors := func(yield func(amp.Tensor, snug.View) bool) {
		for _, t := range list {
			made := amp.Tensor{Name: t.name, DType: "F32", Shape: t.shape, Make: func() (snug.View, error) {
				if err := context.Cause(ctx); err != nil {
					return snug.View{}, err
				}
				return f.makeMLX(&t, &values, &turned)
			}}
			if !yield(made, snug.View{}) {
				return
			}
		}
	}
	if err := amp.SaveWeights(filepath.Join(dir, mlxWeights), tensors, map[string]string{"format": "mlx"}); err != nil {
		return err
	}
	return files.Replace(filepath.Join(dir, mlxConfig), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// makeMLX returns the elements of a tensor. values and turned are its memory.
func (f *AdapterFile) makeMLX(t *mlxTensor, values, turned *[]float32) (snug.View, error) {
	n := amp.Tensor{Shape: t.shape}.Len()
	*values = slices.Grow((*values)[:0], n)[:n]
	for i, p := range t.parts {
		size := n / len(t.parts)
		if err := f.read(p, 0, (*values)[i*size:][:size]); err != nil {
			return snug.View{}, err
		}
	}
	for i, x := range *values {
		if x-x != 0 {
			return snug.View{}, fmt.Errorf("%s: element %d is not finite: %w", t.name, i, snug.ErrNonFinite)
		}
	}
	if !t.turn {
		return snug.ViewOf(*values), nil
	}
	*turned = slices.Grow((*turned)[:0], n)[:n]
	turn(*turned, *values, t.shape[1], t.shape[0])
	return snug.ViewOf(*turned), nil
}

// MLXSize returns what SaveMLX writes and takes.
func (f *AdapterFile) MLXSize() (s SaveSize, err error) {
	defer fault.Named(&err, "transformer: MLXSize")
	if err := f.open(context.Background()); err != nil {
		return s, err
	}
	_, list, err := f.describeMLX()
	for _, t := range list {
		bytes := 4 * int64(amp.Tensor{Shape: t.shape}.Len())
		s.Bytes, s.Largest = saturate.Add(s.Bytes, bytes), max(s.Largest, bytes)
	}
	s.Memory = saturate.Add(2*s.Largest, s.Largest/2) // slices grow by up to a quarter more
	return s, err
}

// mlxScale returns the scale of the file.
func (f *AdapterFile) mlxScale() float64 { return f.base / float64(f.options.Rank) }

func (f *AdapterFile) describeMLX() (config *mlxConfigFile, list []mlxTensor, err error) {
	c := &f.config
	if f.noMLX != nil {
		return nil, nil, f.noMLX
	}
	rank, first := 0, c.Layers
	for _, a := range f.list {
		rank = max(rank, a.Rank)
	}
	keys := map[string]bool{}
	add := func(key, name string, params []string) error {
		if f.stack(params) == 0 {
			return nil
		}
		keys[key] = true
		more, err := f.mlxTensors(name, params, rank)
		list = append(list, more...)
		return err
	}
	root := f.mlxBody + c.family().mlx
	for _, t := range c.tensors(c.layout()) {
		name, inBody := strings.CutPrefix(strings.TrimSuffix(t.Name, ".weight"), c.layout().body)
		full := root + name
		if t.Name == c.layout().head {
			full = f.mlxBody + "lm_head"
		}
		if layer, inner, is := c.inLayer(name); is && inBody {
			name = inner
			if f.list[t.Name].LoRA != nil {
				first = min(first, layer)
			}
			if c.isExpert(inner) {
				continue
			}
		} else {
			name = full
		}
		if err := add(name, full, []string{t.Name}); err != nil {
			return nil, nil, err
		}
	}
	for layer := range c.Layers {
		for _, x := range [][2]string{{c.names().experts.gate, "gate_proj"}, {c.names().experts.up, "up_proj"}, {c.names().experts.down, "down_proj"}} {
			var params []string
			for e := range c.Experts.Count {
				params = append(params, fmt.Sprintf("%s%s%s%d.%s.weight", c.layout().body, c.block(layer), c.names().experts.experts, e, x[0]))
			}
			key := c.names().experts.mlx + "." + x[1]
			if err := add(key, root+c.block(layer)+key, params); err != nil {
				return nil, nil, err
			}
		}
	}
	config = &mlxConfigFile{Model: f.options.BaseModel, Kind: "lora", Layers: max(1, c.Layers-first),
		LoRA: mlxParameters{Rank: rank, Scale: f.mlxScale(), Dropout: f.options.Dropout}}
	if f.options.DoRA {
		config.Kind = "dora"
	}
	for key := range keys {
		config.LoRA.Keys = append(config.LoRA.Keys, key)
	}
	slices.Sort(config.LoRA.Keys)
	return config, list, nil
}

// inLayer splits the name of a module of a layer.
func (c *Config) inLayer(name string) (layer int, inner string, is bool) {
	rest, is := strings.CutPrefix(name, c.names().block+".")
	number, inner, found := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	return layer, inner, is && found && err == nil
}

// isExpert reports whether a module of a layer is of one expert.
func (c *Config) isExpert(inner string) bool {
	return c.Experts.Count > 0 && strings.HasPrefix(inner, c.names().experts.experts)
}

// ofExpert reports whether a parameter is of one expert.
func (c *Config) ofExpert(name string) bool {
	_, inner, is := c.inLayer(strings.TrimPrefix(name, c.layout().body))
	return is && c.isExpert(inner)
}

// mlxTensors returns the tensors of a module.
func (f *AdapterFile) mlxTensors(name string, params []string, rank int) (list []mlxTensor, err error) {
	a, b := mlxTensor{name: name + ".lora_a", turn: true}, mlxTensor{name: name + ".lora_b", turn: true}
	in, out := 0, 0
	for _, p := range params {
		if one := f.list[p]; one.LoRA != nil {
			in, out = one.In, one.Out
		}
		a.parts = append(a.parts, f.stackedOf(p, qlora.PartA, rank, f.mlxScale()))
		b.parts = append(b.parts, f.stackedOf(p, qlora.PartB, rank, f.mlxScale()))
	}
	a.shape, b.shape = []int{in, rank}, []int{rank, out}
	if f.options.DoRA && (len(params) > 1 || f.list[params[0]].isTable()) {
		return nil, fmt.Errorf("%s has magnitudes (use_dora) of %s, and mlx-lm has none of experts and other ones of embeddings: merge the adapter into the model: %w",
			f.dir, name, snug.ErrConfig)
	}
	if len(params) > 1 {
		a.shape, b.shape = []int{len(params), rank, in}, []int{len(params), out, rank}
		a.turn, b.turn = false, false
	}
	list = []mlxTensor{a, b}
	if f.options.DoRA {
		list = append(list, mlxTensor{name: name + ".m", shape: []int{out}, parts: []stacked{{adaptedParam: f.list[params[0]], part: qlora.PartMagnitude, factor: 1}}})
	}
	return list, nil
}
