// Fusion trains a network for two kinds of data: convolutions in 3 dimensions of clips, and a transformer for questions, which sees the
// clip by cross-attention and answers. It runs without any technique, with each and with all, and prints what each run takes. The last
// runs have a limit of memory that their batch does not fit: the trainer divides it.
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

// video is the network for a clip: convolutions in 3 dimensions, each with a norm and ReLU, and poolings that halve the sides.
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

// text is the network for a question, whose words see the positions of the clip.
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

// trainer makes the model and its Trainer, with the techniques whose names are given.
func trainer(on, dir string, m *meter.Monitor) *train.Trainer[layers.Sample] {
	o, t := layers.Options{Seed: 1, Monitor: m}, train.Options{Clip: 1, Schedule: train.Constant(1e-3), Monitor: m}
	src := &layers.Source{Each: frames * size * size / 512} // positions after three poolings
	model := must(layers.NewModel(frames*size*size, layers.Decoder{Model: text(src, o), Source: src}, o, video()...))
	if strings.Contains(on, "names") { // the heavy layers are computed again
		must(0, model.SetPlan(must(remat.Only(must(model.Costs(clips, 1)), "video.0", "video.1", "video.2", "video.3"))))
	}
	if strings.Contains(on, "paged8") { // the optimizer's state has 8 bits, and lies on disk but for 1 MiB
		t.StateBits, t.Storage = 8, must(offload.Open(dir, offload.Options{HostLimit: 1 << 20}))
	}
	r := must(train.New(model, t))
	must(0, r.SplitBy(layers.Sample.Split)) // when a limit is reached
	return r
}

type result struct { // of a run: bytes at the peak, seconds of a step, and the loss of the last one
	Counted, Resident int64
	Seconds, Loss     float64
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
		var r result // of a process of its own, which has a peak of its own
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
