package amp_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

//check:in tiers race
func ExampleCast() {
	half := make([]snug.Float16, 3)
	if err := amp.Cast(half, []float32{1, 1.0 / 3, 1e6}); err != nil {
		panic(err)
	}
	fmt.Println(half)
	// Output: [1 0.33325195 +Inf]
}

// A bfloat16 weight of 1 loses updates of 1/1024, an eighth of its gap, when it
// is rounded to nearest. Rounded at random, it moves as far on average.
//
//check:in tiers race
func ExampleCastWith() {
	nearest, random, sum := make([]snug.BFloat16, 1000), make([]snug.BFloat16, 1000), make([]float32, 1000)
	for i := range sum {
		sum[i] = 1 + 1.0/1024
	}
	if err := amp.Cast(nearest, sum); err != nil {
		panic(err)
	}
	if err := amp.CastWith(random, sum, amp.CastOptions{Stochastic: true, Draw: amp.Draw{Seed: 7}}); err != nil {
		panic(err)
	}
	moved := 0
	for i := range random {
		if random[i] > nearest[i] {
			moved++
		}
	}
	fmt.Printf("%v, and %d of 1000 went up\n", nearest[0], moved)
	// Output: 1, and 139 of 1000 went up
}

// Activations beyond the range of float16 stay numbers.
//
//check:in tiers race
func ExampleCastWith_saturate() {
	half := make([]snug.Float16, 2)
	err := amp.CastWith(half, []float32{1, 1e6}, amp.CastOptions{Saturate: true})
	fmt.Println(half, err)
	// Output: [1 65504] <nil>
}

// All weights of a model, cast for the forward pass.
//
//check:in tiers race
func ExampleCastAll() {
	master := map[string][]float32{"bias": {0.5}, "weight": {1, 2, 1.0 / 3}}
	model := map[string][]snug.BFloat16{"bias": make([]snug.BFloat16, 1), "weight": make([]snug.BFloat16, 3)}
	err := amp.CastAll(func(yield func(string, amp.CastPair) bool) {
		for _, name := range []string{"bias", "weight"} {
			if !yield(name, amp.CastPair{Dst: snug.ViewOf(model[name]), Src: snug.ViewOf(master[name])}) {
				return
			}
		}
	}, amp.CastOptions{})
	fmt.Println(model, err)
	// Output: map[bias:[0.5] weight:[1 2 0.33398438]] <nil>
}
