package transformer

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// planned predicts a run that does nothing special.
func planned(t require.TestingT, c *Config, tokens, sequences int, r plan.Run) (plan.Task, meter.Bytes) {
	m, err := c.Plan(tokens)
	require.NoError(t, err)
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	task := plan.Task{Model: m, Device: d, Batch: sequences * r.Window}
	p, err := task.Predict(r)
	require.NoError(t, err)
	return task, p.Peak[meter.OnDevice]
}

// sameCosts requires that the stages of a plan are those of Costs.
func sameCosts(t require.TestingT, m *Model, tokens, sequences int, r plan.Run) remat.Costs {
	want, err := m.Costs(sequences, tokens)
	require.NoError(t, err)
	c := m.Config()
	task, _ := planned(t, &c, tokens, sequences, r)
	got, err := task.Costs(r)
	require.NoError(t, err)
	require.Equal(t, want.Input, got.Input)
	require.Len(t, got.Stages, len(want.Stages))
	for i, s := range want.Stages {
		g := got.Stages[i]
		require.Equal(t, []int64{s.Output, s.Saved, s.ForwardExtra, s.BackwardExtra}, []int64{g.Output, g.Saved, g.ForwardExtra, g.BackwardExtra}, s.Name)
	}
	return want
}

// TestPlanIsWhatTrainingTakes: for every family of testdata, in all types, a prediction has the
// bytes of a model that trains: of its weights, gradients, state, activations and workspace.
// Activations may take less where the peak is in a forward step: package remat has one number for
// the transients of the step that saves and of the step that does not, which takes more, and
// Backprop leaves out what a repeated step need not compute.
func TestPlanIsWhatTrainingTakes(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("testdata", "models", "*"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(dirs), 12)
	for _, dir := range dirs {
		for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			if c.Stored != 0 { // a prediction with all parameters in floats
				continue
			}
			m, err := Open(dir, Options{DType: dt})
			require.NoError(t, err)
			trainAsPlanned(t, fmt.Sprint(dir, " ", dt), m, c, dt)
			require.NoError(t, m.Close())
		}
	}
}

// backwardPeak returns the peak of a plan without the transients of forward steps.
func backwardPeak(t *testing.T, p remat.Plan, c remat.Costs) int64 {
	c.Stages = slices.Clone(c.Stages)
	for i := range c.Stages {
		c.Stages[i].ForwardExtra = 0
	}
	r, err := p.Simulate(c)
	require.NoError(t, err)
	return r.Peak
}

func trainAsPlanned(t *testing.T, name string, m *Model, c *Config, dt snug.DType) {
	const sequences, tokens = 2, 12
	r := plan.Run{Micro: sequences, Window: 3, Compute: dt, StateBits: 8}
	costs := sameCosts(t, m, tokens, sequences, r)
	b := someBatch(7, c.Vocab, sequences, tokens)
	var first map[string][]float32
	for _, p := range plans(t, costs) {
		require.NoError(t, m.SetPlan(p), name)
		grads := gradients(t, m, b)
		if first == nil {
			first = grads
		}
		require.Equal(t, first, grads, "%s %s", name, p.Name)
		r.Remat = p
		_, want := planned(t, c, tokens, sequences, r)
		have := m.Memory()
		require.Equal(t, want[meter.Weights], have.Weights, name)
		require.Equal(t, want[meter.Workspace], have.Workspace, name)
		least := backwardPeak(t, p, costs)
		if c.Experts.Count > 0 { // the plan takes twice the mean of an expert's rows
			least = least * 8 / 10
		}
		require.LessOrEqual(t, have.Peak, want[meter.Activations], "%s %s", name, p.Name)
		require.GreaterOrEqual(t, have.Peak, least, "%s %s", name, p.Name)
	}

	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{})
	require.NoError(t, err)
	var list []accum.Param
	master, err := amp.NewMaster(amp.MasterOptions{})
	require.NoError(t, err)
	for _, p := range m.Params() {
		if c.corrects(p.Name) {
			continue
		}
		require.NoError(t, opt.Add(p.Name, p.Len()))
		list = append(list, accum.Param{Name: p.Name, Len: p.Len()})
		if dt != snug.F32 {
			require.NoError(t, master.AddFrom(p.Name, p.Value, nil))
		}
	}
	w, err := accum.New(list, accum.Options{Schedule: accum.Weight(1)})
	require.NoError(t, err)
	_, want := planned(t, c, tokens, sequences, r)
	require.Equal(t, want[meter.State], opt.StateBytes(), name)
	require.EqualValues(t, want[meter.Gradients], 4*w.Len(), name)
	require.Equal(t, want[meter.Masters], master.Bytes(), name)
}

// TestPlanOfAdamMini: a plan counts for Adam-mini what training takes, and a second moment for each row of q and k, and
// element of a norm, in place of one for each head and norm.
func TestPlanOfAdamMini(t *testing.T) {
	c := tiny()
	m, err := New(c, Options{})
	require.NoError(t, err)
	opt, err := quant8.New(quant8.AdamMini{}, quant8.Options{Bits: 8, Params: func(name string) quant8.ParamOptions {
		return quant8.ParamOptions{Shared: m.Block(name)}
	}})
	require.NoError(t, err)
	more := 0
	for _, p := range m.Params() {
		require.NoError(t, opt.Add(p.Name, p.Len()))
		switch each := m.Block(p.Name); {
		case len(p.Shape) == 2:
			more += p.Shape[0] - p.Len()/each
		default:
			more += p.Len() - p.Len()/each
		}
	}
	require.Equal(t, c.Layers*((c.Heads+c.KVHeads)*(c.HeadDim-1)+2*(c.Dim-1)+2*(c.HeadDim-1))+c.Dim-1, more)
	shape, err := c.Plan(8)
	require.NoError(t, err)
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	p, err := plan.Task{Model: shape, Device: d, Own: true, Batch: 1, Optimizer: "adam-mini"}.Predict(plan.Run{Micro: 1, Window: 1, StateBits: 8})
	require.NoError(t, err)
	require.EqualValues(t, opt.StateBytes()+4*int64(more), p.Peak[meter.OnDevice][meter.State])
	require.NoError(t, m.Close())
}

// planProperty: the layers of a random model are the stages of its Costs, for any batch, and
// the parameters are those of Tensors.
func planProperty(t *rapid.T) {
	c := *rapid.SampledFrom([]*Config{tiny(), tinyGemma(), tinyGPT2(GELU), tinyCustom(), freeCustom(), tinyExperts()}).Draw(t, "config")
	if c.Family != "gpt2" && c.Family != Custom {
		c.QKNorm = rapid.Bool().Draw(t, "norms of q and k")
		c.Dim, c.Hidden = rapid.IntRange(1, 60).Draw(t, "dim"), rapid.IntRange(1, 60).Draw(t, "hidden")
		c.QKVBias, c.OutBias = rapid.Bool().Draw(t, "bias of qkv"), rapid.Bool().Draw(t, "bias of out")
		c.KVHeads, c.Tied = rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "key heads"), rapid.Bool().Draw(t, "tied")
	}
	tokens, sequences := rapid.IntRange(1, 16).Draw(t, "tokens"), rapid.IntRange(1, 5).Draw(t, "sequences")
	dt := rapid.SampledFrom([]snug.DType{snug.F32, snug.BF16}).Draw(t, "type")
	m, err := New(&c, Options{DType: dt})
	require.NoError(t, err)
	r := plan.Run{Micro: sequences, Window: 1, Compute: dt}
	_, bytes := planned(t, &c, tokens, sequences, r)
	require.Equal(t, m.Memory().Weights, bytes[meter.Weights])
	narrow := (3*c.Heads+3*c.KVHeads)*c.HeadDim >= (c.Heads+2*c.KVHeads)*c.HeadDim+c.Dim
	if !c.QKNorm || narrow && (2*c.Heads+3*c.KVHeads)*c.HeadDim >= c.Dim {
		sameCosts(t, m, tokens, sequences, r)
	}
}

func TestPlanProperty(t *testing.T) { rapid.Check(t, planProperty) }

func FuzzPlan(f *testing.F) { f.Fuzz(rapid.MakeFuzz(planProperty)) }

// TestPlanContext: sequences may be longer than the published context where positions are a
// rope; activations follow the tokens and weights do not.
func TestPlanContext(t *testing.T) {
	c := tiny()
	r := plan.Run{Micro: 2, Window: 1, Compute: snug.BF16}
	_, short := planned(t, c, 8, 2, r)
	_, long := planned(t, c, 8*c.Context, 2, r)
	require.Equal(t, short[meter.Weights], long[meter.Weights])
	require.EqualValues(t, int64(c.Context)*short[meter.Activations], long[meter.Activations])
	for _, tokens := range []int{0, -1, maxCount + 1} {
		_, err := c.Plan(tokens)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	gpt2 := tinyGPT2(GELU)
	_, err := gpt2.Plan(gpt2.Context)
	require.NoError(t, err)
	_, err = gpt2.Plan(gpt2.Context + 1)
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = (&Config{}).Plan(1)
	require.ErrorIs(t, err, snug.ErrConfig)
	deep := *tiny()
	deep.Layers, deep.Windows = maxLayers, slices.Repeat([]int{0}, maxLayers)
	_, err = deep.Plan(8)
	require.ErrorIs(t, err, snug.ErrShape, "more stages than package plan counts")
}

// TestPlanAdapters: adapters go on every matrix of the layers and on no other, as by PEFT's
// "all-linear": rank times the inputs and outputs of each.
func TestPlanAdapters(t *testing.T) {
	for name, c := range map[string]struct {
		config *Config
		rank   int
		want   int64
	}{
		"llama":  {tiny(), 4, 2 * 4 * ((6 + 16) + 2*(6+8) + (16 + 6) + 2*(6+7) + (7 + 6))},
		"gpt2":   {tinyGPT2(GELU), 2, 2 * 2 * ((8 + 24) + (8 + 8) + 2*(8+9))},
		"gemma3": {tinyGemma(), 1, 2 * ((6 + 16) + 2*(6+8) + (16 + 6) + 2*(6+7) + (7 + 6))},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := c.config.Plan(8)
			require.NoError(t, err)
			d, err := plan.DeviceNamed("24GB")
			require.NoError(t, err)
			p, err := plan.Task{Model: m, Device: d, Batch: 1, Rank: c.rank}.Predict(plan.Run{Micro: 1, Window: 1})
			require.NoError(t, err)
			require.Equal(t, 4*c.want, p.Peak[meter.OnDevice][meter.Gradients], name)
		})
	}
}

// tinyJoined has q, k and v in one matrix, and gate and up.
func tinyJoined() *Config {
	c := tiny()
	c.Family, c.ScoreCap, c.QKNorm, c.QKVBias, c.OutBias, c.MLPBias, c.LogitCap = "phi3", 0, false, false, false, false, 0
	return c
}

// TestPlanOfAdapters: LoRA, DoRA, LoRA-FA, OLoRA and VeRA, with dropout and without, over matrices of the model's type
// and in 4 bits take the weights, gradients and workspace that are predicted, and the transients of Costs. With norms
// of q and k a prediction adds their statistics to all backward steps.
func TestPlanOfAdapters(t *testing.T) {
	const rank, sequences, tokens = 4, 2, 9
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU), tinyJoined()} {
		for i := range 40 {
			dt, base, dropout := []snug.DType{snug.F32, snug.BF16}[i%2], []qlora.Type{0, qlora.NF4}[i/2%2], float32(i/4%2)/2
			kind := i / 8
			dora, frozen, init := kind == 1, kind == 2, map[bool]string{true: "olora"}[kind == 3]
			name := fmt.Sprint(c.Family, " ", dt, " ", base, " ", dora, " ", dropout, " ", frozen, " ", init)
			adapter := &qlora.AdapterOptions{Rank: rank, Alpha: 8, DoRA: dora, Dropout: dropout, FrozenA: frozen, Init: init}
			if kind == 4 {
				adapter.Alpha, adapter.VeRA = 0, &qlora.VeRAOptions{}
			}
			m := newTiny(t, c, Options{DType: dt, Base: base, Adapter: adapter})
			gradients(t, m, someBatch(7, c.Vocab, sequences, tokens))
			model, err := c.Plan(tokens)
			require.NoError(t, err)
			r := plan.Run{Micro: sequences, Window: 1, Compute: dt, Frozen: 16}
			if base != 0 {
				r.Frozen = 4
			}
			task := plan.Task{Model: model, Device: d, Own: true, Batch: sequences, Rank: rank, DoRA: dora, Dropout: dropout > 0, FrozenA: frozen, Init: init, VeRA: kind == 4}
			p, err := task.Predict(r)
			require.NoError(t, err)
			bytes, have := p.Peak[meter.OnDevice], m.Memory()
			require.Equal(t, bytes[meter.Weights], have.Weights, name)
			require.EqualValues(t, bytes[meter.Gradients], 4*newWindow(t, m).Len(), name)
			require.Zero(t, bytes[meter.Masters], name)
			require.GreaterOrEqual(t, bytes[meter.Activations], have.Peak, name)
			workspace := bytes[meter.Workspace]
			if dora && base == 0 && c.Family == "gpt2" {
				workspace += 4 * 24 // ones, as many as the widest output
			}
			require.Equal(t, workspace, have.Workspace, name)
			want, err := m.Costs(sequences, tokens)
			require.NoError(t, err)
			got, err := task.Costs(r)
			require.NoError(t, err)
			for i, s := range want.Stages {
				g := got.Stages[i]
				require.Equal(t, []int64{s.Output, s.Saved, s.ForwardExtra}, []int64{g.Output, g.Saved, g.ForwardExtra}, name)
				stats := int64(0)
				if c.QKNorm {
					stats = 4 * sequences * tokens * int64(c.Heads+c.KVHeads)
				}
				require.GreaterOrEqual(t, g.BackwardExtra, s.BackwardExtra, "%s %s", name, s.Name)
				require.LessOrEqual(t, g.BackwardExtra, s.BackwardExtra+stats, "%s %s", name, s.Name)
			}
		}
	}
}

// TestPlanOfAdaptersOfFamilies: the same of LoRA of the models of testdata, but for those with experts, whose rows a plan does not know.
func TestPlanOfAdaptersOfFamilies(t *testing.T) {
	const rank, sequences, tokens = 3, 2, 9
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	for _, name := range modelNames {
		for _, base := range []qlora.Type{0, qlora.NF4} {
			m, err := Open(filepath.Join("testdata", "models", name), Options{DType: snug.BF16, Base: base, Adapter: &qlora.AdapterOptions{Rank: rank, Alpha: 8}})
			require.NoError(t, err, name)
			defer m.Close()
			c := m.Config()
			if c.Experts.Count > 0 {
				continue
			}
			gradients(t, m, someBatch(7, c.Vocab, sequences, tokens))
			model, err := c.Plan(tokens)
			require.NoError(t, err)
			r := plan.Run{Micro: sequences, Window: 1, Compute: snug.BF16, Frozen: 16}
			if base != 0 {
				r.Frozen = 4
			}
			task := plan.Task{Model: model, Device: d, Own: true, Batch: sequences, Rank: rank}
			p, err := task.Predict(r)
			require.NoError(t, err)
			bytes, have := p.Peak[meter.OnDevice], m.Memory()
			require.Equal(t, bytes[meter.Weights], have.Weights, name)
			require.EqualValues(t, bytes[meter.Gradients], 4*newWindow(t, m).Len(), name)
			require.GreaterOrEqual(t, bytes[meter.Activations], have.Peak, name)
			require.LessOrEqual(t, float64(bytes[meter.Activations]), 1.2*float64(have.Peak), name)
			require.Equal(t, bytes[meter.Workspace], have.Workspace, name)
		}
	}
}

// TestPlanOfModulesToSave: what trains beside adapters has weights, gradients, state and master weights as predicted.
func TestPlanOfModulesToSave(t *testing.T) {
	const rank, sequences, tokens = 4, 2, 9
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	for _, tied := range []bool{false, true} {
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			c := *tiny()
			c.Tied = tied
			names := []string{"embed_tokens", "norm"}
			m := newTiny(t, &c, Options{DType: dt, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: rank, Alpha: 8, ModulesToSave: names}})
			gradients(t, m, someBatch(7, c.Vocab, sequences, tokens))
			model, err := c.Plan(tokens)
			require.NoError(t, err)
			saved, err := c.ModulesToSave(names)
			require.NoError(t, err)
			task := plan.Task{Model: model, Device: d, Batch: sequences, Rank: rank}
			for _, s := range saved {
				task.Beside = append(task.Beside, s.Shape)
			}
			r := plan.Run{Micro: sequences, Window: 1, Compute: dt, Frozen: 4, StateBits: 32}
			p, err := task.Predict(r)
			require.NoError(t, err)
			bytes, have := p.Peak[meter.OnDevice], m.Memory()
			require.Equal(t, bytes[meter.Weights], have.Weights)
			require.GreaterOrEqual(t, bytes[meter.Activations], have.Peak)
			require.Equal(t, bytes[meter.Workspace], have.Workspace)
			opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32})
			require.NoError(t, err)
			master, err := amp.NewMaster(amp.MasterOptions{})
			require.NoError(t, err)
			n := 0
			for name, v := range m.Trainable() {
				n += v.Len()
				require.NoError(t, opt.Add(name, v.Len()))
				if v.DType() != snug.F32 {
					require.NoError(t, master.AddFrom(name, v, nil))
				}
			}
			require.EqualValues(t, 4*n, bytes[meter.Gradients])
			require.Equal(t, opt.StateBytes(), bytes[meter.State])
			require.Equal(t, master.Bytes(), bytes[meter.Masters])
			r.Gradients = plan.InBackward
			_, err = task.Predict(r)
			require.NoError(t, err)
			task.Beside = [][]int{{1 << 30, 1 << 30}}
			_, err = task.Predict(r)
			require.ErrorIs(t, err, snug.ErrConfig)
			task.Beside = [][]int{{0}}
			_, err = task.Predict(r)
			require.ErrorIs(t, err, snug.ErrConfig)
		}
	}
}

// TestPlanOfPublished: the parameters of published models, as their pages give them, and of
// adapters of rank 16 on every matrix of their layers.
func TestPlanOfPublished(t *testing.T) {
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		config           Config
		params, adapters int64
	}{
		"Qwen3-0.6B": {Config{Family: "qwen3", Vocab: 151936, Dim: 1024, Hidden: 3072, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128,
			QKNorm: true, Activation: SiLU, Gated: true}, 596_049_920, 10_092_544},
		"Llama-3.2-1B": {Config{Family: "llama", Vocab: 128256, Dim: 2048, Hidden: 8192, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64,
			Activation: SiLU, Gated: true}, 1_235_814_400, 11_272_192},
		"gemma-3-1b": {Config{Family: "gemma3_text", Vocab: 262144, Dim: 1152, Hidden: 6912, Layers: 26, Heads: 4, KVHeads: 1, HeadDim: 256,
			QKNorm: true, PostNorms: true, NormPlusOne: true, Activation: GELUTanh, Gated: true}, 999_885_952, 13_045_760},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.config
			f.Context, f.NormEps, f.ScoreScale, f.EmbeddingScale, f.Tied, f.Windows = 32768, 1e-6, 1, 1, true, make([]int, f.Layers)
			f.Rope = Rope{Kind: RopeDefault, Theta: 1e6, Dim: f.HeadDim}
			m, err := f.Plan(512)
			require.NoError(t, err)
			require.Equal(t, c.params, m.Parameters(), name)
			p, err := plan.Task{Model: m, Device: d, Batch: 1, Rank: 16}.Predict(plan.Run{Micro: 1, Window: 1, Frozen: 4})
			require.NoError(t, err)
			require.Equal(t, 4*c.adapters, p.Peak[meter.OnDevice][meter.Gradients], name)
		})
	}
}
