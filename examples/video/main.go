// Video tunes a model of images and text on clips: it makes a small LLaVA with random weights, draws clips in which a square moves, computes
// the features of their frames once with the frozen tower, and trains the projector and adapters on a text in NF4, with AdamW in 8 bits, to
// say where the square moves to. The frames of a clip are the images of one prompt in turn. It prints what each part takes, and the
// share of right answers for clips that it did not train on.
//
//	go run ./examples/video                     a table
//	go run ./examples/video -max-frames 100     of all frames
//	go run ./examples/video -dir video          keeps the folder video; video/tuned is for PEFT
//
// Measured on 2 cores that also did other work (load about 10, so that times vary), the first command, and its model in transformers 5.24 with
// PEFT: in float32 with the tower in each step, AdamW in 32 bits, one thread, and the reading of clips not in the time:
//
//	            resident        s/step   loss             right, of 64 clips
//	here          69 MiB   0.36 to 0.5   3.957 to 0.062   0.000 to 0.984
//	PyTorch      904 MiB   0.45 to 1.2   3.974 to 0.182   0.000 to 0.953
//
// Of 100 frames, 1,600 rows a clip, training takes 252 MiB.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

const held, batch, micro = 64, 4, 8 // clips that are held out, those of a micro-batch, and micro-batches of a step

var (
	dir    = flag.String("dir", "", "folder for the clips, the model and the features; empty: a temporary one")
	frames = flag.Int("max-frames", 8, "frames of a clip, at most")
	clips  = flag.Int("clips", 1088, "to draw, with those that are held out")
	steps  = flag.Int("steps", 200, "of training")
	one    = flag.String("run", "", "make, encode or train; its result is a line of JSON")
)

// result is what a part took.
type result struct {
	Resident, Cache int64   // bytes: the peak of the process, and of all features
	Frames, Rows    int     // of a clip
	Seconds         float64 // of a clip or a step
	Loss, Right     [2]float64
}

// measure returns the mean loss, and the share of right answers, of the clips that are held out.
func measure(m *vision.Model, in *vision.Input, c *vision.Cache) (loss, right float64) {
	for i := *clips - held; i < *clips; i++ {
		b, logits := prompts(in, c, i), make([]float32, vocabulary)
		loss += must(m.Evaluate(context.Background(), b)).Mean() / held
		must(0, m.Logits(context.Background(), logits, b, nil))
		if int32(slices.Index(logits, slices.Max(logits))) == b.Text.Labels[len(b.Text.Labels)-1] {
			right += 1. / held
		}
	}
	return loss, right
}

// tune trains: a step has micro micro-batches.
func tune() (r result) {
	in, c, s := cache()
	m := must(vision.OpenModel(*dir, vision.ModelOptions{NoEncoder: true, Text: transformer.Options{
		Base: qlora.NF4, Seed: 1, Adapter: &qlora.AdapterOptions{Rank: 16, Alpha: 32},
	}}))
	r.Loss[0], r.Right[0] = measure(m, in, c)
	t := must(train.New(m, train.Options{StateBits: 8, Clip: 1, Schedule: train.Cosine(3e-3, 20, *steps)}))
	for t.Step() < *steps {
		var list []vision.Batch
		began := time.Now()
		for i := range micro {
			at := (t.Step()*micro + i) * batch % (*clips - held)
			list = append(list, prompts(in, c, at, at+1, at+2, at+3))
		}
		must(t.Train(context.Background(), list))
		r.Seconds += time.Since(began).Seconds() / float64(*steps)
	}
	must(0, t.Close())
	r.Loss[1], r.Right[1] = measure(m, in, c)
	must(0, m.SaveAdapter(filepath.Join(*dir, "tuned")))
	must(0, s.Close())
	return r
}

// parts are the parts of the program.
var parts = map[string]func() result{"make": create, "encode": encode, "train": tune}

func main() {
	flag.Parse()
	if *frames < 1 || *clips <= held || (*clips-held)%batch != 0 || *steps < 1 {
		log.Fatalf("want 1 or more frames and steps, and clips that are %d and a multiple of %d", held, batch)
	}
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
		*dir = must(os.MkdirTemp("", "video"))
		defer func() { must(0, os.RemoveAll(*dir)) }()
	}
	must(0, os.MkdirAll(*dir, 0o777))
	fmt.Printf("%-7s %11s %7s %5s %11s %8s %15s %15s\n", "part", "resident", "frames", "rows", "features", "seconds", "loss", "right")
	for _, part := range []string{"make", "encode", "train"} {
		var r result // each part is a process of its own, so that it has a peak of its own
		c := exec.Command(must(os.Executable()), "-run", part, "-dir", *dir, "-max-frames", strconv.Itoa(*frames),
			"-clips", strconv.Itoa(*clips), "-steps", strconv.Itoa(*steps))
		c.Stderr = os.Stderr
		must(0, json.Unmarshal(must(c.Output()), &r))
		fmt.Printf("%-7s %11s %7d %5d %11s %8.3f %7.3f %7.3f %7.3f %7.3f\n", part, meter.FormatBytes(r.Resident), r.Frames, r.Rows,
			meter.FormatBytes(r.Cache), r.Seconds, r.Loss[0], r.Loss[1], r.Right[0], r.Right[1])
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
