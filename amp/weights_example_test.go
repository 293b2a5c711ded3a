package amp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// model is a layer in float32.
func model() iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		_ = yield(amp.Tensor{Name: "layer.weight", Shape: []int{2, 3}}, snug.ViewOf([]float32{1, 2, 3, 4, 5, 1.0 / 3})) &&
			yield(amp.Tensor{Name: "layer.bias", Shape: []int{2}, DType: "BF16"}, snug.ViewOf([]float32{0.5, 1e6}))
	}
}

// Saved weights are listed and loaded, converted while they are read.
//
//check:in tiers race
func ExampleOpenWeights() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")
	if err := amp.SaveWeights(path, model(), map[string]string{"format": "pt"}); err != nil {
		panic(err)
	}

	file, err := amp.OpenWeights(path)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	for _, t := range file.Tensors() {
		weights := make([]snug.Float16, t.Len())
		if err := file.Load(t.Name, snug.ViewOf(weights)); err != nil {
			panic(err)
		}
		fmt.Println(t.Name, t.DType, t.Shape, t.Bytes(), weights)
	}
	// Output:
	// layer.weight F32 [2 3] 24 [1 2 3 4 5 0.33325195]
	// layer.bias BF16 [2] 4 [0.5 +Inf]
}

// A model's parameters are loaded by their names; nothing is written unless the
// file has them all.
//
//check:in tiers race
func ExampleWeights_LoadAll() {
	var b bytes.Buffer
	n, err := amp.WriteWeights(&b, model(), nil)
	if err != nil {
		panic(err)
	}
	file, err := amp.NewWeights(bytes.NewReader(b.Bytes()), n)
	if err != nil {
		panic(err)
	}
	weight, bias := make([]snug.BFloat16, 6), make([]float32, 2)
	params := func(yield func(string, snug.View) bool) {
		_ = yield("layer.weight", snug.ViewOf(weight)) && yield("layer.bias", snug.ViewOf(bias))
	}
	err = file.LoadAll(params)
	fmt.Println(err, weight, bias)
	fmt.Println(file.LoadAll(all("layer.scale", bias)))
	// Output:
	// <nil> [1 2 3 4 5 0.33398438] [0.5 999424]
	// amp: LoadAll: the file lacks 1 of 1 tensors, the first are ["layer.scale"]: snug: invalid configuration
}

// Master weights take a file's tensor chunk by chunk.
//
//check:in tiers race
func ExampleWeights_LoadAt() {
	var b bytes.Buffer
	n, err := amp.WriteWeights(&b, model(), nil)
	if err != nil {
		panic(err)
	}
	file, err := amp.NewWeights(bytes.NewReader(b.Bytes()), n)
	if err != nil {
		panic(err)
	}
	master, err := amp.NewMaster(amp.MasterOptions{Chunk: 4})
	if err != nil {
		panic(err)
	}
	for _, t := range file.Tensors() {
		err := master.Add(t.Name, t.Len(), func(lo int, w []float32) error {
			return file.LoadAt(t.Name, lo, snug.ViewOf(w))
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println(master.Bytes(), "bytes")
	// Output: 32 bytes
}

// Tensors of other types, such as indices and quantized weights, are read and written as
// bytes.
//
//check:in tiers race
func ExampleWeights_ReadBytes() {
	ids := binary.LittleEndian.AppendUint64(nil, 7)
	ids = binary.LittleEndian.AppendUint64(ids, 1<<40)
	tensors := func(yield func(amp.Tensor, snug.View) bool) {
		_ = yield(amp.Tensor{Name: "ids", DType: "I64", Shape: []int{2}}, snug.SliceView(ids)) &&
			yield(amp.Tensor{Name: "codes", DType: "F4", Shape: []int{4, 2}}, snug.SliceView([]byte{0x12, 0x34, 0x56, 0x78}))
	}
	var b bytes.Buffer
	n, err := amp.WriteWeights(&b, tensors, nil)
	if err != nil {
		panic(err)
	}
	file, err := amp.NewWeights(bytes.NewReader(b.Bytes()), n)
	if err != nil {
		panic(err)
	}
	id := make([]byte, 8)
	if err := file.ReadBytes("ids", 8, id); err != nil { // the second
		panic(err)
	}
	codes, _ := file.Tensor("codes")
	fmt.Println("converted by Load:", codes.ElementType() != 0)
	packed := make([]byte, codes.Bytes())
	if err := file.ReadBytes("codes", 0, packed); err != nil {
		panic(err)
	}
	fmt.Printf("%d %x\n", int64(binary.LittleEndian.Uint64(id)), packed)
	// Output:
	// converted by Load: false
	// 1099511627776 12345678
}

// A large model is saved in shards, as transformers saves it. OpenWeights opens the folder.
//
//check:in tiers race
func ExampleSaveShards() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := amp.SaveShards(dir, 24, model(), map[string]string{"format": "pt"}); err != nil {
		panic(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		fmt.Println(filepath.Base(name))
	}
	weights, err := amp.OpenWeights(dir)
	if err != nil {
		panic(err)
	}
	defer weights.Close()
	fmt.Println(len(weights.Tensors()), "tensors", weights.Metadata())
	// Output:
	// model-00001-of-00002.safetensors
	// model-00002-of-00002.safetensors
	// model.safetensors.index.json
	// 2 tensors map[format:pt]
}
