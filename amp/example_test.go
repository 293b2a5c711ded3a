package amp_test

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// all walks over one gradient.
func all(name string, grad []float32) iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield(name, snug.ViewOf(grad)) }
}

// A step with a loss scale: the gradient of the loss is multiplied by Scale,
// so all gradients arrive scaled. The second step overflows and is skipped.
func ExampleScaler() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 1024, Interval: 100})
	if err != nil {
		panic(err)
	}
	weight := []float32{1}
	for _, loss := range []float32{0.5, float32(math.Inf(1)), 0.25} {
		grad := []float32{loss * scaler.Scale()}
		stats, err := scaler.Unscale("sgd", all("weight", grad))
		if err != nil {
			panic(err)
		}
		stepped, err := scaler.Step("sgd", func() error {
			weight[0] -= grad[0]
			return nil
		})
		if err != nil {
			panic(err)
		}
		if err := scaler.Update(); err != nil {
			panic(err)
		}
		fmt.Println(stepped, stats.Norm, weight[0], scaler.Scale(), stats.First)
	}
	// Output:
	// true 0.5 0.5 1024 <nil>
	// false +Inf 0.5 512 weight[0] = +Inf
	// true 0.25 0.25 512 <nil>
}

// A scaler goes on where the saved one was.
func ExampleScaler_resume() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 4096})
	if err != nil {
		panic(err)
	}
	saved, err := scaler.AppendBinary(nil)
	if err != nil {
		panic(err)
	}
	restored := new(amp.Scaler)
	if err := restored.UnmarshalBinary(saved); err != nil {
		panic(err)
	}
	fmt.Println(restored.Scale())
	saved[20]++
	fmt.Println(restored.UnmarshalBinary(saved) != nil)
	// Output:
	// 4096
	// true
}

// Clipping takes the norm that Unscale has measured in its pass.
func ExampleClip() {
	grad := []float32{3, 4}
	stats, err := amp.Measure(all("weight", grad))
	if err != nil {
		panic(err)
	}
	coef, err := amp.Clip(all("weight", grad), stats.Norm, 1)
	if err != nil {
		panic(err)
	}
	fmt.Printf("norm %.0f, coefficient %.2f, clipped %.2f\n", stats.Norm, coef, grad)
	// Output: norm 5, coefficient 0.20, clipped [0.60 0.80]
}

func ExampleCheckFinite() {
	fmt.Println(amp.CheckFinite(all("bias", []float32{1, float32(math.NaN())})))
	// Output: amp: CheckFinite: 1 of 2 elements, first bias[1] = NaN: snug: non-finite value
}

func ExampleCast() {
	half := make([]snug.Float16, 3)
	if err := amp.Cast(half, []float32{1, 1.0 / 3, 1e6}); err != nil {
		panic(err)
	}
	fmt.Println(half)
	// Output: [1 0.33325195 +Inf]
}

func ExampleParsePolicy() {
	policy, err := amp.ParsePolicy("params=f32,compute=bf16")
	fmt.Println(policy, err)
	// Output: params=f32,compute=bf16,output=bf16 <nil>
}

// The gradient of a weight, accumulated in float32: dw = 1·xᵀ·dy + 1·dw.
func ExampleMatMul() {
	x := make([]snug.Float16, 4)  // 2 samples of 2 features
	dy := make([]snug.Float16, 2) // 2 samples of 1 output
	if err := amp.Cast(x, []float32{1, 2, 3, 4}); err != nil {
		panic(err)
	}
	if err := amp.Cast(dy, []float32{1, -1}); err != nil {
		panic(err)
	}
	dw := []float32{10, 10}
	err := amp.MatMul(dw, x, dy, amp.MatMulConfig{M: 2, N: 1, K: 2, TransA: true, Beta: 1})
	fmt.Println(dw, err)
	// Output: [8 8] <nil>
}

// A bfloat16 weight of 1 loses updates of 1/1024, an eighth of its gap, when it
// is rounded to nearest. Rounded at random, it moves as far on average.
func ExampleCastStochastic() {
	nearest, random, sum := make([]snug.BFloat16, 1000), make([]snug.BFloat16, 1000), make([]float32, 1000)
	for i := range sum {
		sum[i] = 1 + 1.0/1024
	}
	if err := amp.Cast(nearest, sum); err != nil {
		panic(err)
	}
	if err := amp.CastStochastic(random, sum, amp.Draw{Seed: 7}); err != nil {
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
