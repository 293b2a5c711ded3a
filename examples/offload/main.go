// Offload trains a network whose weights, gradients and optimizer state are nine
// times what it may hold in memory: they are pages of a store, and most are on disk.
// Layers are paged in forward and backward, in bfloat16, while the ones before them
// are computed, and their float32 weights are updated page by page with 8-bit AdamW. It shows what is
// in each tier while it trains, and checks that the weights have the bits of the same
// run with all in memory.
//
//	go run ./examples/offload
//	go run ./examples/offload -dir run -steps 500   can be killed, and goes on
//	go run ./examples/offload -delayed              updates beside the next step
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

const mib = 1 << 20

// config is what a run does.
type config struct {
	steps   int
	delayed bool
	limit   int64 // bytes of host memory for the store; 0 for all
	commit  int   // steps between commits
	view    func(format string, args ...any)
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("offload: ")
	c := config{commit: 10}
	dir := flag.String("dir", "", "folder of the store, to go on from later; default one that is removed")
	flag.IntVar(&c.steps, "steps", 40, "steps to train")
	flag.BoolVar(&c.delayed, "delayed", false, "update beside the forward and backward pass of the next step")
	flag.Int64Var(&c.limit, "limit", 2, "MiB of memory for the store")
	flag.Parse()
	c.limit *= mib
	c.view = printer(os.Stdout)
	if err := run(*dir, c); err != nil {
		log.Fatal(err)
	}
}

func run(dir string, c config) (err error) {
	scratch, err := os.MkdirTemp("", "snug-offload")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if dir == "" {
		dir = filepath.Join(scratch, "paged")
	}
	paged, err := train(dir, c)
	if err != nil {
		return err
	}
	c.limit, c.view = 0, func(string, ...any) {}
	whole, err := train(filepath.Join(scratch, "memory"), c)
	if err != nil {
		return err
	}
	for i := range whole {
		if math.Float32bits(whole[i]) != math.Float32bits(paged[i]) {
			return fmt.Errorf("weight %d is %g in memory, %g paged", i, whole[i], paged[i])
		}
	}
	fmt.Println("the weights have the bits of a run with all in memory")
	return nil
}

// train goes on from the last commit of the store in dir, and returns all weights.
func train(dir string, c config) (weights []float32, err error) {
	store, err := offload.Open(dir, offload.Options{HostLimit: c.limit})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	opt, err := quant8.NewAdamW(quant8.AdamWOptions{Storage: store}) // its state becomes pages too
	if err != nil {
		return nil, err
	}
	updater, err := offload.NewUpdater(store, opt, offload.UpdaterOptions{Delayed: c.delayed})
	if err != nil {
		return nil, err
	}
	layers := make([]offload.Layer, depth)
	for l := range layers {
		name := fmt.Sprint("layer", l)
		layers[l] = offload.Layer{Name: name, Weights: []offload.Weight{{Name: name, Bytes: 4 * width * width}}}
		if err := addLayer(store, updater, l, name); err != nil {
			return nil, err
		}
	}
	from, err := updater.Resume()
	if err != nil {
		return nil, err
	}
	if from > 0 {
		c.view("going on from step %d; was the run before cut off: %v\n", from, store.Recovered())
	}
	runner, err := newRunner(store, layers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	m := newModel(runner, updater, layers)
	for step := from + 1; step <= c.steps; step++ {
		loss, err := m.gradients(context.Background())
		if err != nil {
			return nil, err
		}
		norm, err := updater.Norm()
		if err != nil {
			return nil, err
		}
		if err := updater.Step(1e-3, float32(min(1, 1/norm))); err != nil {
			return nil, err
		}
		if step%c.commit == 0 || step == c.steps {
			if err := updater.Commit(); err != nil {
				return nil, err
			}
		}
		c.view("step %3d  loss %.4f  %s", step, loss, tiers(store.Stats(), c.limit))
	}
	c.view("\n")
	return allWeights(updater, layers)
}

// addLayer adds a layer's float32 weights, and the bfloat16 copy that the model uses.
func addLayer(store *offload.Store, updater *offload.Updater, l int, name string) error {
	if err := updater.Add(name, width*width, firstWeights(l)); err != nil {
		return err
	}
	if _, err := offload.Create[snug.BFloat16](store, name, width*width, 1<<16); err != nil {
		return err
	}
	return updater.BindTensor(name, name)
}

// newRunner pages all layers through two frames, from bfloat16 to float32.
func newRunner(store *offload.Store, layers []offload.Layer) (*offload.Runner, error) {
	mover, err := offload.NewMover(snug.CPU(), 1<<20, 2)
	if err != nil {
		return nil, err
	}
	plan, err := offload.Greedy(layers, []offload.Tier{
		{Name: "cpu", Limit: 2 * layers[0].Bytes()}, {Name: "store", Rate: 2e9},
	})
	if err != nil {
		return nil, err
	}
	return offload.NewRunner(store, []*offload.Mover{mover}, layers, plan, offload.RunnerOptions{DType: snug.F32})
}

func allWeights(updater *offload.Updater, layers []offload.Layer) ([]float32, error) {
	all := make([]float32, 0, depth*width*width)
	for _, l := range layers {
		t, err := updater.Weights(l.Name)
		if err != nil {
			return nil, err
		}
		n := len(all)
		all = all[:n+t.Len()]
		if err := t.ReadAt(all[n:], 0); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// tiers says what is where.
func tiers(s offload.Stats, limit int64) string {
	return fmt.Sprintf("memory %s %.2f of %.2f MiB  disk %5.2f MiB  read %6.1f  written %6.1f MiB  found in memory %3.0f %%",
		bar(s.HostBytes, limit), float64(s.HostBytes)/mib, float64(limit)/mib, float64(s.DiskBytes)/mib,
		float64(s.ReadBytes)/mib, float64(s.WriteBytes)/mib, 100*float64(s.Hits)/float64(max(1, s.Hits+s.Misses)))
}

// bar shows a part of a whole.
func bar(part, whole int64) string {
	const cells = 8
	n := cells
	if whole > 0 {
		n = int(min(cells, cells*part/whole))
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", cells-n) + "]"
}

// printer returns a function that prints lines which replace one another on a terminal,
// and elsewhere every tenth of them. A line that ends itself stays.
func printer(out *os.File) func(format string, args ...any) {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	lines := 0
	return func(format string, args ...any) {
		switch {
		case terminal:
			fmt.Fprintf(out, "\r"+format, args...)
		case strings.HasSuffix(format, "\n"):
			if format != "\n" {
				fmt.Fprintf(out, format, args...)
			}
		default:
			if lines++; lines%10 == 1 || lines%10 == 0 {
				fmt.Fprintf(out, format+"\n", args...)
			}
		}
	}
}
