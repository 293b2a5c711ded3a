package qlora

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/files"
)

// The names of an adapter's tensors, as PEFT has them.
const (
	adapterPrefix    = "base_model.model."
	adapterA         = ".lora_A.weight"
	adapterB         = ".lora_B.weight"
	adapterMagnitude = ".lora_magnitude_vector"
	embeddingA       = ".lora_embedding_A"
	embeddingB       = ".lora_embedding_B"
)

// SaveAdapters writes adapters to a folder in the form of HuggingFace's PEFT, and makes the
// folder if it does not exist. The keys of adapters are module names, such as
// "layers.0.mlp.up_proj". adapter_model.safetensors holds
// base_model.model.<name>.lora_A.weight of [rank, in], .lora_B.weight of [out, rank] and,
// with DoRA, .lora_magnitude_vector of [out]; of an embedding .lora_embedding_A and
// .lora_embedding_B of these shapes. Its metadata holds the SHA-256 of
// adapter_config.json. SaveAdapters needs the memory of [amp.WriteWeights].
//
// If it fails or the machine stops, LoadAdapters reads either the old adapters or the new
// ones, with their config. After an error the folder has no other file, unless the
// system refuses to remove it. A process that ends in the middle may leave
// adapter_config.json.next, which the next save removes, and names that end in .tmp.
// Concurrent saves to one folder are not safe.
//
// Errors, with nothing written: [snug.ErrConfig] when the config is not valid or has a
// field in Other that [LoadAdapters] refuses, a name is empty or not selected by Targets,
// there is no adapter, or one is nil or not as the config says, or modules are not those of ModulesToSave;
// [snug.ErrNonFinite] for a NaN or an infinity, which it names; [snug.ErrShape], [snug.ErrDType] and [snug.ErrDevice].
// Other errors come from the file system or a device.
//
// modules are the parameters of ModulesToSave, which are written as base_model.model.<Name>.
func SaveAdapters(dir string, c AdapterOptions, adapters map[string]*LoRA, modules ...Module) error {
	text, err := checkAdapters(&c, adapters)
	if err == nil {
		err = c.checkModules(modules)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		err = saveAdapters(files.OS(dir), text, adapters, modules...)
	}
	if err != nil {
		return fmt.Errorf("qlora: save adapters to %q: %w", dir, err)
	}
	return nil
}

// saveAdapters writes checked adapters, with the text of their config.
func saveAdapters(d files.Dir, config []byte, adapters map[string]*LoRA, modules ...Module) error {
	tensors := func(yield func(amp.Tensor, snug.View) bool) {
		for _, name := range slices.Sorted(maps.Keys(adapters)) {
			a := adapters[name]
			for _, p := range a.parts(a.Magnitude.Len() > 0) {
				if !yield(amp.Tensor{Name: adapterPrefix + name + p.suffix, Shape: p.shape}, *p.to) {
					return
				}
			}
		}
		for _, m := range modules {
			if !yield(amp.Tensor{Name: adapterPrefix + m.Name, Shape: m.Shape}, m.Value) {
				return
			}
		}
	}
	return writeAdapters(d, config, func(w io.Writer, sum string) error {
		_, err := amp.WriteWeights(w, tensors, map[string]string{"format": "pt", adapterSum: sum})
		return err
	})
}

// checkAdapters checks adapters against their config and returns the text of the config
// file. It sets Targets if there are none.
func checkAdapters(c *AdapterOptions, adapters map[string]*LoRA) ([]byte, error) {
	if len(adapters) == 0 {
		return nil, fmt.Errorf("there are none: %w", snug.ErrConfig)
	}
	names := slices.Sorted(maps.Keys(adapters))
	if c.Targets.isZero() {
		c.Targets.Names = names
	}
	s, err := c.check()
	if err == nil && c.VeRA != nil {
		err = fmt.Errorf("the adapters are those of a VeRA, which SaveVeRA saves: %w", snug.ErrConfig)
	}
	if err == nil && c.Init != "" {
		err = fmt.Errorf("adapters that began by %q are for another base weight; LoRA.Less makes plain ones: %w", c.Init, snug.ErrConfig)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := c.checkAdapter(s, name, adapters[name]); err != nil {
			return nil, fmt.Errorf("module %q: %w", name, err)
		}
	}
	if err := checkFinite(names, adapters); err != nil {
		return nil, err
	}
	text, err := c.encode()
	if err == nil && len(text) > maxAdapterConfig {
		err = fmt.Errorf("a config of %d bytes, want %d at most: %w", len(text), maxAdapterConfig, snug.ErrConfig)
	}
	return text, err
}

// checkFinite returns an error that names the first NaN or infinity of adapters.
func checkFinite(names []string, adapters map[string]*LoRA) error {
	stats, err := amp.Measure(func(yield func(string, snug.View) bool) {
		for _, name := range names {
			for _, p := range adapters[name].parts(adapters[name].Magnitude.Len() > 0) {
				if !yield(name+p.suffix, *p.to) {
					return
				}
			}
		}
	})
	return cmp.Or(err, stats.Err())
}

func (c *AdapterOptions) checkAdapter(s *selector, name string, a *LoRA) error {
	switch {
	case name == "" || !utf8.ValidString(name):
		return fmt.Errorf("the name is empty or not UTF-8: %w", snug.ErrConfig)
	case a == nil:
		return fmt.Errorf("the adapter is nil: %w", snug.ErrConfig)
	}
	if _, err := a.check("save", part(a.A, 0, 0), snug.View{}, snug.View{}); err != nil {
		return err
	}
	if selected, err := s.selects(name); err != nil || !selected {
		return cmp.Or(err, fmt.Errorf("it is not selected by Targets, Exclude and Layers, so that PEFT leaves it out: %w", snug.ErrConfig))
	}
	if _, err := snug.CommonDevice(a.A, a.B); err != nil {
		return err
	}
	rank, scale, err := s.scale(name, c.RSLoRA)
	switch {
	case err != nil:
		return err
	case !a.A.DType().IsFloat() || !a.B.DType().IsFloat():
		return fmt.Errorf("matrix A holds %s and B %s, want f32, f16 or bf16: %w", a.A.DType(), a.B.DType(), snug.ErrDType)
	case a.Rank != rank || a.Scale != scale || a.Dropout != c.Dropout:
		return fmt.Errorf("rank %d, scale %g and dropout %g, want %d, %g and %g: %w", a.Rank, a.Scale, a.Dropout, rank, scale, c.Dropout, snug.ErrConfig)
	case c.DoRA != (a.Magnitude.Len() > 0):
		return fmt.Errorf("magnitudes %t, want %t: %w", a.Magnitude.Len() > 0, c.DoRA, snug.ErrConfig)
	}
	return nil
}

// adapterPart is one tensor of an adapter.
type adapterPart struct {
	suffix string
	shape  []int
	to     *snug.View
}

// parts returns the tensors of l, with its magnitudes if dora is set.
func (l *LoRA) parts(dora bool) []adapterPart {
	p := []adapterPart{{adapterA, []int{l.Rank, l.In}, &l.A}, {adapterB, []int{l.Out, l.Rank}, &l.B}, {adapterMagnitude, []int{l.Out}, &l.Magnitude}}
	if l.Embedding {
		p[0].suffix, p[1].suffix = embeddingA, embeddingB
	}
	if !dora {
		p = p[:2]
	}
	return p
}

// LoadAdapters reads the adapters that [SaveAdapters] or PEFT wrote, as float32 on a
// device, nil for the CPU. The keys are the names of the modules. The adapters take 4 bytes
// a parameter until [LoRA.Close].
//
// Damaged elements may go unnoticed: safetensors has no checksum over tensors or metadata.
// The SHA-256 in the metadata checks the config that SaveAdapters wrote.
//
// Errors name the folder:
//
//   - [snug.ErrConfig] names the field or the tensor too. It is for settings that this
//     package does not compute like PEFT (see "Adapters of PEFT" above), for a regular
//     expression that it cannot use (see [Modules]), and for an adapter of a module that
//     the config does not select, which PEFT leaves out.
//   - [snug.ErrCorrupt] is for a file that cannot be parsed, for a value with which PEFT
//     fails, such as a rank of 0, for a module that lacks one of its tensors, and for a
//     config other than the one that SaveAdapters wrote with the tensors.
//   - [snug.ErrDType] is for tensors that are not F32, F16 or BF16.
//   - Others are errors of the file system, such as [fs.ErrNotExist], and
//     [snug.ErrNoMemory] of a device.
func LoadAdapters(dir string, dev *snug.Device) (AdapterOptions, map[string]*LoRA, error) {
	c, adapters, err := loadAdapters(openIn(dir), dev)
	if err != nil {
		return AdapterOptions{}, nil, fmt.Errorf("qlora: load adapters of %q: %w", dir, err)
	}
	return c, adapters, nil
}

func loadAdapters(open opener, dev *snug.Device) (c AdapterOptions, adapters map[string]*LoRA, err error) {
	r, err := openReader(open)
	if err != nil {
		return c, nil, err
	}
	whole := false
	defer func() {
		if err = errors.Join(err, r.Close()); err == nil && whole {
			return
		}
		for _, a := range adapters {
			err = errors.Join(err, a.Close())
		}
		adapters = nil
	}()
	c, adapters = r.options, r.adapters
	if dev == nil {
		dev = snug.CPU()
	}
	for _, name := range slices.Sorted(maps.Keys(adapters)) {
		if err := adapters[name].load(r.weights, dev, adapterPrefix+name, c.DoRA); err != nil {
			return c, nil, err
		}
	}
	whole = true
	return c, adapters, nil
}

// load makes the tensors of an adapter.
func (l *LoRA) load(w adapterWeights, dev *snug.Device, name string, dora bool) error {
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

// readAdapterConfig parses and compiles the text of a config.
func readAdapterConfig(text []byte) (c AdapterOptions, s *selector, err error) {
	if c, err = parseAdapterConfig(text); err != nil {
		return AdapterOptions{}, nil, err
	}
	s, err = c.check()
	return c, s, err
}

// describeAdapters returns the adapters of a file without their elements.
func describeAdapters(c *AdapterOptions, s *selector, w adapterWeights) (map[string]*LoRA, error) {
	adapters := map[string]*LoRA{}
	tensors := w.Tensors()
	for _, t := range tensors {
		module, err := c.adapterModule(w, t)
		if err != nil {
			return nil, fmt.Errorf("tensor %q of shape %v: %w", t.Name, t.Shape, err)
		}
		if module == "" {
			continue
		}
		a, err := c.describe(s, w, module, t)
		if err != nil {
			return nil, fmt.Errorf("module %q: %w", module, err)
		}
		adapters[module] = a
	}
	if len(adapters) == 0 {
		return nil, fmt.Errorf("%s has no tensors, want the tensors of at least one adapter: %w", adapterWeightsFile, snug.ErrCorrupt)
	}
	return adapters, nil
}

// adapterModule returns the module of an A. For the other tensors of an adapter it returns
// "" and checks that their A exists.
func (c *AdapterOptions) adapterModule(w adapterWeights, t amp.Tensor) (string, error) {
	name, found := strings.CutPrefix(t.Name, adapterPrefix)
	if !found {
		return "", fmt.Errorf("the name does not begin with %q: %w", adapterPrefix, snug.ErrCorrupt)
	}
	module, isA := strings.CutSuffix(name, adapterA)
	if table, ofEmbedding := strings.CutSuffix(name, embeddingA); ofEmbedding {
		if _, found := w.Tensor(adapterPrefix + table + adapterA); found {
			return "", fmt.Errorf("the module has also %q, an adapter of a linear layer: %w", adapterPrefix+table+adapterA, snug.ErrCorrupt)
		}
		module, isA = table, true
	}
	switch {
	case isA && len(t.Shape) > 2:
		return "", fmt.Errorf("an adapter of a convolution, want one of a linear layer: %w", snug.ErrConfig)
	case isA && len(t.Shape) != 2:
		return "", fmt.Errorf("want two dimensions: %w", snug.ErrCorrupt)
	case isA && module == "":
		return "", fmt.Errorf("a module without a name: %w", snug.ErrCorrupt)
	case isA:
		return module, nil
	}
	first := adapterA
	module, isPart := strings.CutSuffix(name, adapterB)
	if table, ofEmbedding := strings.CutSuffix(name, embeddingB); ofEmbedding {
		module, isPart, first = table, true, embeddingA
	}
	if !isPart {
		module, isPart = strings.CutSuffix(name, adapterMagnitude)
		if isPart && !c.DoRA {
			return "", fmt.Errorf("magnitudes, which PEFT leaves out because use_dora is false: %w", snug.ErrConfig)
		}
	}
	switch {
	case !isPart && (c.isSaved(name) || isTable(name) || isTwin(w, name)):
		return "", nil
	case !isPart:
		return "", foreignTensor(name)
	}
	if _, found := w.Tensor(adapterPrefix + module + embeddingA); found && strings.HasSuffix(name, adapterMagnitude) {
		first = embeddingA
	}
	if _, found := w.Tensor(adapterPrefix + module + first); !found {
		return "", fmt.Errorf("its tensor %q is missing: %w", adapterPrefix+module+first, snug.ErrCorrupt)
	}
	return "", nil
}

// foreignTensor returns the error for a tensor that is not part of an adapter. The error says what the tensor is and what to do about it.
func foreignTensor(name string) error {
	switch {
	case strings.Contains(name, ".base_layer."):
		return fmt.Errorf("a copy of a weight of the base model other than embeddings and heads: not supported: %w", snug.ErrConfig)
	case !strings.Contains(name, "lora_"):
		return fmt.Errorf("a weight of the base model that modules_to_save does not name, and neither an embedding nor a head: not supported: %w", snug.ErrConfig)
	}
	return fmt.Errorf("neither A nor B nor magnitudes of a linear layer or an embedding: not supported: %w", snug.ErrConfig)
}

// describe returns the adapter of a module without its elements; first is A.
func (c *AdapterOptions) describe(s *selector, w adapterWeights, module string, first amp.Tensor) (*LoRA, error) {
	if selected, err := s.selects(module); err != nil || !selected {
		return nil, cmp.Or(err, fmt.Errorf("the file has an adapter, which target_modules, exclude_modules and layers_to_transform do not select, "+
			"so that PEFT leaves it out: %w", snug.ErrConfig))
	}
	rank, scale, err := s.scale(module, c.RSLoRA)
	if err != nil {
		return nil, err
	}
	a := &LoRA{In: first.Shape[1], Rank: rank, Scale: scale, Dropout: c.Dropout, Embedding: strings.HasSuffix(first.Name, embeddingA)}
	if b, found := w.Tensor(adapterPrefix + module + a.parts(false)[1].suffix); found {
		if len(b.Shape) != 2 {
			return nil, fmt.Errorf("tensor %q has shape %v, want two dimensions: %w", b.Name, b.Shape, snug.ErrCorrupt)
		}
		a.Out = b.Shape[0]
	}
	for _, p := range a.parts(c.DoRA) {
		name := adapterPrefix + module + p.suffix
		switch got, found := w.Tensor(name); {
		case !found:
			return nil, fmt.Errorf("the tensor %q is missing: %w", name, snug.ErrCorrupt)
		case !slices.Equal(got.Shape, p.shape):
			return nil, fmt.Errorf("tensor %q has shape %v, want %v: %w", name, got.Shape, p.shape, snug.ErrCorrupt)
		}
	}
	return a, nil
}
