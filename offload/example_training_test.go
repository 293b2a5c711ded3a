package offload_test

import (
	"context"
	"fmt"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

// exampleStore opens a store in a folder that done removes.
func exampleStore(limit int64) (s *offload.Store, dir string, done func()) {
	dir, err := os.MkdirTemp("", "offload")
	if err != nil {
		panic(err)
	}
	if s, err = offload.Open(dir, offload.Options{HostLimit: limit}); err != nil {
		panic(err)
	}
	return s, dir, func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	}
}

// The weights, the gradient and both moments are 320 kB of pages, in 64 KiB. The model
// has the weights in bfloat16.
func ExampleUpdater() {
	s, _, done := exampleStore(64 << 10)
	defer done()
	opt, _ := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32, Chunk: 2048, Storage: s})
	u, _ := offload.NewUpdater(s, opt, offload.UpdaterOptions{PageLen: 2048})
	w, g := make([]snug.BFloat16, 20000), make([]snug.BFloat16, 20000)
	ones := func(_ int, w []float32) error {
		for i := range w {
			w[i] = 1
		}
		return nil
	}
	if err := u.Add("w", len(w), ones); err != nil {
		fmt.Println(err)
		return
	}
	_ = u.Bind("w", snug.ViewOf(w))
	for range 10 {
		copy(g, w)    // of the loss ½Σw²
		for range 2 { // two micro-batches of one half
			_ = u.Accumulate("w", 0, snug.ViewOf(g), 0.5)
		}
		norm, _ := u.Norm()
		if err := u.Step(0.01, float32(min(1, 1/norm))); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(u.Commit(), w[0], s.Stats().HostPeak)
	// Output: <nil> 0.8984375 65536
}

// Training goes on while the state of a step becomes durable. A process that is killed
// before Wait returns goes on from that step or from the commit before.
func ExampleUpdater_BeginCommit() {
	s, _, done := exampleStore(64 << 10)
	defer done()
	opt, _ := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32, Chunk: 2048, Storage: s})
	u, _ := offload.NewUpdater(s, opt, offload.UpdaterOptions{PageLen: 2048})
	w := make([]float32, 20000)
	_ = u.Add("w", len(w), nil)
	_ = u.Bind("w", snug.ViewOf(w))
	var commit offload.Commit
	for step := range 10 {
		_ = u.Accumulate("w", 0, snug.ViewOf(w), 1)
		if err := u.Step(0.01, 1); err != nil {
			fmt.Println(err)
			return
		}
		if step%3 == 2 {
			var err error
			if commit, err = u.BeginCommit(); err != nil { // also an error of the commit before
				fmt.Println(err)
				return
			}
		}
	}
	fmt.Println(commit.Wait(), commit.Done(), s.Stats().HostPeak)
	// Output: <nil> true 65536
}

// A model of six blocks. A device holds two of them and the frames that
// the others are paged through. The embedding is used as the head too, and stays.
func ExampleOptimal() {
	const gib = 1 << 30
	layers := []offload.Layer{{Name: "embedding", Weights: []offload.Weight{{Name: "table", Bytes: 2 * gib}}}}
	for i := range 6 {
		name := fmt.Sprint("block", i)
		layers = append(layers, offload.Layer{Name: name, Weights: []offload.Weight{{Name: name, Bytes: 3 * gib}}})
	}
	layers = append(layers, offload.Layer{Name: "head", Weights: []offload.Weight{{Name: "table", Bytes: 2 * gib}}})
	m, err := offload.Optimal(layers, []offload.Tier{
		{Name: "cuda:0", Limit: 16 * gib},
		{Name: "cpu", Limit: 6 * gib, Rate: 20e9},
		{Name: "disk", Rate: 2e9},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, l := range layers {
		fmt.Println(l.Name, m.Tier(i))
	}
	fmt.Printf("frames of %d GiB, %.1f s a step, %.1f at least\n", m.FrameBytes/gib, m.Seconds, m.Bound)
	// Output:
	// embedding cuda:0
	// block0 cuda:0
	// block1 cuda:0
	// block2 cpu
	// block3 cpu
	// block4 disk
	// block5 disk
	// head cuda:0
	// frames of 6 GiB, 7.1 s a step, 7.1 at least
}

// Three layers on a device that holds two frames only.
func ExampleRunner() {
	s, _, done := exampleStore(0)
	defer done()
	var layers []offload.Layer
	for i := range 3 {
		name := fmt.Sprint("layer", i)
		t, _ := offload.Create[float32](s, name, 2, 2)
		_ = t.WriteAt([]float32{float32(i), 10}, 0)
		layers = append(layers, offload.Layer{Name: name, Weights: []offload.Weight{{Name: name, Bytes: 8}}})
	}
	m, _ := offload.Greedy(layers, []offload.Tier{{Name: "cpu", Limit: 23}, {Name: "store", Rate: 1e9}})
	mover, _ := offload.NewMover(snug.CPU(), 1<<20, 2)
	defer mover.Close()
	r, err := offload.NewRunner(s, []*offload.Mover{mover}, layers, m, offload.RunnerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	_ = r.Backward(context.Background(), func(layer int, weights []snug.View) error {
		fmt.Println(layers[layer].Name, weights[0].Float32s(), r.Tier(layer))
		return nil
	})
	for _, d := range r.Demoted() { // the device had less memory than the map says
		fmt.Println(d.Layer, d.From, d.To, d.Err)
	}
	// Output:
	// layer2 [2 10] store
	// layer1 [1 10] store
	// layer0 [0 10] store
}

// Every page of the last commit is read and compared with its checksum.
func ExampleVerify() {
	s, dir, done := exampleStore(0)
	defer done()
	x, _ := offload.Create[int32](s, "x", 5, 2)
	_ = x.WriteAt([]int32{1, 2, 3, 4, 5}, 0)
	_ = s.Commit()
	_ = s.Close()
	list, _ := offload.Contents(dir)
	fmt.Println(list[0].Name, list[0].DType, list[0].Len, list[0].Pages)
	v, err := offload.Verify(dir)
	fmt.Println(v.Pages, v.Bytes, err)
	// Output:
	// x i32 5 3
	// 3 20 <nil>
}
