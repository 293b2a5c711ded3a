// Package amp is mixed-precision training. A step with float16 compute is
//
//	scale := scaler.Scale()                      // multiply the loss by it
//	...                                          // backward, float32 gradients
//	stats, err := scaler.Unscale("adam", grads)  // one pass: unscale, check, norm
//	stats, err = scaler.Clip("adam", grads, 1)
//	stepped, err := scaler.Step("adam", grads, func() error {
//		return master.Update(name, param, update) // for every parameter
//	})
//	err = scaler.Update()
//
// [Scaler] keeps float16 gradients in range and skips steps that overflow. [Master] holds
// weights of more precision than the model's, in 4, 2, 1 or 0 bytes for each element.
// [Policy] and [Ops] say in which type each operation computes. [Cast] and [MatMul] convert
// and multiply float32, float16 and bfloat16. [OpenWeights], [SaveWeights] and [SaveShards] read
// and write safetensors files and folders of them, and cast on the way. The method is from Micikevicius et al., "Mixed
// Precision Training", ICLR 2018.
//
// Gradients come as an iter.Seq2 of a parameter's name and its gradient. A function may
// walk twice, to check all gradients before it writes the first: both walks must yield
// the same.
package amp

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// checkFloat returns an error that names the operand unless v holds a
// floating-point type.
func checkFloat(op, operand string, v snug.View) error {
	if !v.DType().IsFloat() {
		return fmt.Errorf("amp: %s: %s is %s, want f32, f16 or bf16: %w", op, operand, v.DType(), snug.ErrDType)
	}
	return nil
}
