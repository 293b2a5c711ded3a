package qlora_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
)

//check:in tiers race
func ExampleQuantize() {
	x := []float32{0.5, -2, 0, 0.3, 1.5}
	packed, absmax := make([]uint8, qlora.PackedBytes(len(x))), make([]float32, qlora.Blocks(len(x), 64))
	if err := qlora.Quantize(packed, absmax, x, qlora.NF4, 64); err != nil {
		panic(err)
	}
	y := make([]float32, len(x))
	if err := qlora.Dequantize(y, packed, absmax, qlora.NF4, 64); err != nil {
		panic(err)
	}
	fmt.Printf("%x %v\n", packed, absmax)
	fmt.Printf("%.4f\n", y)
	// Output:
	// a079e7 [2]
	// [0.4922 -2.0000 0.0000 0.3219 1.4459]
}

// A matrix in FP8, as DeepSeek's files have them, is written and read.
//
//check:in tiers race
func ExampleOpenWeights() {
	x := make([]float32, 256*128)
	for i := range x {
		x[i] = float32(i%23)/16 - 0.5
	}
	w, err := qlora.NewWeight(x, []int{256, 128}, qlora.Options{Type: qlora.FP8})
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "weights")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	file, err := os.Create(dir + "/model.safetensors")
	if err != nil {
		panic(err)
	}
	_, err = qlora.WriteWeights(file, maps.All(map[string]*qlora.Weight{"up_proj.weight": w}), nil)
	if err := errors.Join(err, file.Close()); err != nil {
		panic(err)
	}
	weights, err := qlora.OpenWeights(dir)
	if err != nil {
		panic(err)
	}
	defer weights.Close()
	for _, name := range weights.Names() {
		read, err := weights.Load(name, nil)
		if err != nil {
			panic(err)
		}
		fmt.Println(name, read.Type(), read.Shape(), read.Bytes(), "bytes")
	}
	// Output:
	// up_proj.weight fp8 [256 128] 32776 bytes
}

//check:in tiers race
func ExampleDoubleQuantize() {
	x := make([]float32, 1<<14)
	for i := range x {
		x[i] = float32(i%23)/16 - 0.5
	}
	packed, absmax := make([]uint8, qlora.PackedBytes(len(x))), make([]float32, qlora.Blocks(len(x), qlora.MinBlock))
	if err := qlora.Quantize(packed, absmax, x, qlora.NF4, qlora.MinBlock); err != nil {
		panic(err)
	}
	codes, nested := make([]uint8, len(absmax)), make([]float32, qlora.Blocks(len(absmax), 256))
	offset, err := qlora.DoubleQuantize(codes, nested, absmax)
	if err != nil {
		panic(err)
	}
	if err := qlora.DoubleDequantize(absmax, codes, nested, offset); err != nil {
		panic(err)
	}

	// A Weight holds the same codes.
	w, err := qlora.NewWeight(x, []int{128, 128}, qlora.Options{Block: qlora.MinBlock})
	if err != nil {
		panic(err)
	}
	same, err := w.Absmax()
	if err != nil {
		panic(err)
	}
	fmt.Println(w.Double(), slices.Equal(snug.Host[uint8](w.Packed()), packed), slices.Equal(same, absmax))
	fmt.Printf("%d bytes of absmax, %d of codes and nested\n", 4*len(absmax), len(codes)+4*len(nested))
	// Output:
	// true true true
	// 2048 bytes of absmax, 520 of codes and nested
}

//check:in tiers race
func ExampleOptions() {
	x := make([]float32, 1<<20)
	for block := qlora.MinBlock; block <= qlora.MaxBlock; block *= 8 {
		single, err := qlora.NewWeight(x, []int{len(x)}, qlora.Options{Block: block, Single: true})
		if err != nil {
			panic(err)
		}
		double, err := qlora.NewWeight(x, []int{len(x)}, qlora.Options{Block: block})
		if err != nil {
			panic(err)
		}
		fmt.Printf("blocks of %d: %d bytes, %d with double quantization\n", block, single.Bytes(), double.Bytes())
	}
	// Output:
	// blocks of 32: 655360 bytes, 557568 with double quantization
	// blocks of 256: 540672 bytes, 528448 with double quantization
	// blocks of 2048: 526336 bytes, 524808 with double quantization
}

//check:in tiers race
func ExampleWeight() {
	bf16 := make([]snug.BFloat16, 4096*4096) // a layer, 32 MiB
	for i := range bf16 {
		bf16[i] = snug.ToBFloat16(float32(i%17)/8 - 1)
	}
	format, err := qlora.ParseType("nf4") // as a flag of a command line gives it
	if err != nil {
		panic(err)
	}
	w, err := qlora.NewWeight(bf16, []int{4096, 4096}, qlora.Options{Type: format})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%v of %v: %.3f bits an element\n", w.Type(), w.Shape(), 8*float64(w.Bytes())/float64(w.Len()))
	d, err := w.Deviation(snug.ViewOf(bf16)) // from the elements before they were quantized
	if err != nil {
		panic(err)
	}
	fmt.Printf("relative error %.3f\n", d.Relative)
	if err := w.Dequantize(snug.ViewOf(bf16)); err != nil {
		panic(err)
	}
	fmt.Println(bf16[:3])
	// Output:
	// nf4 of [4096 4096]: 4.127 bits an element
	// relative error 0.092
	// [-1 -1 -0.6953125]
}

//check:in tiers race
func ExampleWriteWeights() {
	w, err := qlora.NewWeight([]float32{0.5, -2, 0, 0.3}, []int{2, 2}, qlora.Options{Single: true})
	if err != nil {
		panic(err)
	}
	var file bytes.Buffer
	weights := func(yield func(string, *qlora.Weight) bool) { yield("layers.0.up_proj.weight", w) }
	if _, err := qlora.WriteWeights(&file, weights, nil); err != nil {
		panic(err)
	}
	read, err := qlora.NewWeights(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		panic(err)
	}
	for _, name := range read.Names() {
		back, err := read.Load(name, snug.CPU())
		if err != nil {
			panic(err)
		}
		fmt.Println(name, back.Type(), back.Shape(), back.DType())
	}
	// Output: layers.0.up_proj.weight nf4 [2 2] f32
}

// A frozen layer in 4 bits with an adapter: one step forward and backward.
//
//check:in tiers race
func ExampleLinear() {
	const rows, in, out, rank = 4, 256, 512, 8
	layer := make([]float32, out*in)
	for i := range layer {
		layer[i] = float32(i%13-6) / 64
	}
	w, err := qlora.NewWeight(layer, []int{out, in}, qlora.Options{})
	if err != nil {
		panic(err)
	}
	frozen, err := qlora.NewLinear(w, snug.F32, 64*in) // decodes 64 rows at a time
	if err != nil {
		panic(err)
	}
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	adapter := qlora.LoRA{In: in, Out: out, Rank: rank, Scale: qlora.LoRAScale(16, rank, false), A: v(rank * in), B: v(out * rank)}

	x, y, u := v(rows*in), v(rows*out), v(rows*rank)
	if err := frozen.Forward(y, x, 0); err != nil { // y = x·Wᵀ
		panic(err)
	}
	if err := adapter.Forward(y, u, x, qlora.Dropout{}); err != nil { // y += s·(x·Aᵀ)·Bᵀ
		panic(err)
	}
	dy, dx, du := v(rows*out), v(rows*in), v(rows*rank)
	if err := frozen.Backward(dx, dy, 0); err != nil { // dx = dy·W
		panic(err)
	}
	grads := qlora.Grads{A: v(rank * in), B: v(out * rank)}
	if err := adapter.Backward(dx, du, dy, u, x, grads, qlora.Dropout{}); err != nil { // dx += s·dy·B·A
		panic(err)
	}
	fmt.Printf("%d KiB in float32; %d KiB in 4 bits, %d KiB for a tile, %d parameters to train\n",
		4*len(layer)>>10, w.Bytes()>>10, frozen.Bytes()>>10, adapter.Params())
	// Output:
	// 512 KiB in float32; 66 KiB in 4 bits, 128 KiB for a tile, 6144 parameters to train
}

// A frozen layer with magnitudes and dropout: one step.
//
//check:in tiers race
func ExampleDoRA() {
	const rows, in, out, rank = 4, 256, 512, 8
	layer := make([]float32, out*in)
	for i := range layer {
		layer[i] = float32(i%13-6) / 64
	}
	w, err := qlora.NewWeight(layer, []int{out, in}, qlora.Options{})
	if err != nil {
		panic(err)
	}
	frozen, err := qlora.NewLinear(w, snug.F32, 64*in)
	if err != nil {
		panic(err)
	}
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	adapter := qlora.LoRA{In: in, Out: out, Rank: rank, Scale: qlora.LoRAScale(16, rank, false),
		A: v(rank * in), B: v(out * rank), Dropout: 0.1, Magnitude: v(out)}
	if err := frozen.Norms(adapter.Magnitude, nil); err != nil { // which changes nothing at first
		panic(err)
	}
	dora, err := qlora.NewDoRA(frozen, &adapter)
	if err != nil {
		panic(err)
	}
	defer dora.Close()

	x, y, h, u := v(rows*in), v(rows*out), v(rows*out), v(rows*rank)
	draw := qlora.Dropout{Draw: amp.Draw{Seed: 1, Tensor: 7}, Work: v(rows * in)} // the same for backward
	if err := dora.Forward(y, h, u, x, draw); err != nil {
		panic(err)
	}
	grads := qlora.Grads{A: v(rank * in), B: v(out * rank), Magnitude: v(out)}
	if err := dora.Backward(v(rows*in), v(rows*rank), y, h, u, x, grads, draw); err != nil {
		panic(err)
	}
	// ... a step of A, B and the magnitudes ...
	if err := dora.Update(); err != nil {
		panic(err)
	}
	fmt.Println(adapter.Params(), "parameters to train")
	// Output: 6656 parameters to train
}

// An adapter that begins with the largest singular values of its matrix (PiSSA) is saved as a plain adapter of the
// original matrix, of twice the rank.
//
//check:in tiers race
func ExampleLoRA_Start() {
	const in, out, rank = 96, 64, 4
	w := make([]float32, out*in)
	for i := range w {
		w[i] = float32(i%11-5) / 16
	}
	config := qlora.AdapterOptions{Rank: rank, Alpha: 8, Init: "pissa"}
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	adapter := &qlora.LoRA{In: in, Out: out, Rank: rank, Scale: 2, A: v(rank * in), B: v(out * rank)}
	if err := adapter.Start(snug.ViewOf(w), config.Init); err != nil { // w is now w - s·B·A
		panic(err)
	}
	first := *adapter
	first.A, first.B = snug.ViewOf(slices.Clone(adapter.A.Float32s())), snug.ViewOf(slices.Clone(adapter.B.Float32s()))
	// ... training changes A and B ...
	plain, err := adapter.Less(&first)
	if err != nil {
		panic(err)
	}
	config = config.Doubled()
	rank2, scale, err := config.RankOf("layers.0.mlp.up_proj")
	if err != nil {
		panic(err)
	}
	fmt.Println(plain.Rank, rank2, plain.Scale, scale)
	// Output: 8 8 2 2
}

// With A frozen (LoRA-FA) a layer keeps u of the forward pass, and not x.
//
//check:in tiers race
func ExampleLoRA_Backward() {
	const rows, in, out, rank = 64, 512, 256, 8
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	adapter := qlora.LoRA{In: in, Out: out, Rank: rank, Scale: 2, A: v(rank * in), B: v(out * rank), FrozenA: true}
	x, y, u := v(rows*in), v(rows*out), v(rows*rank)
	if err := adapter.Forward(y, u, x, qlora.Dropout{}); err != nil {
		panic(err)
	}
	dx := x // x has served
	grads := qlora.Grads{B: v(out * rank)}
	if err := adapter.Backward(dx, v(rows*rank), y, u, snug.View{}, grads, qlora.Dropout{}); err != nil {
		panic(err)
	}
	fmt.Printf("kept: %d KiB in place of %d KiB\n", u.Bytes()>>10, x.Bytes()>>10)
	// Output: kept: 2 KiB in place of 128 KiB
}

// B learns at 16 times the rate of A (LoRA+).
//
//check:in tiers race
func ExampleLoRAPlus() {
	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32, Params: qlora.LoRAPlus(16)})
	if err != nil {
		panic(err)
	}
	names := []string{"base_model.model.layers.0.mlp.up_proj.lora_A.weight", "base_model.model.layers.0.mlp.up_proj.lora_B.weight"}
	for _, name := range names {
		if err := opt.Add(name, 1); err != nil {
			panic(err)
		}
	}
	opt.Advance(1e-3)
	for _, name := range names {
		w := []float32{0}
		if err := opt.Step(name, snug.ViewOf(w), snug.ViewOf([]float32{1}), 1); err != nil {
			panic(err)
		}
		fmt.Printf("%.3f\n", w[0])
	}
	// Output:
	// -0.001
	// -0.016
}

// The output layer trained as a whole beside the adapters, PEFT's modules_to_save.
//
//check:in tiers race
func ExampleLoadModules() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	v := func(x ...float32) snug.View { return snug.ViewOf(x) }
	config := qlora.AdapterOptions{Rank: 1, Alpha: 2, ModulesToSave: []string{"lm_head"}}
	adapters := map[string]*qlora.LoRA{"layers.0.up_proj": {In: 2, Out: 2, Rank: 1, Scale: 2, A: v(1, 2), B: v(3, 4)}}
	head := qlora.Module{Name: "lm_head.weight", Shape: []int{3, 2}, Value: v(1, 2, 3, 4, 5, 6)}
	if err := qlora.SaveAdapters(dir, config, adapters, head); err != nil {
		panic(err)
	}
	loaded, _, err := qlora.LoadAdapters(dir, nil)
	if err != nil {
		panic(err)
	}
	head.Value = v(make([]float32, 6)...)
	if err := qlora.LoadModules(dir, head); err != nil {
		panic(err)
	}
	fmt.Println(loaded.ModulesToSave, head.Value.Float32s())
	// Output: [lm_head] [1 2 3 4 5 6]
}

// Two layers share the matrices of VeRA: one trains 4+64 numbers, the other 4+96.
//
//check:in tiers race
func ExampleVeRA() {
	const rows, rank = 2, 4
	shared, err := qlora.NewVeRA(rank, 96, 96, 0) // as PEFT draws them for projection_prng_key 0
	if err != nil {
		panic(err)
	}
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	trained := 0
	for _, out := range []int{64, 96} {
		adapter := qlora.LoRA{In: 96, Out: out, Rank: rank, Scale: 1}
		d, b := v(rank), v(out)
		trained += d.Len() + b.Len()
		if err := shared.Expand(&adapter, d, b); err != nil { // A and B for this layer, until the next one expands
			panic(err)
		}
		x, y, u := v(rows*96), v(rows*out), v(rows*rank)
		if err := adapter.Forward(y, u, x, qlora.Dropout{}); err != nil {
			panic(err)
		}
		grads := shared.Grads(&adapter)
		if err := adapter.Backward(v(rows*96), v(rows*rank), y, u, snug.View{}, grads, qlora.Dropout{}); err != nil {
			panic(err)
		}
		if err := shared.Reduce(v(rank), v(out), d, b, snug.Into{}, &adapter); err != nil { // the gradients of d and b
			panic(err)
		}
	}
	fmt.Println(trained, "parameters to train, instead of", rank*(96+64)+rank*(96+96))
	// Output: 168 parameters to train, instead of 1408
}

// Adapters of single modules are saved in the form of PEFT, and loaded with all that their
// config says.
//
//check:in tiers race
func ExampleSaveAdapters() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	config := qlora.AdapterOptions{
		Rank: 2, Alpha: 4, Ranks: map[string]int{"down_proj": 1},
		Targets: qlora.Modules{Pattern: `layers\.\d+\.mlp\.(up|down)_proj`},
		Other:   map[string]json.RawMessage{"task_type": []byte(`"CAUSAL_LM"`)},
	}
	adapters := map[string]*qlora.LoRA{}
	for _, name := range []string{"layers.0.mlp.up_proj", "layers.0.mlp.down_proj"} {
		rank, scale, err := config.RankOf(name)
		if err != nil {
			panic(err)
		}
		adapters[name] = &qlora.LoRA{In: 3, Out: 3, Rank: rank, Scale: scale,
			A: snug.ViewOf(make([]float32, 3*rank)), B: snug.ViewOf(make([]float32, 3*rank))}
	}
	if err := qlora.SaveAdapters(dir, config, adapters); err != nil {
		panic(err)
	}
	loaded, adapters, err := qlora.LoadAdapters(dir, nil)
	if err != nil {
		panic(err)
	}
	for _, name := range slices.Sorted(maps.Keys(adapters)) {
		fmt.Println(name, adapters[name].Rank, adapters[name].Scale)
	}
	selected, err := loaded.Selects("layers.7.self_attn.q_proj")
	fmt.Println(selected, err, string(loaded.Other["task_type"]))

	loaded.Other["init_lora_weights"] = []byte(`"pissa"`)
	fmt.Println(errors.Is(qlora.SaveAdapters(dir, loaded, adapters), snug.ErrConfig))
	// Output:
	// layers.0.mlp.down_proj 1 4
	// layers.0.mlp.up_proj 2 2
	// false <nil> "CAUSAL_LM"
	// true
}
