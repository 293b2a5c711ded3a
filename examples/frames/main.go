// Frames trains a network for clips: convolutions on each frame, a transformer over the frames, and how far a ball moves. It
// runs without any technique, with each and with all, and prints what each run takes.
//
//	go run ./examples/frames                  a table
//	go run ./examples/frames -run amp,tiles   one run
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

const clips, frames, size, width, steps = 8, 5, 64, 256, 8

// frame is the network for a frame: convolutions of 64, 128 and 256 channels, each with a norm, ReLU and a pooling.
func frame() (l layers.Sequential) {
	in, side := 1, size
	for i, out := range []int{64, 128, width} {
		l = append(l, layers.NewConv(fmt.Sprint("frame.", i), conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{3, 3}}.Same(), true),
			layers.NewGroupNorm(fmt.Sprint("frame.", i, ".norm"), 8, out, side*side), layers.ReLU,
			layers.MaxPool{Shape: conv.PoolShape{Channels: out, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{2, 2}}})
		in, side = out, side/2
	}
	return append(l, layers.AvgPool{Shape: conv.PoolShape{Channels: width, Dims: 2, Size: [3]int{side, side}, Adaptive: [3]int{1, 1}}})
}

// trainer makes the model and its Trainer, with the techniques whose names are given.
func trainer(on string, m *meter.Monitor) *train.Trainer[layers.Sample] {
	o, t := layers.Options{Seed: 1, Monitor: m}, train.Options{Clip: 1, Schedule: train.Constant(1e-3), Monitor: m}
	if strings.Contains(on, "amp") {
		o.DType, t.Scaler = snug.F16, &amp.ScalerOptions{Init: 1 << 10} // and master weights
	}
	if strings.Contains(on, "quant8") {
		t.StateBits = 8
	}
	list := frame()
	if strings.Contains(on, "tiles") { // what the layers save of one clip exists at a time
		list = layers.Sequential{layers.Tiled{Layer: list, Rows: frames}}
	}
	for i := range 2 {
		a := layers.NewAttention(fmt.Sprint("time.", i, ".attention"), width, 4, 4)
		a.Bidirectional, a.Rope = true, layers.NewAngles(layers.Rope{Kind: layers.RopeDefault, Theta: 100, Dim: width / 4}, nil)
		list = append(list, a, layers.NewMLP(fmt.Sprint("time.", i, ".mlp"), width, 4*width, layers.GELU, false))
	}
	list = append(list, layers.NewLayerNorm("norm", width), layers.NewLinear("head", width, 2, true))
	model := must(layers.NewModel(size*size, layers.MSE{}, o, list...))
	if strings.Contains(on, "remat") { // some layers are computed again, each for all frames
		must(0, model.SetPlan(must(remat.Chen(must(model.Costs(clips, frames))))))
	}
	return must(train.New(model, t))
}

// result is what a run took: bytes at the peak, seconds of a step, and the loss of the last one.
type result struct {
	Counted, Resident int64
	Seconds, Loss     float64
}

func run(on string) (r result) {
	m := must(meter.New(meter.Options{}))
	t := trainer(on, m)
	for t.Step() < steps {
		batches, began := []layers.Sample{batch(uint64(t.Step()))}, time.Now()
		if strings.Contains(on, "accum") {
			batches = split(batches[0])
		}
		report := must(t.Train(context.Background(), batches))
		if r.Loss = report.Loss; report.Step > 1 {
			r.Seconds += time.Since(began).Seconds() / (steps - 1)
		}
	}
	r.Counted = m.Peak(meter.OnDevice)
	_, r.Resident = meter.Resident()
	return r
}

// split makes micro-batches of one clip.
func split(s layers.Sample) (list []layers.Sample) {
	for i := range s.Sequences {
		x, y := len(s.X)/s.Sequences, len(s.Y)/s.Sequences
		list = append(list, layers.Sample{X: s.X[i*x:][:x], Y: s.Y[i*y:][:y]})
	}
	return list
}

func main() {
	one := flag.String("run", "", "techniques of one run, such as amp,tiles; its result is a line of JSON")
	flag.Parse()
	if *one != "" {
		must(0, json.NewEncoder(os.Stdout).Encode(run(*one)))
		return
	}
	fmt.Printf("%-26s %12s %12s %9s %7s\n", "techniques", "counted", "resident", "s/step", "loss")
	for _, on := range []string{"none", "amp", "quant8", "remat", "tiles", "accum", "amp,quant8,tiles,accum"} {
		var r result // of a process of its own, which has a peak of its own
		must(0, json.Unmarshal(must(exec.Command(must(os.Executable()), "-run", on).Output()), &r))
		fmt.Printf("%-26s %12s %12s %9.2f %7.3f\n", on, meter.FormatBytes(r.Counted), meter.FormatBytes(r.Resident), r.Seconds, r.Loss)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
