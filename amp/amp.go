// Package amp holds the parts of mixed-precision training: a loss scaler,
// casts, 32-bit master weights, gradient clipping and a matmul with 16-bit
// operands and 32-bit accumulation (Micikevicius et al., "Mixed Precision
// Training", ICLR 2018), and weights in safetensors files, which are cast while
// they are read and written.
//
// A step with float16 compute is
//
//	scale := scaler.Scale()            // multiply the gradient of the loss by it
//	...                                // backward, float32 gradients
//	stats, err := scaler.Unscale("adam", grads)  // one pass: unscale, check, norm
//	stats, err = scaler.Clip("adam", grads, 1)
//	stepped, err := scaler.Step("adam", grads, func() error {
//		return master.Update(name, param, update) // for every parameter
//	})
//	err = scaler.Update()
//
// Walkers over gradients are iter.Seq2 of a parameter's name and its gradient.
// A function may walk twice, to check all gradients before it writes the first:
// both walks must yield the same.
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
