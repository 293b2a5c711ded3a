package offload_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

// A tensor of four pages passes through a tier of two pages. The CPU stands for the device
// here.
func ExampleDeviceTier() {
	s, _, done := exampleStore(0)
	defer done()
	x, _ := offload.Create[float32](s, "x", 64, 16)
	mover, _ := offload.NewMover(snug.CPU(), 1<<20, 2)
	defer mover.Close()
	tier, err := offload.NewDeviceTier(s, mover, 2*64)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tier.Close()
	for i := range x.Pages() {
		page, err := x.PinOn(context.Background(), tier, i)
		if err != nil {
			fmt.Println(err)
			return
		}
		page.View.Float32s()[0] = float32(i) // a kernel of the device
		_ = page.Unpin(true)
	}
	_ = tier.Flush() // before the pages are read in host memory
	got := make([]float32, 1)
	_ = x.ReadAt(got, 48)
	st := tier.Stats()
	fmt.Println(got, "peak", st.Peak, "saved", st.SaveBytes)
	// Output: [3] peak 128 saved 256
}

// A tensor moves to a device, in another type, and back.
func ExampleTensor_LoadTo() {
	s, _, done := exampleStore(0)
	defer done()
	if _, err := offload.Create[snug.BFloat16](s, "w", 4, 2); err != nil {
		fmt.Println(err)
		return
	}
	x, _ := offload.Lookup[snug.BFloat16](s, "w")
	dev := snug.CPU()
	mover, _ := offload.NewMover(dev, 1<<20, 2)
	defer mover.Close()
	low, _ := snug.Make[snug.BFloat16](dev, 4)
	low.Host()[3] = snug.ToBFloat16(1.5)
	if err := x.SaveFrom(mover, low.View(), 0); err != nil {
		fmt.Println(err)
		return
	}
	wide, _ := snug.Make[float32](dev, 4)
	move, err := x.LoadTo(mover, wide.View(), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = move.Await() // kernels queued from here on see the weights
	fmt.Println(wide.Host())
	// Output: [0 0 0 1.5]
}

// A layer stays on the device. What another program writes to the store reaches it by Reload.
func ExampleRunner_Reload() {
	s, _, done := exampleStore(0)
	defer done()
	w, _ := offload.Create[float32](s, "w", 2, 2)
	layers := []offload.Layer{{Name: "head", Weights: []offload.Weight{{Name: "w", Bytes: 8}}}}
	m, _ := offload.Greedy(layers, []offload.Tier{{Name: "cpu"}})
	mover, _ := offload.NewMover(snug.CPU(), 1<<20, 2)
	defer mover.Close()
	r, err := offload.NewRunner(s, []*offload.Mover{mover}, layers, m, offload.RunnerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	_ = w.WriteAt([]float32{1, 2}, 0)
	err = r.Reload()
	v, stays := r.View("w")
	fmt.Println(v.Float32s(), stays, err)
	// Output: [1 2] true <nil>
}

// counter is a Source whose element i is i.
type counter struct{}

func (counter) LoadAt(_ string, lo int, dst snug.View) error {
	for i := range dst.Float32s() {
		dst.Float32s()[i] = float32(lo + i)
	}
	return nil
}

// The elements of a file are pages that are read when they are used. A Source of
// safetensors files is the *amp.Weights of package amp.
func ExampleAttach() {
	s, _, done := exampleStore(4096)
	defer done()
	x, err := offload.Attach[float32](s, "w", counter{}, "w", 1<<20, 1024)
	if err != nil {
		fmt.Println(err)
		return
	}
	x.Prefetch(7, 8)
	got := make([]float32, 2)
	_ = x.ReadAt(got, 7777)
	fmt.Println(got, s.Stats().HostPeak)
	// Output: [7777 7778] 4096
}

// Updates run beside the next forward and backward pass. A window whose gradient is not
// finite is dropped.
func ExampleUpdater_Wait() {
	s, _, done := exampleStore(0)
	defer done()
	opt, _ := quant8.New(quant8.AdamW{}, quant8.Options{Storage: s})
	u, _ := offload.NewUpdater(s, opt, offload.UpdaterOptions{Delayed: true})
	w := make([]float32, 3)
	_ = u.Add("w", len(w), nil)
	_ = u.Bind("w", snug.ViewOf(w))
	for _, g := range []float32{1, float32(math.Inf(1)), 1} {
		_ = u.Accumulate("w", 0, snug.ViewOf([]float32{g, g, g}), 1)
		if norm, _ := u.Norm(); math.IsInf(norm, 0) || math.IsNaN(norm) {
			_ = u.Drop()
			continue
		}
		if err := u.Step(0.1, 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(u.Wait(), u.Steps(), w)
	// Output: <nil> 2 [-0.2 -0.2 -0.2]
}

// The size of pages that suits a file system, of those from 64 KiB to 4 MiB.
func ExampleMeasurePages() {
	dir, _ := os.MkdirTemp("", "offload")
	defer os.RemoveAll(dir)
	best, _, err := offload.MeasurePages(dir, 4<<20)
	fmt.Println(best.PageBytes >= 64<<10, best.Read > 0, err)
	// Output: true true <nil>
}

// A damaged page is found, and named.
func ExamplePageError() {
	s, dir, done := exampleStore(0)
	defer done()
	x, _ := offload.Create[int32](s, "x", 5, 2)
	_ = x.WriteAt([]int32{1, 2, 3, 4, 5}, 0)
	_ = s.Commit()
	_ = s.Close()
	f, err := os.OpenFile(filepath.Join(dir, "snug.pages"), os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = f.WriteAt([]byte{7}, 4096)
	_ = f.Close()
	_, err = offload.Verify(dir)
	var damage *offload.PageError
	fmt.Println(errors.As(err, &damage), damage.Name, damage.Page, damage.Offset)
	// Output: true x 1 4096
}
