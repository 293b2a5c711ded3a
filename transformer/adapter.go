package transformer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/qlora"
)

// adapter is the adapter of a matrix.
type adapter struct {
	layers.Adapter
	first *qlora.LoRA // A and B before training, of an adapter that took them from its matrix, else nil
}

// adapterPrefix begins PEFT's names of parameters.
const adapterPrefix = "base_model.model."

// chosen is a module that gets an adapter.
type chosen struct {
	module  string
	in, out int
	rank    int
	scale   float32
	loaded  *qlora.LoRA // nil for a fresh one
}

// chooseAdapters returns the modules that have adapters, in the order of the arithmetic. load reads those of a folder.
func (m *Model) chooseAdapters(load func(dir string) (map[string]*qlora.LoRA, error)) (list []chosen, err error) {
	o, dir := m.options.Adapter, m.options.AdapterDir
	var loaded map[string]*qlora.LoRA
	switch {
	case o == nil && dir == "":
		return nil, nil
	case o != nil && dir != "":
		return nil, fmt.Errorf("both Adapter and AdapterDir are set, want one: %w", snug.ErrConfig)
	case m.options.Train != nil:
		return nil, fmt.Errorf("the option Train is set beside adapters, which train alone: %w", snug.ErrConfig)
	case o != nil:
		if err := m.checkStart(o.Start()); err != nil {
			return nil, err
		}
		m.adapters = *o
	default:
		if loaded, err = load(dir); err != nil {
			return nil, err
		}
		for _, a := range loaded {
			m.free = append(m.free, a.Close)
		}
		if err := m.checkStart(m.adapters.Began()); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	// Of GPT-2 it may be false: PEFT writes that for matrices in 4 bits, which lie as [out, in], and for others corrects it.
	if m.adapters.FanInFanOut && !m.conv() && o == nil {
		return nil, fmt.Errorf("fan_in_fan_out is true, and the matrices of %s are [out, in]: %w", m.config.Family, snug.ErrConfig)
	}
	m.adapters.FanInFanOut = m.conv()
	m.chooseNames(loaded)
	if err := m.takeTables(dir, loaded); err != nil {
		return nil, err
	}
	if err := m.chooseSaved(); err != nil {
		return nil, err
	}
	if m.tables.tied && m.tables.adapters[m.config.layout().head] == nil { // the list of parameters lacks the head
		if err := m.refuseEmbedding(m.adapterName("lm_head"), true); err != nil {
			return nil, err
		}
	}
	tensors := m.config.tensors(m.config.layout())
	ofExperts := slices.ContainsFunc(tensors, func(t amp.Tensor) bool {
		return m.config.ofExpert(t.Name) && loaded[m.adapterName(strings.TrimSuffix(t.Name, ".weight"))] != nil
	})
	for _, t := range tensors {
		c := chosen{module: strings.TrimSuffix(t.Name, ".weight")}
		module := m.adapterName(c.module) // PEFT's
		if !m.config.isMatrix(t) {
			if err := m.refuseEmbedding(module, len(t.Shape) == 2 && m.tables.adapters[t.Name] == nil); err != nil {
				return nil, err
			}
			continue
		}
		c.out, c.in = t.Shape[0], t.Shape[1]
		if m.conv() {
			c.in, c.out = c.out, c.in
		}
		yes, err := m.adapters.Selects(module)
		if err != nil {
			return nil, err
		}
		if !yes {
			continue
		}
		if m.config.unadapted(c.module) {
			if t := m.adapters.Targets; t.Pattern == "" && len(t.Names) == 0 || strings.EqualFold(t.Pattern, "all-linear") {
				continue
			}
			return nil, fmt.Errorf("the adapter's Targets select %s, which PEFT does not adapt in models of %s: leave it out: %w", module, m.config.Family, snug.ErrConfig)
		}
		if c.rank, c.scale, err = m.adapters.RankOf(module); err != nil {
			return nil, err
		}
		if loaded == nil && m.adapters.Init != "" && m.stored[t.Name] {
			return nil, fmt.Errorf("adapters of Init %q take over a part of their matrix, and the folder has %s in %s: %w", m.adapters.Init, module, m.storedType, snug.ErrConfig)
		}
		if loaded != nil {
			if c.loaded = loaded[module]; c.loaded == nil {
				_, joined := m.config.slot(t.Name)
				if joined || m.config.ofExpert(t.Name) && !ofExperts {
					continue // in a tensor of all experts, which transformers 5 has of any, PEFT sees no module
				}
				return nil, fmt.Errorf("%s: target_modules select %s, which has no adapter in the folder%s: %w", dir, module, m.foreignPrefix(loaded, module), snug.ErrCorrupt)
			}
			delete(loaded, module)
			if m.adapters.VeRA != nil {
				c.loaded.In = c.in // which a folder does not tell
			}
			if c.loaded.In != c.in || c.loaded.Out != c.out {
				return nil, fmt.Errorf("%s: the adapter of %s is for %d to %d elements, the model has %d to %d: %w",
					dir, module, c.loaded.In, c.loaded.Out, c.in, c.out, snug.ErrShape)
			}
		}
		list = append(list, c)
	}
	if len(loaded) > 0 {
		return nil, fmt.Errorf("%s: adapters of modules that the model lacks: %.200q: %w", dir, slices.Sorted(maps.Keys(loaded)), snug.ErrConfig)
	}
	if list == nil && len(m.tables.adapters) == 0 {
		return nil, fmt.Errorf("the adapter's Targets select no matrix of the model: %w", snug.ErrConfig)
	}
	return list, nil
}

// unadapted reports whether PEFT refuses an adapter of a module, which "all-linear" leaves out here.
func (c *Config) unadapted(module string) bool {
	end := c.names().unadapted
	return end != "" && strings.HasSuffix(module, "."+end)
}

// foreignPrefix says which adapter of a folder has the end of a module's name, behind something else, empty if none has.
func (m *Model) foreignPrefix(loaded map[string]*qlora.LoRA, module string) string {
	_, end, found := strings.Cut(module, "."+m.config.names().block+".")
	for _, name := range slices.Sorted(maps.Keys(loaded)) {
		if found && strings.HasSuffix(name, "."+end) {
			return fmt.Sprintf("; the file has %s, whose prefix is not known", name)
		}
	}
	return ""
}

// chooseNames decides what PEFT calls the modules. In the class of a multimodal model they have other
// names than in the text model; loaded adapters have either, and may adapt the part for images, which
// is passed over as its weights are.
func (m *Model) chooseNames(loaded map[string]*qlora.LoRA) {
	m.adapterNames = m.config.layout()
	w := wholes[m.whole]
	if w == nil {
		return
	}
	layouts := w.layouts
	maps.DeleteFunc(loaded, func(name string, _ *qlora.LoRA) bool { return w.hasImages(name) })
	if loaded == nil {
		m.adapterNames = layouts[1]
	}
	for name := range loaded {
		for _, l := range layouts {
			if strings.HasPrefix(name, l.body) { // those in memory may begin as published ones do
				m.adapterNames = l
			}
		}
	}
}

// adapterName returns PEFT's name of a module.
func (m *Model) adapterName(module string) string {
	if rest, found := strings.CutPrefix(module, m.config.layout().body); found {
		return m.adapterNames.body + rest
	}
	return strings.TrimSuffix(m.adapterNames.head, ".weight")
}

// refuseEmbedding returns an error when the targets name a module that has no adapters here.
func (m *Model) refuseEmbedding(module string, table bool) error {
	t := m.adapters.Targets
	if !table || t.Pattern == "" && len(t.Names) == 0 || strings.EqualFold(t.Pattern, "all-linear") {
		return nil
	}
	yes, err := m.adapters.Selects(module)
	if err == nil && yes {
		err = fmt.Errorf("the adapter's Targets select %s, and only matrices of layers have fresh adapters: name it in ModulesToSave to train it whole: %w", module, snug.ErrConfig)
		if m.options.AdapterDir != "" {
			err = fmt.Errorf("%s: target_modules select %s, which has no adapter in the folder: %w", m.options.AdapterDir, module, snug.ErrCorrupt)
		}
	}
	return err
}

// loadAdapters reads adapters from a folder.
func (m *Model) loadAdapters(dir string) (loaded map[string]*qlora.LoRA, err error) {
	if gguf.IsFile(dir) {
		return m.loadGGUFAdapters(dir)
	}
	is, err := qlora.IsVeRA(dir)
	switch {
	case err != nil:
		return nil, err
	case is:
		return m.loadVeRA(dir)
	}
	m.adapters, loaded, err = qlora.LoadAdapters(dir, m.dev)
	return loaded, err
}

// makeAdapters adds the parameters of the adapters to the list.
func (m *Model) makeAdapters(list []chosen) error {
	const most = 1 << 16 // the random numbers of dropout tell so many adapters apart
	if m.adapters.Dropout > 0 && len(list) > most {
		return fmt.Errorf("%d adapters with dropout, want %d at most: %w", len(list), most, snug.ErrConfig)
	}
	m.byModule = make(map[string]*adapter, len(list))
	if m.adapters.VeRA != nil && len(list) > 0 {
		return m.makeVeRA(list)
	}
	for i, c := range list {
		a := &adapter{Adapter: layers.Adapter{LoRA: c.loaded, Number: uint64(i)}}
		if a.LoRA == nil {
			a.LoRA = &qlora.LoRA{In: c.in, Out: c.out, Rank: c.rank, Scale: c.scale, Dropout: m.adapters.Dropout, FrozenA: m.adapters.FrozenA}
			if err := m.firstAdapter(a, i); err != nil {
				return fmt.Errorf("the adapter of %s: %w", c.module, err)
			}
		} else {
			m.weightBytes += int64(a.A.Bytes() + a.B.Bytes() + a.Magnitude.Bytes())
		}
		param := func(name string, v snug.View, shape ...int) *Param {
			return m.addParam(Param{Name: adapterPrefix + c.module + name, Shape: shape, Value: v, Trains: true})
		}
		a.ParamA, a.ParamB = param(".lora_A.weight", a.A, a.Rank, a.In), param(".lora_B.weight", a.B, a.Out, a.Rank)
		a.ParamA.Trains = !a.FrozenA
		if m.adapters.DoRA {
			a.ParamM = param(".lora_magnitude_vector", a.Magnitude, a.Out)
		}
		m.byModule[c.module+".weight"] = a
	}
	return nil
}

// firstAdapter makes the vectors of a fresh adapter. makeMagnitudes sets its magnitudes, and startAdapter the vectors
// that are made of the matrix, when the matrix has values.
func (m *Model) firstAdapter(a *adapter, number int) (err error) {
	if a.A, err = m.makeVector(snug.F32, a.Rank*a.In); err != nil {
		return err
	}
	if a.B, err = m.makeVector(snug.F32, a.Rank*a.Out); err != nil {
		return err
	}
	if m.adapters.DoRA {
		if a.Magnitude, err = m.makeVector(snug.F32, a.Out); err != nil {
			return err
		}
	}
	if m.adapters.Init == "" {
		return m.firstA(a.LoRA, number)
	}
	if !m.adapters.Start().Takes {
		return nil
	}
	first := *a.LoRA
	a.first = &first
	if first.A, err = m.makeVector(snug.F32, a.A.Len()); err == nil {
		first.B, err = m.makeVector(snug.F32, a.B.Len())
	}
	return err
}

// firstA draws A uniformly between -1/√in and 1/√in, as PEFT does. B is 0.
func (m *Model) firstA(a *qlora.LoRA, number int) error {
	rng := rand.New(rand.NewPCG(m.options.Seed, 1<<32+uint64(number)))
	bound := 1 / math.Sqrt(float64(a.In))
	x := make([]float32, a.A.Len())
	for i := range x {
		x[i] = float32(bound * (2*rng.Float64() - 1))
	}
	return snug.Copy(a.A, x)
}

// trains reports whether a parameter of the base trains.
func (m *Model) trains(name string) bool {
	if m.options.Adapter != nil || m.options.AdapterDir != "" {
		return m.saved[name]
	}
	return m.options.Train == nil || m.options.Train(name)
}

// adapted reports whether a parameter belongs to an adapter.
func (m *Model) adapted(p *Param) bool { return strings.HasPrefix(p.Name, adapterPrefix) }

// SaveAdapter writes the adapters as PEFT loads them: adapter_config.json and
// adapter_model.safetensors. Those of a multimodal model are for transformers' class of the whole
// model, Gemma3ForConditionalGeneration, unless they came from a folder for the text model.
// Adapters that began by "pissa" or "olora" are written as plain ones of twice the rank for the base weights as they
// were published, see [qlora.LoRA.Less], and those that began by "loftq" are for these weights in the format of
// Options.Base. With a Base, converted adapters leave out what 4 bits lost of the rest of the weights, which the
// training made up for: [Model.Save] writes exactly the trained model.
//
// Adapters of single experts of a model whose files have all experts of a layer in one tensor (gpt-oss, Gemma 4 26B-A4B and Mistral Small 4), which
// "all-linear" and ends like "down_proj" select, are written by the names of [Config.Tensors]. AdapterDir reads them, and [Model.Save] merges them, but
// PEFT has no such modules: it passes over them without a word, and computes something else. AdapterOptions.Exclude with the Pattern
// `.*\.experts\..*` leaves experts without adapters, for PEFT.
//
// Parameters of ModulesToSave are written in the
// model's type. See [qlora.SaveAdapters] for what a killed process leaves. The error wraps [snug.ErrConfig] for a model
// without adapters, and [snug.ErrNonFinite].
func (m *Model) SaveAdapter(dir string) (err error) {
	defer fault.Named(&err, "transformer: SaveAdapter")
	if err := m.usable(); err != nil {
		return err
	}
	if len(m.byModule) == 0 {
		return fmt.Errorf("the model has no adapters of matrices of its layers: %w", snug.ErrConfig)
	}
	m.saveBeside()
	o := m.adapters
	m.saveTables(&o)
	other := map[string]json.RawMessage{"task_type": json.RawMessage(`"CAUSAL_LM"`)}
	maps.Copy(other, o.Other)
	maps.Copy(other, o.Start().Other)
	o.Other = other
	if strings.EqualFold(o.Targets.Pattern, "all-linear") {
		o.Targets = qlora.Modules{} // which lists the modules, as PEFT does
	}
	if m.whole != "" { // the part for images has modules with the same ends
		o.Targets, o.Layers, o.LayersPattern = qlora.Modules{}, nil, nil
	}
	if m.vera != nil {
		return m.saveVeRA(dir, o)
	}
	converts := o.Start().Takes
	if converts {
		o = o.Doubled()
	}
	o.Init = ""
	all := map[string]*qlora.LoRA{}
	for name, a := range m.byModule {
		module, saved, err := m.adapterName(strings.TrimSuffix(name, ".weight")), a.LoRA, error(nil)
		if converts {
			if saved, err = a.Less(a.first); err == nil {
				_, saved.Scale, err = o.RankOf(module) // that of a, up to rounding
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", module, err)
		}
		all[module] = saved
	}
	return qlora.SaveAdapters(dir, o, all, m.savedModules()...)
}
