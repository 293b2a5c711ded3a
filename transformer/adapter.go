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
	"github.com/snug-ml/snug/qlora"
)

// adapter is the adapter of a matrix.
type adapter struct {
	*qlora.LoRA
	a, b, m *Param      // m: magnitudes, nil without DoRA
	dora    *qlora.DoRA // nil without DoRA
	number  uint64      // number of the adapter, which determines its dropout
	updated uint64      // number of the call that computed the norms of dora
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

// chooseAdapters returns the modules that have adapters, in the order of the arithmetic.
func (m *Model) chooseAdapters() (list []chosen, err error) {
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
		m.adapters = *o
	default:
		if m.adapters, loaded, err = qlora.LoadAdapters(dir, m.dev); err != nil {
			return nil, err
		}
		for _, a := range loaded {
			m.free = append(m.free, a.Close)
		}
	}
	if m.adapters.FanInFanOut != m.conv() && o == nil {
		return nil, fmt.Errorf("fan_in_fan_out is %t, and the matrices of %s are [%s]: %w",
			m.adapters.FanInFanOut, m.config.Family, map[bool]string{true: "in, out", false: "out, in"}[m.conv()], snug.ErrConfig)
	}
	m.adapters.FanInFanOut = m.conv()
	m.chooseNames(loaded)
	if m.config.Tied { // the list of parameters lacks the head
		if err := m.refuseEmbedding(m.adapterName("lm_head"), true); err != nil {
			return nil, err
		}
	}
	for _, t := range m.config.tensors(m.config.layout()) {
		c := chosen{module: strings.TrimSuffix(t.Name, ".weight")}
		module := m.adapterName(c.module) // PEFT's
		if !m.config.isMatrix(t) {
			if err := m.refuseEmbedding(module, len(t.Shape) == 2); err != nil {
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
		if c.rank, c.scale, err = m.adapters.RankOf(module); err != nil {
			return nil, err
		}
		if loaded != nil {
			if c.loaded = loaded[module]; c.loaded == nil {
				return nil, fmt.Errorf("%s: target_modules select %s, which has no adapter in the folder: %w", dir, module, snug.ErrCorrupt)
			}
			delete(loaded, module)
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
	if list == nil {
		return nil, fmt.Errorf("the adapter's Targets select no matrix of the model: %w", snug.ErrConfig)
	}
	return list, nil
}

// chooseNames decides what PEFT calls the modules. In the class of a multimodal model they have other
// names than in the text model; loaded adapters have either, and may adapt the part for images, which
// is passed over as its weights are.
func (m *Model) chooseNames(loaded map[string]*qlora.LoRA) {
	m.adapterNames = m.config.layout()
	if !m.multimodal {
		return
	}
	whole := m.config
	whole.Multimodal = true
	layouts := whole.layouts()
	if loaded == nil {
		m.adapterNames = layouts[1]
	}
	for name := range loaded {
		for _, l := range layouts {
			if strings.HasPrefix(name, l.body) {
				m.adapterNames = l
			}
		}
	}
	maps.DeleteFunc(loaded, func(name string, _ *qlora.LoRA) bool { return imagePart(name) })
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
		err = fmt.Errorf("the adapter's Targets select %s, and only matrices of layers have adapters: %w", module, snug.ErrConfig)
	}
	return err
}

// makeAdapters adds the parameters of the adapters to the list.
func (m *Model) makeAdapters(list []chosen) error {
	m.byModule = make(map[string]*adapter, len(list))
	for i, c := range list {
		a := &adapter{LoRA: c.loaded, number: uint64(i)}
		if a.LoRA == nil {
			a.LoRA = &qlora.LoRA{In: c.in, Out: c.out, Rank: c.rank, Scale: c.scale, Dropout: m.adapters.Dropout}
			if err := m.firstAdapter(a.LoRA, i); err != nil {
				return fmt.Errorf("the adapter of %s: %w", c.module, err)
			}
		} else {
			m.weightBytes += int64(a.A.Bytes() + a.B.Bytes() + a.Magnitude.Bytes())
		}
		param := func(name string, v snug.View, shape ...int) *Param {
			return m.addParam(Param{Name: adapterPrefix + c.module + name, Shape: shape, Value: v, Trains: true})
		}
		a.a, a.b = param(".lora_A.weight", a.A, a.Rank, a.In), param(".lora_B.weight", a.B, a.Out, a.Rank)
		if m.adapters.DoRA {
			a.m = param(".lora_magnitude_vector", a.Magnitude, a.Out)
		}
		m.byModule[c.module+".weight"] = a
	}
	return nil
}

// firstAdapter makes the vectors of a fresh adapter. makeMagnitudes sets its magnitudes when the matrix has values.
func (m *Model) firstAdapter(a *qlora.LoRA, number int) (err error) {
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
	return m.firstA(a, number)
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
		return false
	}
	return m.options.Train == nil || m.options.Train(name)
}

// adapted reports whether a parameter belongs to an adapter.
func (m *Model) adapted(p *Param) bool { return strings.HasPrefix(p.Name, adapterPrefix) }

// adapt adds the adapter's part to y.
func (o *ops) adapt(y, x *tensor, a *adapter) {
	u, work := o.get(a.Rank), o.dropped(a)
	o.do(func() error { return a.Forward(y.View, u.View, x.View, o.draw(a, work)) })
	o.pool.put(u, work)
}

// adaptBackward adds the adapter's part to dx, and its gradients to the window.
func (o *ops) adaptBackward(dx, dy, x *tensor, a *adapter) {
	u, du, work := o.get(a.Rank), o.get(a.Rank), o.dropped(a)
	o.do(func() error {
		draw := o.draw(a, work)
		if err := a.Down(u.View, x.View, draw); err != nil {
			return err
		}
		g, err := o.adapterGradients(a)
		if err != nil {
			return err
		}
		return a.Backward(dx.View, du.View, dy.View, u.View, x.View, g, draw)
	})
	o.pool.put(u, du, work)
	o.done(a.a, a.b)
}

// adapterGradients returns the accumulators of an adapter.
func (o *ops) adapterGradients(a *adapter) (g qlora.Grads, err error) {
	for _, p := range [...]struct {
		*Param
		acc *snug.View
	}{{a.a, &g.A}, {a.b, &g.B}, {a.m, &g.Magnitude}} {
		if p.Param == nil {
			continue
		}
		acc, into, err := o.gradient(p.Param)
		if err != nil {
			return g, err
		}
		if *p.acc = acc; p.Param != a.a && into != g.Into {
			return g, fmt.Errorf("the window's Into of %s and of %s differ: %w", a.a.Name, p.Name, snug.ErrConfig)
		}
		g.Into = into
	}
	return g, nil
}

// dropped returns the workspace of an adapter's dropout, nil where nothing is dropped.
func (o *ops) dropped(a *adapter) *tensor {
	if a.Dropout == 0 || o.backward.window == nil {
		return nil
	}
	return o.get(a.In)
}

func (o *ops) draw(a *adapter, work *tensor) qlora.Dropout {
	if work == nil {
		return qlora.Dropout{}
	}
	first := uint64(o.tile.lo) * uint64(a.In)
	return qlora.Dropout{Draw: amp.Draw{Seed: o.options.Seed, Tensor: o.batch.draw<<16 + a.number, First: first}, Work: work.View}
}

// SaveAdapter writes the adapters as PEFT loads them: adapter_config.json and
// adapter_model.safetensors. Those of a multimodal model are for transformers' class of the whole
// model, Gemma3ForConditionalGeneration, unless they came from a folder for the text model.
// See [qlora.SaveAdapters] for what a killed process leaves. The error wraps [snug.ErrConfig] for a model without
// adapters, and [snug.ErrNonFinite].
func (m *Model) SaveAdapter(dir string) error {
	if err := m.usable(); err != nil {
		return fmt.Errorf("transformer: SaveAdapter: %w", err)
	}
	if len(m.byModule) == 0 {
		return fmt.Errorf("transformer: SaveAdapter: the model has no adapters: %w", snug.ErrConfig)
	}
	o := m.adapters
	if strings.EqualFold(o.Targets.Pattern, "all-linear") {
		o.Targets = qlora.Modules{} // which lists the modules, as PEFT does
	}
	if o.Other["task_type"] == nil {
		o.Other = maps.Clone(o.Other)
		if o.Other == nil {
			o.Other = map[string]json.RawMessage{}
		}
		o.Other["task_type"] = json.RawMessage(`"CAUSAL_LM"`)
	}
	if m.multimodal { // of which the part for images has modules with the same ends
		o.Targets, o.Layers, o.LayersPattern = qlora.Modules{}, nil, nil
	}
	all := map[string]*qlora.LoRA{}
	for name, a := range m.byModule {
		all[m.adapterName(strings.TrimSuffix(name, ".weight"))] = a.LoRA
	}
	if err := qlora.SaveAdapters(dir, o, all); err != nil {
		return fmt.Errorf("transformer: SaveAdapter: %w", err)
	}
	return nil
}
