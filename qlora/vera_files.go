package qlora

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// The names of the tensors of VeRA, as PEFT has them.
const (
	veraA       = "base_model.vera_A"
	veraB       = "base_model.vera_B"
	veraLambdaD = ".vera_lambda_d"
	veraLambdaB = ".vera_lambda_b"
)

// defaultVeRARank is PEFT's rank for a file that lacks it.
const defaultVeRARank = 256

// VeRALayer are the trained vectors of a layer: d of the Rank of the [VeRA] and b of an element for each output, f32.
type VeRALayer struct{ D, B snug.View }

// SaveVeRA writes adapters of VeRA as [SaveAdapters] writes those of LoRA, with its errors: <name>.vera_lambda_d and
// <name>.vera_lambda_b for each layer, and vera_A and vera_B unless c.VeRA.NoProjection is set.
func SaveVeRA(dir string, c AdapterOptions, v *VeRA, layers map[string]VeRALayer, modules ...Module) error {
	text, tensors, err := checkVeRA(&c, v, layers, modules)
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		err = writeAdapters(files.OS(dir), text, func(w io.Writer, sum string) error {
			_, err := amp.WriteWeights(w, func(yield func(amp.Tensor, snug.View) bool) {
				for _, m := range tensors {
					if !yield(amp.Tensor{Name: m.Name, Shape: m.Shape}, m.Value) {
						return
					}
				}
			}, map[string]string{"format": "pt", adapterSum: sum})
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("qlora: save VeRA to %q: %w", dir, err)
	}
	return nil
}

// checkVeRA checks what SaveVeRA saves, and returns the text of the config and the tensors by their names in the file.
func checkVeRA(c *AdapterOptions, v *VeRA, layers map[string]VeRALayer, modules []Module) (text []byte, tensors []Module, err error) {
	switch {
	case c.VeRA == nil:
		return nil, nil, fmt.Errorf("the VeRA of the options is nil: %w", snug.ErrConfig)
	case v == nil || v.a == nil || v.Rank != c.Rank:
		return nil, nil, fmt.Errorf("the VeRA is nil, was not made by NewVeRA or LoadVeRA, or has another rank than %d: %w", c.Rank, snug.ErrConfig)
	case len(layers) == 0:
		return nil, nil, fmt.Errorf("there are no adapters: %w", snug.ErrConfig)
	}
	names := slices.Sorted(maps.Keys(layers))
	if c.Targets.isZero() {
		c.Targets.Names = names
	}
	s, err := c.check()
	if err != nil {
		return nil, nil, err
	}
	if !c.VeRA.NoProjection {
		tensors = append(tensors, Module{veraA, []int{v.Rank, v.In}, v.A}, Module{veraB, []int{v.Out, v.Rank}, v.B})
	}
	for _, name := range names {
		l := layers[name]
		out := min(v.Out, max(1, l.B.Len()))
		if err := v.check("save", &LoRA{Rank: v.Rank, In: 1, Out: out, Scale: 1}, l.D, l.B); err != nil {
			return nil, nil, fmt.Errorf("module %q: %w", name, err)
		}
		if selected, err := s.selects(name); err != nil || !selected || name == "" {
			return nil, nil, errors.Join(err, fmt.Errorf("module %q is not selected by Targets, Exclude and Layers, so that PEFT leaves it out: %w", name, snug.ErrConfig))
		}
		tensors = append(tensors, Module{adapterPrefix + name + veraLambdaD, []int{v.Rank}, l.D}, Module{adapterPrefix + name + veraLambdaB, []int{l.B.Len()}, l.B})
	}
	if err := c.checkModules(modules); err != nil {
		return nil, nil, err
	}
	for _, m := range modules {
		tensors = append(tensors, Module{adapterPrefix + m.Name, m.Shape, m.Value})
	}
	stats, err := amp.Measure(func(yield func(string, snug.View) bool) {
		for _, m := range tensors {
			if !yield(m.Name, m.Value) {
				return
			}
		}
	})
	if err == nil {
		err = stats.Err()
	}
	if err == nil {
		text, err = c.encodeVeRA()
	}
	return text, tensors, err
}

// veraFields are the names of fields of VeraConfig by those of LoraConfig. VeraConfig lacks the other fields of the
// second list.
var veraFields, loraFields = map[string]string{"lora_dropout": "vera_dropout", "init_lora_weights": "init_weights"},
	[]string{"lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"}

// encodeVeRA returns the file of a checked config.
func (c *AdapterOptions) encodeVeRA() ([]byte, error) {
	text, err := c.encode()
	if err != nil {
		return nil, err
	}
	all, err := members(text)
	if err != nil {
		return nil, err
	}
	for lora, vera := range veraFields {
		all[vera] = all[lora]
		delete(all, lora)
	}
	for _, name := range loraFields {
		delete(all, name)
	}
	for name, value := range map[string]any{"peft_type": "VERA", "projection_prng_key": c.VeRA.Key, "save_projection": !c.VeRA.NoProjection} {
		if all[name], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	text, err = json.MarshalIndent(all, "", "  ")
	return append(text, '\n'), err
}

// parseVeRA parses a config file of VeRA. Errors are those of parseAdapterConfig.
func parseVeRA(text []byte) (c AdapterOptions, err error) {
	all, err := members(text)
	if err != nil {
		return c, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	if kind := string(all["peft_type"]); kind != `"VERA"` {
		return c, fmt.Errorf(`adapters of the "peft_type" %.100s, want "VERA": %w`, kind, snug.ErrConfig)
	}
	for _, name := range append(slices.Collect(maps.Keys(veraFields)), loraFields...) {
		if all[name] != nil {
			return c, fmt.Errorf("the field %q is not one of VeRA: %w", name, snug.ErrConfig)
		}
	}
	v, saves := VeRAOptions{}, true
	for name, to := range map[string]any{"projection_prng_key": &v.Key, "save_projection": &saves, "d_initial": new(float64)} {
		if value := all[name]; value != nil {
			if err := strictjson.Unmarshal(value, to); err != nil {
				return c, fmt.Errorf("the field %q has the value %.100s: %w: %w", name, value, err, snug.ErrCorrupt)
			}
		}
		delete(all, name)
	}
	for lora, vera := range veraFields {
		if all[vera] != nil {
			all[lora] = all[vera]
		}
		delete(all, vera)
	}
	if all["r"] == nil {
		all["r"] = json.RawMessage(fmt.Sprint(defaultVeRARank))
	}
	all["peft_type"] = json.RawMessage(`"LORA"`)
	if text, err = json.Marshal(all); err != nil {
		return c, err
	}
	if c, err = parseAdapterConfig(text); err != nil {
		return c, err
	}
	v.NoProjection = !saves
	c.Alpha, c.VeRA = 0, &v
	_, err = c.check()
	return c, err
}

// parseAnyConfig parses a config of LoRA or of VeRA.
func parseAnyConfig(text []byte) (AdapterOptions, error) {
	if isVeRA(text) {
		return parseVeRA(text)
	}
	c, _, err := readAdapterConfig(text)
	return c, err
}

func isVeRA(text []byte) bool {
	all, err := members(text)
	return err == nil && string(all["peft_type"]) == `"VERA"`
}

// IsVeRA reports whether a folder has adapters of VeRA, for [LoadVeRA], and not of LoRA, for [LoadAdapters]. Errors are
// those of files that these cannot open.
func IsVeRA(dir string) (is bool, err error) {
	open := openIn(dir)
	w, err := openAdapters(open)
	if err == nil {
		var text []byte
		text, err = adapterConfigOf(open, w.Metadata()[adapterSum])
		is, err = isVeRA(text), errors.Join(err, w.close())
	}
	if err != nil {
		return false, fmt.Errorf("qlora: adapters of %q: %w", dir, err)
	}
	return is, nil
}

// LoadVeRA reads the adapters that [SaveVeRA] or PEFT wrote, to the CPU, as [LoadAdapters] reads those of LoRA, with
// its errors. Without A and B in the folder the VeRA is nil, and the caller draws them, for the layers of the model
// that have the most inputs and outputs: NewVeRA(c.Rank, in, out, c.VeRA.Key).
func LoadVeRA(dir string) (AdapterOptions, *VeRA, map[string]VeRALayer, error) {
	c, v, layers, err := loadVeRA(openIn(dir))
	if err != nil {
		return AdapterOptions{}, nil, nil, fmt.Errorf("qlora: load VeRA of %q: %w", dir, err)
	}
	return c, v, layers, nil
}

func loadVeRA(open opener) (c AdapterOptions, v *VeRA, layers map[string]VeRALayer, err error) {
	w, err := openAdapters(open)
	if err != nil {
		return c, nil, nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	text, err := adapterConfigOf(open, w.Metadata()[adapterSum])
	if err != nil {
		return c, nil, nil, err
	}
	if c, err = parseVeRA(text); err != nil {
		return c, nil, nil, fmt.Errorf("%s: %w", adapterConfigFile, err)
	}
	a, hasA := w.Tensor(veraA)
	b, hasB := w.Tensor(veraB)
	switch {
	case hasA != hasB || hasA == c.VeRA.NoProjection:
		return c, nil, nil, fmt.Errorf("vera_A %t and vera_B %t, with save_projection %t: %w", hasA, hasB, !c.VeRA.NoProjection, snug.ErrCorrupt)
	case hasA && (len(a.Shape) != 2 || len(b.Shape) != 2 || a.Shape[0] != c.Rank || b.Shape[1] != c.Rank):
		return c, nil, nil, fmt.Errorf("vera_A of %v and vera_B of %v, want rank %d: %w", a.Shape, b.Shape, c.Rank, snug.ErrCorrupt)
	case hasA:
		if v, err = newVeRA(c.Rank, a.Shape[1], b.Shape[0]); err == nil {
			err = errors.Join(w.Load(veraA, v.A), w.Load(veraB, v.B))
		}
	}
	if err == nil {
		layers, err = c.veraLayers(w, v)
	}
	return c, v, layers, err
}

// veraLayers reads the vectors of all layers.
func (c *AdapterOptions) veraLayers(w adapterWeights, v *VeRA) (map[string]VeRALayer, error) {
	s, err := c.check()
	if err != nil {
		return nil, err
	}
	layers := map[string]VeRALayer{}
	for _, t := range w.Tensors() {
		name := strings.TrimPrefix(t.Name, adapterPrefix)
		module, isD := strings.CutSuffix(name, veraLambdaD)
		other, isB := strings.CutSuffix(name, veraLambdaB)
		switch {
		case t.Name == veraA || t.Name == veraB || c.isSaved(name):
			continue
		case isB:
			if _, found := w.Tensor(adapterPrefix + other + veraLambdaD); !found {
				return nil, fmt.Errorf("module %q has no vector d: %w", other, snug.ErrCorrupt)
			}
			continue
		case !isD:
			return nil, fmt.Errorf("tensor %q is no vector of a linear layer: not supported: %w", t.Name, snug.ErrConfig)
		}
		b, found := w.Tensor(adapterPrefix + module + veraLambdaB)
		if !found || len(b.Shape) != 1 || !slices.Equal(t.Shape, []int{c.Rank}) || v != nil && b.Shape[0] > v.Out {
			return nil, fmt.Errorf("module %q has vectors of %v and %v, want %d elements and as many as outputs: %w", module, t.Shape, b.Shape, c.Rank, snug.ErrCorrupt)
		}
		if selected, err := s.selects(module); err != nil || !selected {
			return nil, errors.Join(err, fmt.Errorf("module %q has an adapter, which the config does not select, so that PEFT leaves it out: %w", module, snug.ErrConfig))
		}
		l := VeRALayer{snug.ViewOf(make([]float32, c.Rank)), snug.ViewOf(make([]float32, b.Shape[0]))}
		if err := errors.Join(w.Load(t.Name, l.D), w.Load(b.Name, l.B)); err != nil {
			return nil, err
		}
		layers[module] = l
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("%s has no vectors of VeRA: %w", adapterWeightsFile, snug.ErrCorrupt)
	}
	return layers, nil
}
