package qlora

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/files"
)

// The files of a folder of adapters, and the names of their tensors, as PEFT has them.
const (
	adapterConfigFile  = "adapter_config.json"
	adapterWeightsFile = "adapter_model.safetensors"
	adapterPrefix      = "base_model.model."
	adapterA           = ".lora_A.weight"
	adapterB           = ".lora_B.weight"
)

// AdapterConfig is what adapter_config.json says of the adapters of a model. All
// have one scale, [LoRAScale](Alpha, Rank, RSLoRA).
type AdapterConfig struct {
	Rank      int
	Alpha     float32
	RSLoRA    bool
	Targets   []string // modules that have an adapter, by the ends of their names
	BaseModel string   // name or path of the model that they adapt; may be empty
}

// adapterJSON is the form of the file: the fields that readers ask for.
type adapterJSON struct {
	PEFTType  string   `json:"peft_type"`
	BaseModel string   `json:"base_model_name_or_path"`
	Rank      int      `json:"r"`
	Alpha     float32  `json:"lora_alpha"`
	Dropout   float32  `json:"lora_dropout"`
	RSLoRA    bool     `json:"use_rslora"`
	DoRA      bool     `json:"use_dora"`
	Turned    bool     `json:"fan_in_fan_out"`
	Bias      string   `json:"bias"`
	Targets   []string `json:"target_modules"`
	Inference bool     `json:"inference_mode"`
}

func (c AdapterConfig) check() error {
	if c.Rank < 1 || !(c.Alpha > 0) || c.Alpha-c.Alpha != 0 {
		return fmt.Errorf("rank %d and alpha %g, want both above 0: %w", c.Rank, c.Alpha, snug.ErrConfig)
	}
	return nil
}

// SaveAdapters writes adapters by the names of their modules, such as
// "layers.0.mlp.up_proj", to a folder that it makes if need be, in the form of
// HuggingFace's PEFT: adapter_model.safetensors with
// base_model.model.<name>.lora_A.weight of [rank, in] and .lora_B.weight of [out, rank], and
// adapter_config.json. Each file is replaced as a whole, the config last, so that a
// folder without one is not complete. It needs the memory of [amp.SaveWeights].
//
// Errors, with nothing written: [snug.ErrConfig] when the config is not valid, a name is
// empty, there is no adapter, or one has another rank or scale than the config, and
// [snug.ErrShape]. Others are those of amp.SaveWeights and of the file system.
func SaveAdapters(dir string, c AdapterConfig, adapters map[string]*LoRA) error {
	if err := c.check(); err != nil {
		return fmt.Errorf("qlora: save adapters: %w", err)
	}
	if len(adapters) == 0 {
		return fmt.Errorf("qlora: save adapters: there are none: %w", snug.ErrConfig)
	}
	for name, a := range adapters {
		if _, err := a.check("save", part(a.A, 0, 0), snug.View{}, snug.View{}); err != nil {
			return fmt.Errorf("module %q: %w", name, err)
		}
		if scale := LoRAScale(c.Alpha, c.Rank, c.RSLoRA); name == "" || a.Rank != c.Rank || a.Scale != scale {
			return fmt.Errorf("qlora: save adapters: module %q has rank %d and scale %g, want a name, %d and %g: %w", name, a.Rank, a.Scale, c.Rank, scale, snug.ErrConfig)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("qlora: save adapters: %w", err)
	}
	tensors := func(yield func(amp.Tensor, snug.View) bool) {
		for _, name := range slices.Sorted(maps.Keys(adapters)) {
			a := adapters[name]
			if !yield(amp.Tensor{Name: adapterPrefix + name + adapterA, Shape: []int{a.Rank, a.In}}, a.A) ||
				!yield(amp.Tensor{Name: adapterPrefix + name + adapterB, Shape: []int{a.Out, a.Rank}}, a.B) {
				return
			}
		}
	}
	if err := amp.SaveWeights(filepath.Join(dir, adapterWeightsFile), tensors, map[string]string{"format": "pt"}); err != nil {
		return fmt.Errorf("qlora: save adapters: %w", err)
	}
	text, err := json.MarshalIndent(adapterJSON{
		PEFTType: "LORA", BaseModel: c.BaseModel, Rank: c.Rank, Alpha: c.Alpha, RSLoRA: c.RSLoRA, Bias: "none",
		Targets: append([]string{}, c.Targets...), Inference: true,
	}, "", "  ")
	if err == nil {
		err = files.Replace(filepath.Join(dir, adapterConfigFile), func(w io.Writer) error {
			_, err := w.Write(append(text, '\n'))
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("qlora: save adapters: %w", err)
	}
	return nil
}

// LoadAdapters reads what [SaveAdapters] or PEFT wrote, as float32 on a device, nil for
// the CPU, by the names of the modules. They take 4 bytes a parameter until
// [LoRA.Close].
//
// Errors: [snug.ErrCorrupt] when a file is damaged, a module lacks one of its two
// tensors, or there are other tensors; [snug.ErrConfig] for adapters that this package does
// not have: of another kind than LoRA, DoRA, with a bias, or of transposed weights; those of the
// file system, such as [fs.ErrNotExist], and [snug.ErrNoMemory].
func LoadAdapters(dir string, dev *snug.Device) (AdapterConfig, map[string]*LoRA, error) {
	c, adapters, err := loadAdapters(dir, dev)
	if err != nil {
		return AdapterConfig{}, nil, fmt.Errorf("qlora: load adapters: %w", err)
	}
	return c, adapters, nil
}

func loadAdapters(dir string, dev *snug.Device) (c AdapterConfig, adapters map[string]*LoRA, err error) {
	if c, err = readAdapterConfig(filepath.Join(dir, adapterConfigFile)); err != nil {
		return c, nil, err
	}
	w, err := amp.OpenWeights(filepath.Join(dir, adapterWeightsFile))
	if err != nil {
		return c, nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if adapters, err = describeAdapters(c, w); err != nil {
		return c, nil, err
	}
	if dev == nil {
		dev = snug.CPU()
	}
	for name, a := range adapters {
		if err = a.load(w, dev, adapterPrefix+name); err != nil {
			break
		}
	}
	if err != nil {
		for _, a := range adapters {
			err = errors.Join(err, a.Close())
		}
		return c, nil, err
	}
	return c, adapters, nil
}

// load makes A and B.
func (l *LoRA) load(w *amp.Weights, dev *snug.Device, name string) (err error) {
	var freeA, freeB func() error
	if l.A, freeA, err = snug.MakeView(dev, snug.F32, l.Rank*l.In); err != nil {
		return err
	}
	l.free = append(l.free, freeA)
	if l.B, freeB, err = snug.MakeView(dev, snug.F32, l.Out*l.Rank); err != nil {
		return err
	}
	l.free = append(l.free, freeB)
	return errors.Join(w.Load(name+adapterA, l.A), w.Load(name+adapterB, l.B))
}

const maxAdapterConfig = 1 << 20 // bytes

func readAdapterConfig(path string) (AdapterConfig, error) {
	f, size, err := files.Open(path)
	if err != nil {
		return AdapterConfig{}, err
	}
	defer f.Close()
	if size > maxAdapterConfig {
		return AdapterConfig{}, fmt.Errorf("%s has %d bytes, want %d at most: %w", path, size, maxAdapterConfig, snug.ErrCorrupt)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return AdapterConfig{}, err
	}
	var j adapterJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return AdapterConfig{}, fmt.Errorf("%s: %v: %w", path, err, snug.ErrCorrupt)
	}
	if j.PEFTType != "LORA" || j.DoRA || j.Turned || j.Bias != "" && j.Bias != "none" {
		return AdapterConfig{}, fmt.Errorf("%s: adapters of type %q, DoRA %t, with bias %q, transposed %t, want LORA without: %w", path, j.PEFTType, j.DoRA, j.Bias, j.Turned, snug.ErrConfig)
	}
	c := AdapterConfig{Rank: j.Rank, Alpha: j.Alpha, RSLoRA: j.RSLoRA, Targets: j.Targets, BaseModel: j.BaseModel}
	if err := c.check(); err != nil {
		return AdapterConfig{}, fmt.Errorf("%s: %v: %w", path, err, snug.ErrCorrupt)
	}
	return c, nil
}

// describeAdapters returns the adapters of a file without their elements.
func describeAdapters(c AdapterConfig, w *amp.Weights) (map[string]*LoRA, error) {
	adapters := map[string]*LoRA{}
	parts := 0
	for _, t := range w.Tensors() {
		name, found := strings.CutPrefix(t.Name, adapterPrefix)
		module, isA := strings.CutSuffix(name, adapterA)
		if !isA {
			var isB bool
			if module, isB = strings.CutSuffix(name, adapterB); !isB {
				found = false
			}
		}
		if !found || module == "" || len(t.Shape) != 2 {
			return nil, fmt.Errorf("tensor %q of shape %v is not of a LoRA: %w", t.Name, t.Shape, snug.ErrCorrupt)
		}
		a := adapters[module]
		if a == nil {
			a = &LoRA{Rank: c.Rank, Scale: LoRAScale(c.Alpha, c.Rank, c.RSLoRA)}
			adapters[module] = a
		}
		rank := t.Shape[1]
		if isA {
			rank, a.In = t.Shape[0], t.Shape[1]
		} else {
			a.Out = t.Shape[0]
		}
		if rank != c.Rank {
			return nil, fmt.Errorf("tensor %q of shape %v, want rank %d: %w", t.Name, t.Shape, c.Rank, snug.ErrCorrupt)
		}
		parts++
	}
	if parts == 0 || parts != 2*len(adapters) {
		return nil, fmt.Errorf("%d tensors for %d modules, want two each: %w", parts, len(adapters), snug.ErrCorrupt)
	}
	return adapters, nil
}
