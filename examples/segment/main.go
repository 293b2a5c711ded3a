// Segment tunes Segment Anything: it makes a small model, draws images, computes their features once with the frozen encoder, and trains
// the decoder of masks on these, with a box or a point for each image. It prints what each part takes, and the overlap of masks with what
// is meant for images that it did not train on.
//
//	go run ./examples/segment                        images of 256 pixels
//	go run ./examples/segment -side 1024             of 1024
//	go run ./examples/segment -dir sam -side 1024    keeps its files in sam; sam/tuned is for SamModel.from_pretrained
//	mpiexec -n 2 go run ./examples/segment -dir sam -side 1024 -run train    on two ranks, with the files of that run and its side
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dist/mpi"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/vision/segment"
)

const images, held, batch = 136, 8, 2 // of all images, those that are held out, and those of a micro-batch

var (
	dir   = flag.String("dir", "", "folder for the model and the features; empty: a temporary one")
	side  = flag.Int("side", 256, "pixels of the side of an image")
	steps = flag.Int("steps", 400, "of training")
	one   = flag.String("run", "", "make, encode, train or train8; its result is a line of JSON")
)

// result is what a part took.
type result struct {
	Resident, File int64   // bytes: the peak of the process, and of the features of an image in their file
	Seconds        float64 // of an image or a step
	Loss, IoU      [2]float64
}

// create makes a small model.
func create() result {
	c := segment.ViTB()
	c.Encoder.Image, c.Prompt.Image = *side, *side
	c.Encoder.Width, c.Encoder.Hidden, c.Encoder.Layers, c.Encoder.Heads, c.Encoder.Global = 192, 384, 4, 3, []int{1, 3}
	c.Encoder.Window, c.Encoder.Out, c.Encoder.Waves, c.Prompt.Width, c.Decoder.Width, c.Decoder.Hidden, c.Decoder.IoUHidden = min(14, *side/16), 128, 64, 128, 128, 512, 128
	must(0, segment.Create(*dir, c, 1))
	return result{}
}

func features(i int) string { return filepath.Join(*dir, fmt.Sprintf("%03d.safetensors", i)) }

// encode computes the features that are not there.
func encode() (r result) {
	e := must(segment.OpenEncoder(*dir, layers.Options{}))
	for i := range images {
		if _, err := os.Stat(features(i)); errors.Is(err, fs.ErrNotExist) {
			x, began := draw(i).pixels(*side), time.Now()
			must(0, e.EncodeFile(context.Background(), features(i), snug.F16, x))
			r.Seconds = time.Since(began).Seconds()
		}
	}
	r.File = must(os.Stat(features(0))).Size()
	return r
}

// items returns the prompts for some images with their features.
func items(lo, hi int) (list []segment.Item) {
	for i := lo; i < hi; i++ {
		s := draw(i)
		list = append(list, segment.Item{Features: must(segment.ReadFeatures(features(i))), Prompt: s.prompt(*side), Target: s.target(*side / 4)})
	}
	return list
}

// measure returns the mean loss and IoU of masks for the images that are held out.
func measure(m *segment.Model) (loss, iou float64) {
	n := m.Config().Side()
	for _, item := range items(images-held, images) {
		mask, score := make([]float32, n*n), make([]float32, 1)
		must(0, m.Predict(context.Background(), mask, score, []segment.Item{item}))
		loss += must(m.Evaluate(context.Background(), []segment.Item{item})).Mean() / held
		iou += segment.IoU(mask, item.Target) / held
	}
	return loss, iou
}

func tune(bits int) (r result) {
	m := must(segment.Open(*dir, segment.Options{}))
	r.Loss[0], r.IoU[0] = measure(m)
	o, rank, ranks := train.Options{Clip: 1, StateBits: bits, Schedule: train.Cosine(1e-3, 20, *steps)}, 0, 1
	if mpi.Launched() {
		world := must(mpi.Open(mpi.Options{}))
		defer func() { must(0, world.Close()) }()
		o.Reducer, rank, ranks = world, world.Rank(), world.Size()
	}
	t := must(train.New(m, o))
	for t.Step() < *steps {
		at := (t.Step()*ranks + rank) * batch % (images - held)
		began := time.Now()
		must(t.Train(context.Background(), [][]segment.Item{items(at, at+batch)}))
		r.Seconds += time.Since(began).Seconds() / float64(*steps)
	}
	must(0, t.Close())
	if r.Loss[1], r.IoU[1] = measure(m); rank == 0 {
		must(0, m.Save(filepath.Join(*dir, "tuned")))
	}
	return r
}

// parts are the parts of the program: train8 keeps the optimizer's state in 8 bits.
var parts = map[string]func() result{"make": create, "encode": encode, "train": func() result { return tune(32) }, "train8": func() result { return tune(8) }}

func main() {
	flag.Parse()
	if *one != "" {
		var r result
		if parts[*one] != nil {
			r = parts[*one]()
		}
		_, r.Resident = meter.Resident()
		must(0, json.NewEncoder(os.Stdout).Encode(r))
		return
	}
	if *dir == "" {
		*dir = must(os.MkdirTemp("", "segment"))
		defer func() { must(0, os.RemoveAll(*dir)) }()
	}
	fmt.Printf("%-8s %12s %12s %9s %15s %15s\n", "part", "resident", "an image", "seconds", "loss", "IoU")
	for _, part := range []string{"make", "encode", "train", "train8"} {
		var r result // each part is a process of its own, so that it has a peak of its own
		must(0, json.Unmarshal(must(exec.Command(must(os.Executable()), "-run", part, "-dir", *dir, "-side", strconv.Itoa(*side), "-steps", strconv.Itoa(*steps)).Output()), &r))
		fmt.Printf("%-8s %12s %12s %9.2f %7.3f %7.3f %7.3f %7.3f\n", part, meter.FormatBytes(r.Resident), meter.FormatBytes(r.File), r.Seconds, r.Loss[0], r.Loss[1], r.IoU[0], r.IoU[1])
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
