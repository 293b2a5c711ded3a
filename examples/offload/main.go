// Offload trains a network whose weights, gradients and optimizer state are nine
// times what it may hold in memory: they are pages of a store, and most are on disk.
// Layers are paged in forward and backward, in bfloat16, while the ones before them
// are computed, and their float32 weights are updated page by page with 8-bit AdamW. It shows what is
// in each tier while it trains, and checks that the weights have the bits of the same
// run with all in memory.
//
//	go run ./examples/offload
//	go run ./examples/offload -dir run -steps 500   can be interrupted or killed, and goes on
//	go run ./examples/offload -delayed              updates during the next step
//
// With a larger network either half can run under a limit of the operating system, where
// that in memory cannot:
//
//	go build ./examples/offload
//	prlimit --data=190000000 ./offload -width 1664 -memory 24MiB -steps 3 -only paged
//	prlimit --data=190000000 ./offload -width 1664 -steps 3 -only memory
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

const mib = 1 << 20

// config is what a run does.
type config struct {
	width   int // features of a layer
	steps   int
	delayed bool
	limit   int64  // bytes of host memory for the store; 0 for all
	commit  int    // steps between commits
	only    string // "paged" or "memory": that run alone
	keep    bool   // the store is there for a later run
	view    func(format string, args ...any)
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("offload: ")
	c := config{commit: 10}
	dir := flag.String("dir", "", "folder of the store, to go on from later; default one that is removed")
	flag.IntVar(&c.steps, "steps", 40, "steps to train")
	flag.IntVar(&c.width, "width", 256, "features of a layer: 24 matrices of width x width train, in 12 bytes a weight")
	flag.StringVar(&c.only, "only", "", "`run` to do alone, paged or memory, without a comparison")
	flag.BoolVar(&c.delayed, "delayed", false, "update beside the forward and backward pass of the next step")
	memory := flag.String("memory", "2MiB", "`size` of host memory for the store, such as 64MiB")
	flag.Parse()
	if c.width < 1 || c.width > 1<<14 || c.steps < 1 || flag.NArg() > 0 {
		log.Fatalf("want -width from 1 to %d, -steps above 0 and nothing else", 1<<14)
	}
	var err error
	if c.limit, err = meter.ParseBytes(*memory); err != nil {
		log.Fatalf("-memory: %v", err)
	}
	c.view = printer(os.Stdout)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *dir, c); err != nil {
		log.Fatal(err)
	}
}

// run trains until ctx ends, and leaves no temporary folder.
func run(ctx context.Context, dir string, c config) (err error) {
	c.keep = dir != ""
	scratch, err := os.MkdirTemp("", "snug-offload")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	dir = cmp.Or(dir, filepath.Join(scratch, "paged"))
	memory := c
	memory.limit, memory.view, memory.keep = 0, func(string, ...any) {}, false
	var sums [2][]checksum
	switch c.only {
	case "":
		if sums[0], err = train(ctx, dir, c); err != nil {
			return err
		}
		sums[1], err = train(ctx, filepath.Join(scratch, "memory"), memory)
	case "paged":
		sums[0], err = train(ctx, dir, c)
	case "memory":
		memory.view, memory.keep = c.view, c.keep
		sums[0], err = train(ctx, dir, memory)
	default:
		return fmt.Errorf("-only %s: want paged or memory", c.only)
	}
	if err != nil {
		return err
	}
	whole := join(sums[0])
	fmt.Printf("SHA-256 of the weights begins %x\n", whole[:8])
	if c.only != "" {
		return nil
	}
	for i := range sums[0] {
		if sums[0][i] != sums[1][i] {
			return fmt.Errorf("layer %d differs from that of the run in memory", i)
		}
	}
	fmt.Println("the weights have the bits of a run with all in memory")
	return nil
}

// train goes on from the last commit of the store in dir, and returns the checksums of all
// layers. When ctx ends it commits after the step that it is at if the store is kept, and
// else ends at once.
func train(ctx context.Context, dir string, c config) (sums []checksum, err error) {
	store, err := offload.Open(dir, offload.Options{HostLimit: c.limit})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Storage: store}) // its state becomes pages too
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
		layers[l] = offload.Layer{Name: name, Weights: []offload.Weight{{Name: name, Bytes: 4 * int64(c.width) * int64(c.width)}}}
		if err := addLayer(store, updater, c.width, l, name); err != nil {
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
	m := newModel(c.width, runner, updater, layers)
	within := ctx
	if c.keep {
		within = context.WithoutCancel(ctx)
	}
	for step := from + 1; step <= c.steps; step++ {
		loss, err := m.gradients(within)
		if ctx.Err() != nil && !c.keep {
			return nil, errors.New("interrupted")
		}
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
		end := c.keep && ctx.Err() != nil
		switch {
		case step == c.steps || end:
			err = updater.Commit()
		case step%c.commit == 0: // the next steps run meanwhile; the next commit returns its error
			_, err = updater.BeginCommit()
		}
		if err != nil {
			return nil, err
		}
		c.view("step %3d  loss %.4f  %s", step, loss, tiers(store.Stats()))
		if end && step < c.steps {
			return nil, fmt.Errorf("interrupted after step %d of %d, which is committed: the same command goes on from there", step, c.steps)
		}
	}
	c.view("\n")
	return checksums(updater, layers)
}

// addLayer adds a layer's float32 weights, and the bfloat16 copy that the model uses.
func addLayer(store *offload.Store, updater *offload.Updater, width, l int, name string) error {
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

// checksum is the SHA-256 of the weights of a layer.
type checksum [sha256.Size]byte

// checksums reads the weights of all layers, some at a time.
func checksums(updater *offload.Updater, layers []offload.Layer) ([]checksum, error) {
	all := make([]checksum, len(layers))
	some, bytes := make([]float32, 1<<16), make([]byte, 0, 4<<16)
	for l := range layers {
		t, err := updater.Weights(layers[l].Name)
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		for lo := 0; lo < t.Len(); lo += len(some) {
			part := some[:min(len(some), t.Len()-lo)]
			if err := t.ReadAt(part, lo); err != nil {
				return nil, err
			}
			bytes = bytes[:0]
			for _, w := range part {
				bytes = binary.LittleEndian.AppendUint32(bytes, math.Float32bits(w))
			}
			hash.Write(bytes)
		}
		hash.Sum(all[l][:0])
	}
	return all, nil
}

// join returns the checksum of several.
func join(all []checksum) checksum {
	hash := sha256.New()
	for _, c := range all {
		hash.Write(c[:])
	}
	return checksum(hash.Sum(nil))
}

// tiers says what is where.
func tiers(s offload.Stats) string {
	memory := fmt.Sprintf("%.2f MiB", float64(s.HostBytes)/mib)
	if s.HostLimit > 0 {
		memory = fmt.Sprintf("%s %.2f of %.2f MiB", bar(s.HostBytes, s.HostLimit), float64(s.HostBytes)/mib, float64(s.HostLimit)/mib)
	}
	return fmt.Sprintf("memory %s  disk %5.2f MiB  read %6.1f  written %6.1f MiB  found in memory %3.0f %%  hidden %3.0f %%",
		memory, float64(s.DiskBytes)/mib, float64(s.ReadBytes)/mib, float64(s.WriteBytes)/mib, 100*float64(s.Hits)/float64(max(1, s.Hits+s.Misses)), 100*s.Overlap())
}

// bar shows a part of a whole.
func bar(part, whole int64) string {
	const cells = 8
	n := int(min(cells, cells*part/whole))
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
