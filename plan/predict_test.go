package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

// oneMemory has no allowance and counts the host with the device.
func oneMemory() Device {
	return Device{Name: "one", Memory: 1 << 50, Unified: true, F32: 1e12, F16: 1e12, Bandwidth: 1e18, HostF32: 1e12, HostBandwidth: 1e18, Link: 1e18, DiskRate: 1e18}
}

// TestMeasuredBytes compares with the peaks that examples/gpt -compare has measured.
func TestMeasuredBytes(t *testing.T) {
	m, err := ModelNamed("gpt-1m", 0)
	require.NoError(t, err)
	task := Task{Model: m, Device: oneMemory(), Batch: 4, LossRows: 64, Chunk: 4096}
	const cache = 1_876_480 // a quarter of the state, which is paged
	all := Run{Micro: 1, Window: 4, Compute: snug.BF16, StateBits: 8, Tiled: true, StateOn: meter.OnDisk, Cache: 1_421_184}
	for _, c := range []struct {
		name        string
		run         Run
		total, acts int64
	}{
		{"none", Run{Micro: 4, Window: 1}, 31_559_936, 16_285_696},
		{"amp", Run{Micro: 4, Window: 1, Compute: snug.BF16}, 25_309_952, 8_159_232},
		{"accum", Run{Micro: 1, Window: 4}, 19_345_664, 4_071_424},
		{"quant8", Run{Micro: 4, Window: 1, StateBits: 8}, 25_985_792, 16_285_696},
		{"attention", Run{Micro: 4, Window: 1, Tiled: true}, 27_398_400, 12_124_160},
		{"offload", Run{Micro: 4, Window: 1, StateOn: meter.OnDisk, Cache: cache}, 25_930_496, 16_285_696},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := task.Predict(c.run)
			require.NoError(t, err)
			require.InEpsilon(t, c.total, p.Peak[meter.OnDevice].Total(), 0.001, c.name)
			require.Equal(t, c.acts, p.Peak[meter.OnDevice][meter.Activations], c.name)
		})
	}
	costs, err := task.Costs(all)
	require.NoError(t, err)
	all.Remat, err = remat.Rotor(costs, 528_384) // the peak that was measured
	require.NoError(t, err)
	p, err := task.Predict(all)
	require.NoError(t, err)
	require.LessOrEqual(t, p.Peak[meter.OnDevice].Total(), int64(7_842_432))
	require.InEpsilon(t, 7_842_432, p.Peak[meter.OnDevice].Total(), 0.03)
	require.EqualValues(t, 938_240*4, p.Peak[meter.OnDisk][meter.Masters])
}

// TestFormulas: bytes are those of an element times how many there are.
func TestFormulas(t *testing.T) {
	m, err := ModelNamed("llama-7b", 0)
	require.NoError(t, err)
	n := m.Parameters()
	task := Task{Model: m, Device: devices[5], Batch: 4, Own: true}
	predict := func(r Run) meter.Usage {
		t.Helper()
		p, err := task.Predict(r)
		require.NoError(t, err)
		return p.Peak
	}
	r := Run{Micro: 1, Window: 4, Compute: snug.BF16, Tiled: true}
	d := predict(r)[meter.OnDevice]
	require.Equal(t, meter.Bytes{2 * n, 4 * n, 4 * n, 8 * n}, meter.Bytes{d[meter.Weights], d[meter.Masters], d[meter.Gradients], d[meter.State]})
	// 2 bytes each of attention's input to the next, q, k, v and its output, of two products
	// of the hidden width and the output; the statistics; the gradient; and attention's sums.
	const rows, dim, hidden = 2048, 4096, 11008
	kept := int64(32 * (2*rows*(5*dim+2*hidden+dim) + 2*4*rows + 4*32*rows))
	require.InEpsilon(t, kept+2*2*rows*dim, d[meter.Activations], 0.02)
	require.EqualValues(t, 4*512*(32000+5), d[meter.Workspace], "the logits of 512 rows, 62.5 MiB")
	require.Equal(t, (d[meter.Activations]+d[meter.Workspace])/20, d[meter.Allowance])

	r.Masters, r.Gradients, r.StateBits = amp.SplitMaster, SumBF16, 8
	d = predict(r)[meter.OnDevice]
	require.Equal(t, meter.Bytes{2 * n, 2 * n, 2 * n}, meter.Bytes{d[meter.Weights], d[meter.Masters], d[meter.Gradients]})
	require.InEpsilon(t, 2.03*float64(n), d[meter.State], 0.01)
	r.Masters = amp.Split24Master
	require.Equal(t, n, predict(r)[meter.OnDevice][meter.Masters], "3 bytes in all, 1 less than split masters")
	r.Masters = amp.NoMaster
	require.Zero(t, predict(r)[meter.OnDevice][meter.Masters])
	r.Compute = snug.F32
	require.Equal(t, 4*n, predict(r)[meter.OnDevice][meter.Weights])

	// Elsewhere: all of it there, and two layers of weights and one of gradients here.
	r = Run{Micro: 1, Window: 4, Compute: snug.BF16, Tiled: true, WeightsOn: meter.OnHost, GradientsOn: meter.OnHost, StateOn: meter.OnDisk, Cache: 1 << 30}
	u := predict(r)
	layer := int64(32000 * 4096) // the head, or the embedding
	require.Equal(t, meter.Bytes{meter.Weights: 2 * n, meter.Gradients: 4 * n, meter.State: 1 << 30}, u[meter.OnHost])
	require.Equal(t, 4*n, u[meter.OnDisk][meter.Masters])
	require.InEpsilon(t, 8*n, u[meter.OnDisk][meter.State], 0.02, "pages are rounded up")
	require.Greater(t, u[meter.OnDisk][meter.State], 8*n)
	require.Equal(t, 2*2*(3*4096*11008+4096), int(u[meter.OnDevice][meter.Weights]), "more than the head's %d", layer)
	require.Equal(t, 4*(3*4096*11008+4096), int(u[meter.OnDevice][meter.Gradients]))

	task.Rank = 8
	r = Run{Micro: 1, Window: 4, Compute: snug.BF16, Frozen: 4}
	d = predict(r)[meter.OnDevice]
	matrices := int64(32 * (4096*3*4096 + 4096*4096 + 3*4096*11008))
	adapters := int64(32 * 8 * (4*2*4096 + 3*(4096+11008)))
	require.Equal(t, 4*adapters, d[meter.Gradients])
	require.InEpsilon(t, 4.127/8*float64(matrices)+2*float64(n-matrices)+4*float64(adapters), d[meter.Weights], 1e-3)
	with := d[meter.Activations]
	task.Rank, r.Frozen = 0, 0
	require.EqualValues(t, 2*rows*8*7*32, with-predict(r)[meter.OnDevice][meter.Activations], "8 numbers a row and matrix, of 7 in each of 32 layers")
}

// TestAdapters compares with the trained parameters that PEFT counts for target_modules
// "all-linear": for each linear layer the rank times its inputs and outputs.
func TestAdapters(t *testing.T) {
	grouped := GPT{Vocab: 128256, Dim: 4096, Layers: 32, Heads: 32, KVHeads: 8, Hidden: 14336, Context: 2048,
		Gated: true, RMSNorm: true, Rotary: true, Untied: true, SplitQKV: true} // Llama 3 8B
	for _, c := range []struct {
		model interface{ Model() (Model, error) }
		rank  int
		want  int64
	}{
		{llama("llama-7b", 4096, 32, 32, 11008, 2048), 64, 159_907_840},
		{llama("llama-7b", 4096, 32, 32, 11008, 2048), 16, 39_976_960},
		{llama("llama-13b", 5120, 40, 40, 13824, 2048), 8, 8 * 40 * (4*(5120+5120) + 3*(5120+13824))},
		{grouped, 16, 41_943_040}, // 16·32·(2·(4096+4096) + 2·(4096+1024) + 3·(4096+14336))
		{preset("gpt2"), 8, 8 * 12 * ((768 + 3*768) + (768 + 768) + 2*(768+3072))},
		{preset("vit-b16"), 16, 16 * 12 * (4*(768+768) + 2*(768+3072))},
		{preset("resnet-18"), 4, 4 * ((3*49 + 64) + 4*(64*9+64) + (64*9 + 128) + 3*(128*9+128) + (64 + 128) +
			(128*9 + 256) + 3*(256*9+256) + (128 + 256) + (256*9 + 512) + 3*(512*9+512) + (256 + 512))}, // a convolution is a matrix of its patches
	} {
		m, err := c.model.Model()
		require.NoError(t, err)
		_, trained, _ := Task{Model: m, Rank: c.rank}.counts()
		require.Equal(t, c.want, trained, "%s, rank %d", m.Name, c.rank)
	}
}

// preset returns what a preset is made of.
func preset(name string) interface{ Model() (Model, error) } {
	for _, m := range models {
		if m.name == name {
			return m.of
		}
	}
	return nil
}

// TestInBackward: one gradient is held, that of a matrix that two layers share, those of two vectors, and those of
// matrices with one input, or the gradient of this input, whichever takes less.
func TestInBackward(t *testing.T) {
	for _, c := range []struct {
		model string
		want  int64
	}{{"gpt2", 4 * (50257*768 + 3072*768 + 2*3072 + 768*768)}, {"llama-7b", 4 * (32000*4096 + 2*4096 + 2*2048*4096)}} {
		m, err := ModelNamed(c.model, 0)
		require.NoError(t, err)
		p, err := Task{Model: m, Device: devices[0], Batch: 2}.Predict(Run{Micro: 2, Window: 1, Gradients: InBackward})
		require.NoError(t, err)
		require.Equal(t, c.want, p.Peak[meter.OnDevice][meter.Gradients], c.model)

		// Folded, several micro-batches hold no more, and the state passes by once for each.
		of := func(o Gradient, micro int) Prediction {
			p, err := Task{Model: m, Device: devices[0], Batch: 4}.Predict(Run{Micro: micro, Window: 4 / micro, Gradients: o})
			require.NoError(t, err)
			return p
		}
		whole, one, folded := of(InBackward, 4), of(Folded, 4), of(Folded, 1)
		require.Equal(t, []any{whole.Peak, whole.Seconds}, []any{one.Peak, one.Seconds}, c.model)
		require.LessOrEqual(t, folded.Peak[meter.OnDevice][meter.Gradients], c.want, c.model)
		require.Less(t, folded.Peak[meter.OnDevice].Total(), whole.Peak[meter.OnDevice].Total(), c.model)
		require.Greater(t, folded.Seconds, of(SumF32, 1).Seconds, c.model)
	}
}

// TestStateIsQuant8s: the bytes of each optimizer's state are those of package quant8.
func TestStateIsQuant8s(t *testing.T) {
	m, err := GPT{Vocab: 300, Dim: 64, Layers: 2, Heads: 2, Context: 16}.Model()
	require.NoError(t, err)
	n := float64(m.Parameters())
	perElement := map[string][2]float64{ // with 32 and with 8 bits, of large parameters
		"adamw": {8, 2}, "adam": {8, 2}, "lamb": {8, 2}, "ademamix": {12, 3}, "lion": {4, 1}, "sgd": {4, 1}, "rmsprop": {4, 1},
		"adagrad": {4, 1}, "lars": {4, 1}, "adafactor": {0, 0}, "muon": {4, 1},
		"apollo": {8, 2}, "galore": {8, 2}, // no side is longer than the rank
		"schedule-free": {8, 2}, "mezo": {0, 0}, "prodigy": {8.73, 2.73}, "adam-mini": {4, 1}, "soap": {0, 0}, "apollo-mini": {1.8, 0.7}, // mostly embeddings
	}
	for _, name := range Optimizers() {
		want, known := perElement[name]
		require.True(t, known, name)
		for i, bits := range []int{32, 8} {
			p, err := Task{Model: m, Device: oneMemory(), Batch: 1, Optimizer: name, Own: true}.Predict(Run{Micro: 1, Window: 1, StateBits: bits})
			require.NoError(t, err)
			got := float64(p.Peak[meter.OnDevice][meter.State]) / n
			if name == "soap" { // m, v and four squares of a matrix, and Adam's states of the rest
				adam, err := Task{Model: m, Device: oneMemory(), Batch: 1}.Predict(Run{Micro: 1, Window: 1, StateBits: bits})
				require.NoError(t, err)
				products := 0.0
				for p := range m.tensors() {
					if p.linear {
						rows, cols := float64(p.shape[0]), float64(p.shape[1])
						products += float64(p.times) * (6.4*rows*cols*(rows+cols) + rows*rows*rows + cols*cols*cols)
					}
				}
				require.Greater(t, p.Seconds-adam.Seconds, 0.99*products/oneMemory().F32, "the time of a step has its products")
				sum := int64(0)
				for p := range m.tensors() {
					if !p.linear {
						sum += int64(p.times) * quant8.StateBytes(quant8.AdamW{}, quant8.Options{Bits: bits}, int(p.len()))
						continue
					}
					rows, cols := int64(p.shape[0]), int64(p.shape[1])
					sum += int64(p.times) * (8*(rows*cols+rows*rows+cols*cols) + 4)
				}
				require.Equal(t, sum, p.Peak[meter.OnDevice][meter.State])
				continue
			}
			require.InDelta(t, want[i], got, 0.95, "%s, %d bits", name, bits) // embeddings under Muon, and small parameters
			if name == "adamw" {
				sum := int64(0)
				for p := range m.tensors() {
					sum += int64(p.times) * quant8.StateBytes(quant8.AdamW{}, quant8.Options{Bits: bits}, int(p.len()))
				}
				require.Equal(t, sum, p.Peak[meter.OnDevice][meter.State])
			}
		}
	}
}

func TestBadTasksAndRuns(t *testing.T) {
	m, err := ModelNamed("gpt-1m", 0)
	require.NoError(t, err)
	for what, change := range map[string]func(t *Task, r *Run){
		"no batch":              func(t *Task, _ *Run) { t.Batch = 0 },
		"a negative batch":      func(t *Task, _ *Run) { t.Batch = -4 },
		"an optimizer":          func(t *Task, _ *Run) { t.Optimizer = "sdg" },
		"a rank":                func(t *Task, _ *Run) { t.Rank = -1 },
		"rows of logits":        func(t *Task, _ *Run) { t.LossRows = -1 },
		"classes of logits":     func(t *Task, _ *Run) { t.LossClasses = -1 },
		"a chunk":               func(t *Task, _ *Run) { t.Chunk = 33 },
		"a type":                func(t *Task, _ *Run) { t.Compute = []snug.DType{snug.U8} },
		"no type":               func(t *Task, _ *Run) { t.Compute = []snug.DType{0} },
		"masters":               func(t *Task, _ *Run) { t.Masters = []amp.MasterForm{7} },
		"gradients":             func(t *Task, _ *Run) { t.Gradients = []Gradient{-1} },
		"bits of state":         func(t *Task, _ *Run) { t.StateBits = []int{0} },
		"frozen bits":           func(t *Task, _ *Run) { t.Rank, t.Frozen = 4, []int{5} },
		"frozen bits of FP8":    func(t *Task, _ *Run) { t.Rank, t.Base, t.Frozen = 4, qlora.FP8, []int{4} },
		"unknown base":          func(t *Task, _ *Run) { t.Rank, t.Base = 4, qlora.Grouped+1 },
		"a rate":                func(t *Task, _ *Run) { t.Device.Link = 0 },
		"a batch too small":     func(_ *Task, r *Run) { r.Micro, r.Window = 1, 3 },
		"a window of 0":         func(_ *Task, r *Run) { r.Window = 0 },
		"a large micro-batch":   func(_ *Task, r *Run) { r.Micro = 5 },
		"split masters of f16":  func(_ *Task, r *Run) { r.Compute, r.Masters = snug.F16, amp.SplitMaster },
		"24 bits of f16":        func(_ *Task, r *Run) { r.Compute, r.Masters = snug.F16, amp.Split24Master },
		"a window in backward":  func(_ *Task, r *Run) { r.Gradients, r.Micro, r.Window = InBackward, 2, 2 },
		"folded into Lion":      func(t *Task, r *Run) { t.Optimizer, r.Gradients = "lion", Folded },
		"places in backward":    func(_ *Task, r *Run) { r.Gradients, r.GradientsOn = InBackward, meter.OnHost },
		"gradients on disk":     func(_ *Task, r *Run) { r.GradientsOn = meter.OnDisk },
		"a tier":                func(_ *Task, r *Run) { r.WeightsOn = meter.Tiers },
		"layers without pages":  func(_ *Task, r *Run) { r.LayersHeld = 1 },
		"more layers":           func(_ *Task, r *Run) { r.WeightsOn, r.LayersHeld = meter.OnHost, 99 },
		"a cache":               func(_ *Task, r *Run) { r.Cache = -1 },
		"frozen without a rank": func(_ *Task, r *Run) { r.Frozen = 4 },
		"a plan of other layers": func(_ *Task, r *Run) {
			r.Remat = remat.Plan{Stages: 1, Ops: []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.Backward}}}
		},
	} {
		t.Run(what, func(t *testing.T) {
			task, run := Task{Model: m, Device: devices[0], Batch: 4}, Run{Micro: 4, Window: 1}
			change(&task, &run)
			_, err := task.Predict(run)
			require.True(t, isOne(err, snug.ErrConfig, snug.ErrShape), "%s: %v", what, err)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	_, err = Best(Task{Model: m, Device: devices[0], Batch: 4}.Fit(-1))
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Best(Task{Model: Model{Layers: []Layer{{Params: [][]int{{4}}, Output: 4}}}, Device: devices[0], Batch: 1, Rank: 4}.Fit(0))
	require.ErrorIs(t, err, snug.ErrConfig, "nothing to put adapters on")
	big, err := ModelNamed("llama-13b", 1<<16)
	require.NoError(t, err)
	_, err = Best(Task{Model: big, Device: devices[0], Batch: maxBatch}.Fit(0))
	require.ErrorIs(t, err, snug.ErrShape)
}

// TestFrozenBytes: weights in 4 and 8 bits take the bytes of package qlora, with double quantization, and so
// does what they are decoded to, and the tile for norms of matrices in floats.
func TestFrozenBytes(t *testing.T) {
	for _, shape := range [][]int{{1, 1}, {1, 63}, {1, 64}, {3, 129}, {64, 256}, {100, 257}, {512, 640}, {4096, 2080}, {3000, 700}, {2, 1100000}} {
		n := shape[0] * shape[1]
		task := Task{Rank: 2, DoRA: true, Device: Device{Unified: true}, Model: Model{Layers: []Layer{{Params: [][]int{shape}}}}}
		for _, base := range []qlora.Type{0, qlora.NF4, qlora.FP4, qlora.MXFP4, qlora.FP8, qlora.FP8E5M2, qlora.INT8} {
			if base == qlora.MXFP4 && shape[1]%32 != 0 {
				continue
			}
			task.Base = base
			r := Run{Frozen: task.baseBits(), Compute: snug.BF16}
			w, err := qlora.NewWeight(make([]float32, n), shape, qlora.Options{Type: base})
			require.NoError(t, err)
			require.Equal(t, w.Bytes(), task.frozenBytes(r, tensor{shape: shape}), "%v %v", base, shape)
			l, err := qlora.NewLinear(w, snug.BF16, 0)
			require.NoError(t, err)
			require.Equal(t, l.Bytes(), task.tileBytes(r), "%v %v", base, shape)
		}
		d, err := qlora.NewDense(snug.ViewOf(make([]float32, n)), shape[0], shape[1], false)
		require.NoError(t, err)
		require.Equal(t, d.Bytes(), task.tileBytes(Run{}), "%v", shape)
	}
}

// TestAdapterKinds: with A frozen the second matrices alone have gradients and state; first values are weights more.
func TestAdapterKinds(t *testing.T) {
	model, err := GPT{Vocab: 100, Dim: 16, Layers: 2, Heads: 2, Context: 8}.Model()
	require.NoError(t, err)
	d, err := DeviceNamed("24GB")
	require.NoError(t, err)
	task, r := Task{Model: model, Device: d, Batch: 1, Rank: 2}, Run{Micro: 1, Window: 1, Frozen: 16}
	predict := func(task Task) meter.Bytes {
		p, err := task.Predict(r)
		require.NoError(t, err)
		return p.Peak[meter.OnDevice]
	}
	adapters, seconds := int64(0), int64(0) // elements
	for p := range model.tensors() {
		if p.linear {
			adapters += int64(p.times) * 2 * int64(p.shape[0]+p.shape[1])
			seconds += int64(p.times) * 2 * int64(p.shape[0])
		}
	}
	plain := predict(task)
	frozen, first := task, task
	frozen.FrozenA, first.Init = true, "pissa_niter_4"
	require.Equal(t, 4*adapters, plain[meter.Gradients])
	require.Equal(t, 4*seconds, predict(frozen)[meter.Gradients])
	require.Equal(t, 8*seconds, predict(frozen)[meter.State])
	require.Equal(t, plain[meter.Weights], predict(frozen)[meter.Weights])
	require.Equal(t, plain[meter.Weights]+4*adapters, predict(first)[meter.Weights])
	require.Equal(t, plain[meter.Gradients], predict(first)[meter.Gradients])
	for _, bad := range []func(*Task){
		func(t *Task) { t.Rank, t.FrozenA = 0, true }, func(t *Task) { t.Rank, t.Init = 0, "pissa" }, func(t *Task) { t.Init = "corda" }, func(t *Task) { t.Rank, t.Beside = 0, [][]int{{1}} },
		func(t *Task) { t.DoRA, t.FrozenA = true, true }, func(t *Task) { t.DoRA, t.Init = true, "olora" }, func(t *Task) { t.VeRA, t.Init = true, "olora" },
		func(t *Task) { t.Init = "loftq" }, func(t *Task) { t.Init, t.Base, t.Frozen = "loftq", qlora.MXFP4, []int{4} },
	} {
		wrong := task
		bad(&wrong)
		_, err := wrong.Predict(r)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestLossClasses: a large vocabulary is cut into tiles where the device has the memory of the host,
// which computes its logits twice, unless the task says otherwise.
func TestLossClasses(t *testing.T) {
	const rows, cols, classes = 300, 512, 100_000
	whole, tiled := int64(4*128*(classes+5)), int64(4*128*(1024+cols+5))
	for _, c := range []struct {
		unified             bool
		classes, lossTile   int
		workspace, products int64
	}{
		{true, classes, 0, tiled, 4},
		{true, classes, classes, whole, 3},
		{true, classes, 1024, tiled, 4},
		{true, 50_000, 0, 4 * 128 * 50_005, 3},
		{false, classes, 0, whole, 3},
		{false, classes, 1024, tiled, 4},
	} {
		task := Task{Model: Model{Head: Head{Rows: rows, Cols: cols, Classes: c.classes}}, Device: oneMemory(), LossRows: 128, LossClasses: c.lossTile}
		task.Device.Unified = c.unified
		require.Equal(t, c.workspace, task.workspaceBytes(Run{Micro: 1}), "%+v", c)
		flops := 2 * float64(c.products) * rows * cols * float64(c.classes)
		require.InEpsilon(t, flops/task.Device.F32, task.lossSeconds(Run{Compute: snug.F32}), 1e-12, "%+v", c)
	}
}
