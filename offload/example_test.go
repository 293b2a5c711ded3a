package offload_test

import (
	"context"
	"fmt"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
)

// The weights of the next layer move to the device while a layer is computed. The
// CPU stands for the device here; with "cuda:0" the moves run beside the kernels.
func ExampleMover() {
	dev := snug.CPU()
	m, err := offload.NewMover(dev, 1<<20, 8)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	host := [][]float32{{1, 2}, {3, 4}, {5, 6}} // by layer
	var weights [2]snug.Array[float32]          // of this layer and the next
	var moves [2]offload.Move
	for i := range weights {
		weights[i], _ = snug.Make[float32](dev, 2)
		moves[i], _ = m.Load(weights[i].View(), snug.ViewOf(host[i]))
	}
	for layer := range host {
		w := weights[layer%2]
		if err := moves[layer%2].Await(); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("layer", layer, w.Host()) // queue the layer's kernels
		if next := layer + 2; next < len(host) {
			moves[layer%2], _ = m.Load(w.View(), snug.ViewOf(host[next]))
		}
	}
	// Output:
	// layer 0 [1 2]
	// layer 1 [3 4]
	// layer 2 [5 6]
}

// A blob is pinned while it is used, and durable after a commit.
func ExampleStore() {
	dir, _ := os.MkdirTemp("", "offload")
	defer os.RemoveAll(dir)
	s, err := offload.Open(dir, offload.Options{HostLimit: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, _ := s.Acquire("note", 5)
	copy(b, "hello")
	_ = s.Release("note", true)
	_ = s.Commit()

	b, _ = s.Acquire("note", 5)
	copy(b, "HELLO") // never committed
	_ = s.Release("note", true)
	_ = s.Close()

	s, _ = offload.Open(dir, offload.Options{})
	defer s.Close()
	b, _ = s.Acquire("note", 5)
	fmt.Printf("%v %s\n", s.Keys(), b)
	_ = s.Release("note", false)
	_ = s.Delete("note")
	fmt.Println(s.Has("note"))
	// Output:
	// [note] hello
	// false
}

// A tensor of four pages in a host limit of one.
func ExampleTensor() {
	dir, _ := os.MkdirTemp("", "offload")
	defer os.RemoveAll(dir)
	s, err := offload.Open(dir, offload.Options{HostLimit: 4096})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	x, _ := offload.Create[float32](s, "x", 4000, 1024)
	for i := range x.Pages() {
		page, err := x.Pin(context.Background(), i)
		if err != nil {
			fmt.Println(err)
			return
		}
		for j := range page.Data {
			page.Data[j] = float32(i)
		}
		_ = page.Unpin(true)
	}
	got := make([]float32, 3)
	_ = x.ReadAt(got, 2046)
	fmt.Println(got, s.Stats().HostPeak)
	// Output: [1 1 2] 4096
}
