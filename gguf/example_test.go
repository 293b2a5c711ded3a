package gguf_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug/gguf"
)

// A tensor is read and decoded some rows at a time.
func Example() {
	f, err := gguf.Open("testdata/golden.gguf") // the first file of a model in several opens all
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	architecture, _ := f.Value("general.architecture")
	fmt.Println(architecture, len(f.Tensors()), "tensors")
	for _, t := range f.Tensors() {
		if t.Type != gguf.Q4_K {
			continue
		}
		row := t.Shape[len(t.Shape)-1]
		n, err := t.Type.Bytes(row)
		if err != nil {
			log.Fatal(err)
		}
		blocks, values := make([]byte, n), make([]float32, row)
		for r := range t.Shape[0] {
			if err := f.ReadAt(t.Name, blocks, int64(r)*n); err != nil {
				log.Fatal(err)
			}
			if err := t.Type.Decode(values, blocks); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Println(t.Name, t.Type, t.Shape, n, "bytes a row")
	}
	// Output:
	// snug 48 tensors
	// q4_k.blocks q4_k [1 1024] 576 bytes a row
	// q4_k.rows q4_k [12 2048] 1152 bytes a row
}

// A tensor is encoded and written some rows at a time.
func ExampleCreate() {
	dir, err := os.MkdirTemp("", "gguf")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.gguf")
	weight := gguf.Tensor{Name: "output.weight", Type: gguf.Q8_0, Shape: []int{3, 64}}
	w, err := gguf.Create(path, []gguf.Pair{{Key: "general.architecture", Value: "llama"}, {Key: "llama.block_count", Value: uint32(0)}}, []gguf.Tensor{weight})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close() // leaves nothing, if it comes before the last tensor
	row, blocks := make([]float32, 64), make([]byte, 68)
	for r := range 3 {
		for i := range row {
			row[i] = float32(r*64+i) / 100
		}
		if err := weight.Type.Encode(blocks, row); err != nil {
			log.Fatal(err)
		}
		if err := w.Write(weight.Name, blocks); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	f, err := gguf.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if err := f.ReadAt("output.weight", blocks, 68); err != nil {
		log.Fatal(err)
	}
	if err := gguf.Q8_0.Decode(row, blocks); err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Metadata(), row[:3])
	// Output: [{general.architecture llama} {llama.block_count 0}] [0.64333344 0.65081406 0.6582947]
}
