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
//
//check:in tiers race
func ExampleScaler() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 1024, Interval: 100})
	if err != nil {
		panic(err)
	}
	weight := []float32{1}
	for _, loss := range []float32{0.5, float32(math.Inf(1)), 0.25} {
		grad := []float32{loss * scaler.Scale()} // backward
		stepped, err := scaler.Step("sgd", all("weight", grad), func() error {
			weight[0] -= grad[0]
			return nil
		})
		if err == nil {
			err = scaler.Update()
		}
		fmt.Println(stepped, weight[0], scaler.Scale(), err)
	}
	// Output:
	// true 0.5 1024 <nil>
	// false 0.5 512 <nil>
	// true 0.25 512 <nil>
}

// Unscale before Step gives the norm, to clip, and says what overflowed.
//
//check:in tiers race
func ExampleScaler_clip() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 1024})
	if err != nil {
		panic(err)
	}
	for _, dy := range []float32{3, float32(math.Inf(1))} {
		grads := all("weight", []float32{dy * scaler.Scale(), 4 * scaler.Scale()})
		stats, err := scaler.Unscale("sgd", grads)
		if err != nil {
			panic(err)
		}
		fmt.Println("norm", stats.Norm, stats.Overflows)
		stats, err = scaler.Clip("sgd", grads, 1)
		if err != nil {
			panic(err)
		}
		stepped, err := scaler.Step("sgd", grads, func() error { return nil })
		fmt.Printf("norm %.3f, stepped %v %v\n", stats.Norm, stepped, err)
		if err := scaler.Update(); err != nil {
			panic(err)
		}
	}
	// Output:
	// norm 5 []
	// norm 1.000, stepped true <nil>
	// norm +Inf [weight[0] = +Inf]
	// norm +Inf, stepped false <nil>
}

// Two optimizers share the scale. The first overflows: it is not stepped, the
// other is, and the scale backs off for both.
//
//check:in tiers race
func ExampleScaler_optimizers() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 8})
	if err != nil {
		panic(err)
	}
	generator, critic := []float32{float32(math.NaN())}, []float32{scaler.Scale()}
	for name, grad := range map[string][]float32{"generator": generator, "critic": critic} {
		_, err := scaler.Step(name, all(name, grad), func() error {
			fmt.Println(name, "steps by", grad[0])
			return nil
		})
		if err != nil {
			panic(err)
		}
	}
	err = scaler.Update()
	fmt.Println(scaler.Scale(), err)
	// Output:
	// critic steps by 1
	// 4 <nil>
}

// The same loop without scaling: Disabled keeps a scale of 1 and skips nothing.
//
//check:in tiers race
func ExampleMode() {
	for _, mode := range []amp.Mode{amp.Dynamic, amp.Static, amp.Disabled} {
		scaler, err := amp.NewScaler(amp.ScalerOptions{Mode: mode, Init: 16})
		if err != nil {
			panic(err)
		}
		before := scaler.Scale()
		stepped, err := scaler.Step("sgd", all("weight", []float32{float32(math.NaN())}), func() error { return nil })
		if err == nil {
			err = scaler.Update()
		}
		fmt.Println(before, stepped, scaler.Scale(), err)
	}
	// Output:
	// 16 false 8 <nil>
	// 16 false 16 <nil>
	// 1 true 1 <nil>
}

// A scaler goes on where the saved one was.
//
//check:in tiers race
func ExampleScaler_resume() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 4096})
	if err != nil {
		panic(err)
	}
	saved, err := scaler.AppendBinary(nil)
	if err != nil {
		panic(err)
	}
	restored, err := amp.NewScaler(amp.ScalerOptions{Init: 4096})
	if err != nil {
		panic(err)
	}
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

// The scale and the growth interval can be set while training runs, as torch's update and
// set_growth_interval do.
//
//check:in tiers race
func ExampleScaler_UpdateTo() {
	scaler, err := amp.NewScaler(amp.ScalerOptions{})
	if err != nil {
		panic(err)
	}
	if err := scaler.UpdateTo(1024); err != nil {
		panic(err)
	}
	if err := scaler.SetInterval(1); err != nil { // grow after every finite step
		panic(err)
	}
	fmt.Println(scaler.Scale())
	grads := func(yield func(string, snug.View) bool) { yield("w", snug.ViewOf([]float32{1024})) }
	if _, err := scaler.Unscale("sgd", grads); err != nil {
		panic(err)
	}
	fmt.Println(scaler.Update(), scaler.Scale())
	// Output:
	// 1024
	// <nil> 2048
}

// Clipping takes the norm that Unscale has measured in its pass.
//
//check:in tiers race
func ExampleClip() {
	grad := []float32{3, 4}
	stats, err := amp.Measure(all("weight", grad))
	if err != nil {
		panic(err)
	}
	clipped, err := amp.Clip(all("weight", grad), stats.Norm, 1)
	if err != nil {
		panic(err)
	}
	fmt.Printf("norm %.0f, clipped %.2f of norm %.2f\n", stats.Norm, grad, clipped.Norm)
	// Output: norm 5, clipped [0.60 0.80] of norm 1.00
}

//check:in tiers race
func ExampleClipValue() {
	grad := []float32{3, -0.25}
	stats, err := amp.ClipValue(all("weight", grad), 0.5)
	fmt.Println(grad, stats.NonFinite, err)
	// Output: [0.5 -0.25] 0 <nil>
}

//check:in tiers race
func ExampleStats_Err() {
	stats, err := amp.Measure(all("bias", []float32{1, float32(math.NaN())}))
	if err == nil {
		err = stats.Err()
	}
	fmt.Println(err)
	// Output: amp: 1 of 2 elements in 1 gradients are not finite, first bias[1] = NaN: snug: non-finite value
}

//check:in tiers race
func ExampleParsePolicy() {
	policy, err := amp.ParsePolicy("params=f32,compute=bf16")
	fmt.Println(policy, err)
	// Output: params=f32,compute=bf16,output=bf16 <nil>
}

// What each operation computes in, for a policy.
//
//check:in tiers race
func ExampleOps_Type() {
	policy, err := amp.ParsePolicy("params=f32,compute=bf16")
	if err != nil {
		panic(err)
	}
	ops := amp.CUDAOps()
	ops["gelu"] = amp.Full // an override
	for _, op := range []string{"linear", "gelu", "softmax", "add"} {
		t, err := ops.Type(op, policy.Compute, snug.BF16, snug.BF16)
		fmt.Println(op, t, err)
	}
	// Output:
	// linear bf16 <nil>
	// gelu f32 <nil>
	// softmax f32 <nil>
	// add bf16 <nil>
}

// The gradient of a weight, accumulated in float32: dw = 1·xᵀ·dy + 1·dw.
//
//check:in tiers race
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
	err := amp.MatMul(dw, x, dy, amp.MatMulOptions{M: 2, N: 1, K: 2, TransA: true, Into: snug.Into{Beta: 1}})
	fmt.Println(dw, err)
	// Output: [8 8] <nil>
}
