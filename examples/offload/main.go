// Offload trains with AdamW twice: with the optimizer's state in memory, and
// with seven eighths of it on disk. It prints what the second run saved and
// what it waited for, and checks that both give the same parameters bit for
// bit.
package main

import (
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
)

const (
	layers   = 8
	layerLen = 1 << 19 // parameters of a layer
	steps    = 12
	stateLen = 2 * 4 * layers * layerLen // bytes of both moments
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("offload: ")
	dir, err := os.MkdirTemp("", "snug-offload")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := run(dir); err != nil {
		os.RemoveAll(dir)
		log.Fatal(err)
	}
}

func run(dir string) error {
	inMemory, _, inMemoryTime, err := train(dir+"/memory", 0)
	if err != nil {
		return err
	}
	paged, st, pagedTime, err := train(dir+"/paged", stateLen/8)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	fmt.Printf("parameters       %8.2f million\n", layers*layerLen/1e6)
	fmt.Printf("AdamW state      %8.2f MiB\n", float64(stateLen)/mib)
	fmt.Printf("host peak        %8.2f MiB, 1/%.0f of the state\n", float64(st.HostPeak)/mib, stateLen/float64(st.HostPeak))
	fmt.Printf("page file        %8.2f MiB\n", float64(st.DiskBytes)/mib)
	fmt.Printf("read, written    %8.2f MiB, %.2f MiB\n", float64(st.ReadBytes)/mib, float64(st.WriteBytes)/mib)
	fmt.Printf("hit rate         %8.1f %% (%d pages were read ahead)\n", 100*float64(st.Hits)/float64(st.Hits+st.Misses), st.Prefetched)
	fmt.Printf("stalled          %8.1f %% of the time\n", 100*st.Stall.Seconds()/pagedTime.Seconds())
	fmt.Printf("time             %8.2f of the run in memory\n", pagedTime.Seconds()/inMemoryTime.Seconds())
	for l := range inMemory {
		for i, want := range inMemory[l] {
			if math.Float32bits(want) != math.Float32bits(paged[l][i]) {
				return fmt.Errorf("layer %d, parameter %d: %g in memory, %g paged", l, i, want, paged[l][i])
			}
		}
	}
	fmt.Println("the parameters of both runs are equal bit for bit")
	return nil
}

// train runs all steps with the state in a store of hostLimit bytes, makes the
// result durable and returns the parameters and the time of the steps.
func train(dir string, hostLimit int64) (params [][]float32, st offload.Stats, took time.Duration, err error) {
	store, err := offload.Open(dir, offload.Options{HostLimit: hostLimit})
	if err != nil {
		return nil, st, 0, err
	}
	defer store.Close()
	opt, err := offload.NewAdamW(store, offload.AdamWOptions{WeightDecay: 0.01})
	if err != nil {
		return nil, st, 0, err
	}
	params = make([][]float32, layers)
	for l := range params {
		params[l] = make([]float32, layerLen)
		for i := range params[l] {
			params[l][i] = float32(i%97)/97 - 0.5
		}
		if err := opt.Add(fmt.Sprint("layer", l), layerLen); err != nil {
			return nil, st, 0, err
		}
	}
	grad := make([]float32, layerLen)
	for range steps {
		opt.Advance(1e-3)
		for l, p := range params {
			for i := range grad { // of a loss that pulls each parameter to a target
				grad[i] = p[i] - float32(i%31)/31
			}
			start := time.Now()
			if err := opt.Step(fmt.Sprint("layer", l), snug.ViewOf(p), snug.ViewOf(grad), 1); err != nil {
				return nil, st, 0, err
			}
			took += time.Since(start)
		}
	}
	return params, store.Stats(), took, store.Commit()
}
