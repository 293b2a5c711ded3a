package amp_test

import (
	"bytes"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// A bfloat16 weight at 1 cannot hold 1.001. Its master can, and gathers such
// updates until they show.
//
//check:in tiers race
func ExampleMaster() {
	master, err := amp.NewMaster(amp.MasterOptions{})
	if err != nil {
		panic(err)
	}
	err = master.Add("weight", 1, func(lo int, w []float32) error {
		w[0] = 1
		return nil
	})
	if err != nil {
		panic(err)
	}
	weight := make([]snug.BFloat16, 1)
	for range 10 {
		err := master.Update("weight", snug.ViewOf(weight), func(lo int, w snug.View) error {
			w.Float32s()[0] += 0.001
			return nil
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println(weight[0], master.Bytes(), "bytes")
	// Output: 1.0078125 4 bytes
}

// A resumed run adds the same parameters without first values, and restores them.
//
//check:in tiers race
func ExampleMaster_resume() {
	begun, err := amp.NewMaster(amp.MasterOptions{})
	if err != nil {
		panic(err)
	}
	err = begun.Add("weight", 2, func(lo int, w []float32) error {
		copy(w, []float32{1.001, -2})
		return nil
	})
	if err != nil {
		panic(err)
	}
	var file bytes.Buffer
	if _, err := begun.WriteTo(&file); err != nil {
		panic(err)
	}

	master, err := amp.NewMaster(amp.MasterOptions{})
	if err != nil {
		panic(err)
	}
	if err := master.Add("weight", 2, nil); err != nil {
		panic(err)
	}
	if _, err := master.ReadFrom(&file); err != nil {
		panic(err)
	}
	weight := make([]snug.BFloat16, 2)
	fmt.Println(master.Copy("weight", snug.ViewOf(weight)), weight)
	// Output: <nil> [1 -2]
}

// The same updates with half the memory: the parameter is the upper half of the
// master.
//
//check:in tiers race
func ExampleMaster_split() {
	master, err := amp.NewMaster(amp.MasterOptions{Form: amp.SplitMaster})
	if err != nil {
		panic(err)
	}
	weight := []snug.BFloat16{snug.ToBFloat16(1)}
	if err := master.AddFrom("weight", snug.ViewOf(weight), nil); err != nil {
		panic(err)
	}
	for range 10 {
		err := master.Update("weight", snug.ViewOf(weight), func(lo int, w snug.View) error {
			w.Float32s()[0] += 0.001
			return nil
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println(weight[0], master.Bytes(), "bytes")
	// Output: 1.0078125 2 bytes
}

// Without a master, 1000 weights move by 0.01 on average, though none can hold
// 1.001.
//
//check:in tiers race
func ExampleMaster_none() {
	master, err := amp.NewMaster(amp.MasterOptions{Form: amp.NoMaster, Seed: 7})
	if err != nil {
		panic(err)
	}
	weights := make([]snug.BFloat16, 1000)
	err = master.AddFrom("weights", snug.ViewOf(weights), func(lo int, w []float32) error {
		for i := range w {
			w[i] = 1
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	for range 10 {
		err := master.Update("weights", snug.ViewOf(weights), func(lo int, w snug.View) error {
			for i := range w.Float32s() {
				w.Float32s()[i] += 0.001
			}
			return nil
		})
		if err != nil {
			panic(err)
		}
	}
	sum := float32(0)
	for _, w := range weights {
		sum += w.Float32()
	}
	fmt.Printf("%.3f on average, %d bytes\n", sum/1000, master.Bytes())
	// Output: 1.010 on average, 0 bytes
}

// A byte beside each bfloat16 weight makes it a number of 24 bits.
//
//check:in tiers race
func ExampleMaster_split24() {
	master, err := amp.NewMaster(amp.MasterOptions{Form: amp.Split24Master, Stochastic: true, Seed: 7})
	if err != nil {
		panic(err)
	}
	weight := []snug.BFloat16{snug.ToBFloat16(1)}
	if err := master.AddFrom("weight", snug.ViewOf(weight), nil); err != nil {
		panic(err)
	}
	for range 10 {
		err := master.Update("weight", snug.ViewOf(weight), func(lo int, w snug.View) error {
			w.Float32s()[0] += 0.001
			return nil
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println(weight[0], master.Bytes(), "byte")
	// Output: 1.0078125 1 byte
}

// Updates of half a gap of 24 bits are rounded away, if they are not rounded at random.
//
//check:in tiers race
func ExampleMaster_LostUpdates() {
	master, err := amp.NewMaster(amp.MasterOptions{Form: amp.Split24Master, CountLost: true})
	if err != nil {
		panic(err)
	}
	weights := []snug.BFloat16{snug.ToBFloat16(1), snug.ToBFloat16(0.01)}
	if err := master.AddFrom("weights", snug.ViewOf(weights), nil); err != nil {
		panic(err)
	}
	err = master.Update("weights", snug.ViewOf(weights), func(lo int, w snug.View) error {
		for i := range w.Float32s() {
			w.Float32s()[i] += 1e-5
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	for name, lost := range master.LostUpdates() {
		fmt.Printf("%s: %.0f %% of %d updates lost, %.0f %% of their norm\n", name, 100*lost.Share(), lost.Updates, 100*lost.NormShare())
		fmt.Println(lost.Remedy)
	}
	// Output:
	// weights: 50 % of 2 updates lost, 71 % of their norm
	// Stochastic, which keeps them on average, SplitMaster, 2 bytes an element, or a larger learning rate
}
