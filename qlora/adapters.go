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
	adapterMagnitude   = ".lora_magnitude_vector"
)

// AdapterConfig is what adapter_config.json says of the adapters of a model. All
// have one scale, [LoRAScale](Alpha, Rank, RSLoRA), and one dropout.
type AdapterConfig struct {
	Rank      int
	Alpha     float32
	RSLoRA    bool
	Dropout   float32
	DoRA      bool     // all have magnitudes
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

	// What is read to say that this package does not have it.
	LoRABias     bool               `json:"lora_bias,omitempty"`
	RankPattern  map[string]int     `json:"rank_pattern,omitempty"`
	AlphaPattern map[string]float64 `json:"alpha_pattern,omitempty"`
}

// unknown says what of the adapters this package does not have, or nothing.
func (j *adapterJSON) unknown() string {
	switch {
	case j.PEFTType != "LORA":
		return fmt.Sprintf("type %.20q", j.PEFTType)
	case j.Bias != "" && j.Bias != "none" || j.LoRABias:
		return "a bias"
	case j.Turned:
		return "transposed weights"
	case len(j.RankPattern) > 0 || len(j.AlphaPattern) > 0:
		return "ranks or scales of single modules"
	}
	return ""
}

func (c AdapterConfig) check() error {
	if c.Rank < 1 || !(c.Alpha > 0) || c.Alpha-c.Alpha != 0 {
		return fmt.Errorf("rank %d and alpha %g, want both above 0: %w", c.Rank, c.Alpha, snug.ErrConfig)
	}
	if !(c.Dropout >= 0 && c.Dropout < 1) {
		return fmt.Errorf("dropout %g, want at least 0 and less than 1: %w", c.Dropout, snug.ErrConfig)
	}
	return nil
}

// SaveAdapters writes adapters by the names of their modules, such as
// "layers.0.mlp.up_proj", to a folder that it makes if need be, in the form of
// HuggingFace's PEFT: adapter_model.safetensors with
// base_model.model.<name>.lora_A.weight of [rank, in], .lora_B.weight of [out, rank] and,
// with DoRA, .lora_magnitude_vector of [out], and adapter_config.json. Each file is replaced as a whole, the config last, so that a
// folder without one is not complete. It needs the memory of [amp.SaveWeights].
//
// Errors, with nothing written: [snug.ErrConfig] when the config is not valid, a name is
// empty, there is no adapter, or one is not as the config says, and [snug.ErrShape]. Others are those of amp.SaveWeights and of the file system.
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
		if scale := LoRAScale(c.Alpha, c.Rank, c.RSLoRA); name == "" || a.Rank != c.Rank || a.Scale != scale || a.Dropout != c.Dropout {
			return fmt.Errorf("qlora: save adapters: module %q has rank %d, scale %g and dropout %g, want a name, %d, %g and %g: %w",
				name, a.Rank, a.Scale, a.Dropout, c.Rank, scale, c.Dropout, snug.ErrConfig)
		}
		if dora := a.Magnitude.Len() > 0; dora != c.DoRA {
			return fmt.Errorf("qlora: save adapters: module %q with magnitudes %t, want %t: %w", name, dora, c.DoRA, snug.ErrConfig)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("qlora: save adapters: %w", err)
	}
	tensors := func(yield func(amp.Tensor, snug.View) bool) {
		for _, name := range slices.Sorted(maps.Keys(adapters)) {
			a := adapters[name]
			for _, p := range a.parts(c.DoRA) {
				if !yield(amp.Tensor{Name: adapterPrefix + name + p.suffix, Shape: p.shape}, *p.to) {
					return
				}
			}
		}
	}
	if err := amp.SaveWeights(filepath.Join(dir, adapterWeightsFile), tensors, map[string]string{"format": "pt"}); err != nil {
		return fmt.Errorf("qlora: save adapters: %w", err)
	}
	text, err := json.MarshalIndent(adapterJSON{
		PEFTType: "LORA", BaseModel: c.BaseModel, Rank: c.Rank, Alpha: c.Alpha, Dropout: c.Dropout, RSLoRA: c.RSLoRA, DoRA: c.DoRA, Bias: "none",
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

// adapterPart is one tensor of an adapter.
type adapterPart struct {
	suffix string
	shape  []int
	to     *snug.View
}

// parts are the tensors of l, with its magnitudes or without.
func (l *LoRA) parts(dora bool) []adapterPart {
	p := []adapterPart{{adapterA, []int{l.Rank, l.In}, &l.A}, {adapterB, []int{l.Out, l.Rank}, &l.B}, {adapterMagnitude, []int{l.Out}, &l.Magnitude}}
	if !dora {
		p = p[:2]
	}
	return p
}

// LoadAdapters reads what [SaveAdapters] or PEFT wrote, as float32 on a device, nil for
// the CPU, by the names of the modules. They take 4 bytes a parameter until
// [LoRA.Close].
//
// Errors: [snug.ErrCorrupt] when a file is damaged, a module lacks one of its
// tensors, or there are other tensors; [snug.ErrConfig] for adapters that this package does
// not have: of another kind than LoRA and DoRA, with a bias, of transposed weights, or with
// ranks or scales of single modules; those of the file system, such as [fs.ErrNotExist], and
// [snug.ErrNoMemory].
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
		if err = a.load(w, dev, adapterPrefix+name, c.DoRA); err != nil {
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

// load makes the tensors of an adapter.
func (l *LoRA) load(w *amp.Weights, dev *snug.Device, name string, dora bool) error {
	for _, p := range l.parts(dora) {
		n := 1
		for _, d := range p.shape {
			n *= d
		}
		v, free, err := snug.MakeView(dev, snug.F32, n)
		if err != nil {
			return err
		}
		*p.to, l.free = v, append(l.free, free)
		if err := w.Load(name+p.suffix, v); err != nil {
			return err
		}
	}
	return nil
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
	if what := j.unknown(); what != "" {
		return AdapterConfig{}, fmt.Errorf("%s: adapters with %s, want plain ones of type \"LORA\": %w", path, what, snug.ErrConfig)
	}
	c := AdapterConfig{Rank: j.Rank, Alpha: j.Alpha, RSLoRA: j.RSLoRA, Dropout: j.Dropout, DoRA: j.DoRA, Targets: j.Targets, BaseModel: j.BaseModel}
	if err := c.check(); err != nil {
		return AdapterConfig{}, fmt.Errorf("%s: %v: %w", path, err, snug.ErrCorrupt)
	}
	return c, nil
}

// describeAdapters returns the adapters of a file without their elements.
func describeAdapters(c AdapterConfig, w *amp.Weights) (map[string]*LoRA, error) {
	adapters := map[string]*LoRA{}
	tensors := w.Tensors()
	for _, t := range tensors {
		name, found := strings.CutPrefix(t.Name, adapterPrefix)
		module, isA := strings.CutSuffix(name, adapterA)
		if !found || !isA {
			continue
		}
		if len(t.Shape) != 2 {
			return nil, fmt.Errorf("tensor %q of shape %v, want two dimensions: %w", t.Name, t.Shape, snug.ErrCorrupt)
		}
		a := &LoRA{In: t.Shape[1], Rank: c.Rank, Scale: LoRAScale(c.Alpha, c.Rank, c.RSLoRA), Dropout: c.Dropout}
		if b, found := w.Tensor(adapterPrefix + module + adapterB); found && len(b.Shape) == 2 {
			a.Out = b.Shape[0]
		}
		for _, p := range a.parts(c.DoRA) {
			got, found := w.Tensor(adapterPrefix + module + p.suffix)
			if !found || !slices.Equal(got.Shape, p.shape) {
				return nil, fmt.Errorf("tensor %q of module %q has shape %v, want %v: %w", p.suffix[1:], module, got.Shape, p.shape, snug.ErrCorrupt)
			}
		}
		adapters[module] = a
	}
	each := len((&LoRA{}).parts(c.DoRA))
	if len(adapters) == 0 || len(tensors) != each*len(adapters) {
		return nil, fmt.Errorf("%d tensors for %d modules, want %d each: %w", len(tensors), len(adapters), each, snug.ErrCorrupt)
	}
	return adapters, nil
}
