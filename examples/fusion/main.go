// Fusion trains a network on two kinds of data: 3D convolutions encode a video clip, and a transformer reads a question about it,
// attends to the clip by cross-attention and answers. The program trains it without any memory technique, with each and with all, and
// prints the memory and time of each run. Runs named limit may use 40 MiB, too little for their batch, so that the trainer splits it.
//
//	go run ./examples/fusion                     a table
//	go run ./examples/fusion -run names,paged8   one run
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

	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

const clips, frames, size, width, words, limit, steps = 8, 8, 32, 128, 8, 40 << 20, 8

// video returns the encoder of a clip [frames, size, size]: six 3D convolutions, each with a GroupNorm and ReLU, and after every second
// one a pooling that halves all three dimensions. Its output is [frames·size·size/512, width], channels last.
func video() (l []layers.Layer) {
	in, at := 1, [3]int{frames, size, size}
	for i, out := range []int{32, 32, 64, 64, width, width} {
		norm := layers.NewGroupNorm(fmt.Sprint("video.", i, ".norm"), 8, out, at[0]*at[1]*at[2])
		norm.ChannelsLast = true
		shape := conv.Shape{In: in, Out: out, Dims: 3, Size: at, Kernel: [3]int{3, 3, 3}, Layout: conv.ChannelsLast}.Same()
		l = append(l, layers.Sequential{layers.NewConv(fmt.Sprint("video.", i), shape, true), norm, layers.ReLU})
		if in = out; i%2 == 1 {
			l = append(l, layers.MaxPool{Shape: conv.PoolShape{Channels: out, Dims: 3, Size: at, Kernel: [3]int{2, 2, 2}, Layout: conv.ChannelsLast}})
			at = [3]int{at[0] / 2, at[1] / 2, at[2] / 2}
		}
	}
	return l
}

// text returns the transformer for a question. Its words attend to the positions of the encoded clip.
func text(src *layers.Source, o layers.Options) *layers.Model {
	list := []layers.Layer{layers.NewEmbedding("words", vocabulary, width)}
	for i := range 2 {
		name := fmt.Sprint("text.", i)
		cross := layers.NewAttention(name+".cross", width, 4, 4)
		cross.Source = src
		list = append(list, layers.NewAttention(name+".self", width, 4, 4), cross, layers.NewMLP(name+".mlp", width, 4*width, layers.GELU, false))
	}
	return must(layers.NewModel(0, layers.NewCrossEntropy("answer", answers, width), o, append(list, layers.NewLayerNorm("norm", width))...))
}

// trainer returns a Trainer of the whole model, with the techniques named in on. It keeps pages of optimizer state in dir.
func trainer(on, dir string, m *meter.Monitor) *train.Trainer[layers.Sample] {
	o, t := layers.Options{Seed: 1, Monitor: m}, train.Options{Clip: 1, Schedule: train.Constant(1e-3), Monitor: m}
	src := &layers.Source{Each: frames * size * size / 512} // positions after three poolings
	model := must(layers.NewModel(frames*size*size, layers.Decoder{Model: text(src, o), Source: src}, o, video()...))
	if strings.Contains(on, "names") { // these layers are computed again
		must(0, model.SetPlan(must(remat.Only(must(model.Costs(clips, 1)), "video.0", "video.1", "video.2", "video.3"))))
	}
	if strings.Contains(on, "paged8") { // the optimizer's state has 8 bits, and lies on disk but for 1 MiB
		t.StateBits, t.Storage = 8, must(offload.Open(dir, offload.Options{HostLimit: 1 << 20}))
	}
	r := must(train.New(model, t))
	must(0, r.SplitBy(layers.Sample.Split)) // how to split a batch that exceeds a limit
	return r
}

// result is what a run took.
type result struct {
	Counted, Resident int64   // peaks in bytes: of what the monitor counts, and of the process (RSS)
	Seconds, Loss     float64 // of a step, without the first; of the last step
}

func run(on string) (r result) {
	dir, o := must(os.MkdirTemp("", "fusion")), meter.Options{}
	defer func() { must(0, os.RemoveAll(dir)) }()
	if strings.Contains(on, "limit") {
		o.Limits[meter.OnDevice] = limit
	}
	m := must(meter.New(o))
	t := trainer(on, dir, m)
	for t.Step() < steps {
		s, began := batch(uint64(t.Step())), time.Now()
		report := must(t.Train(context.Background(), []layers.Sample{s}))
		if r.Loss = report.Loss; report.Step > 1 {
			r.Seconds += time.Since(began).Seconds() / (steps - 1)
		}
	}
	must(0, t.Close())
	r.Counted = m.Peak(meter.OnDevice)
	_, r.Resident = meter.Resident()
	return r
}

func main() {
	one := flag.String("run", "", "techniques of one run, such as names,paged8; its result is a line of JSON")
	flag.Parse()
	if *one != "" {
		must(0, json.NewEncoder(os.Stdout).Encode(run(*one)))
		return
	}
	fmt.Printf("%-20s %12s %12s %9s %7s\n", "techniques", "counted", "resident", "s/step", "loss")
	for _, on := range []string{"none", "names", "paged8", "limit", "names,paged8,limit"} {
		var r result // each run is a process of its own, so that it has a peak of its own
		must(0, json.Unmarshal(must(exec.Command(must(os.Executable()), "-run", on).Output()), &r))
		fmt.Printf("%-20s %12s %12s %9.2f %7.3f\n", on, meter.FormatBytes(r.Counted), meter.FormatBytes(r.Resident), r.Seconds, r.Loss)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
