package train

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
)

// Gradients returns the gradients of the mean loss of a micro-batch, and the loss, to look at them outside of a Trainer. The map has a
// row-major float32 slice for each name in Trainable: 4 bytes a parameter, on the host. The parameters do not change, but Backprop
// changes the buffers of a [Buffered] model, such as the running averages of a batch norm.
//
// Errors are those of Backprop, and [snug.ErrConfig] for a nil model.
func Gradients[B any](ctx context.Context, model Model[B], batch B) (g map[string][]float32, loss fused.Loss, err error) {
	defer fault.Named(&err, "train: Gradients")
	if model == nil {
		return nil, loss, fmt.Errorf("the model is nil: %w", snug.ErrConfig)
	}
	g = map[string][]float32{}
	for name, w := range model.Trainable() {
		g[name] = make([]float32, w.Len())
	}
	loss, err = model.Backprop(ctx, batch, 1, sumWindow(g))
	if err != nil {
		return nil, loss, err
	}
	return g, loss, nil
}

// sumWindow is a [Window] that adds up the gradients of each parameter.
type sumWindow map[string][]float32

// Into implements [Window].
func (w sumWindow) Into(name string) (snug.View, snug.Into, error) {
	acc, has := w[name]
	if !has {
		return snug.View{}, snug.Into{}, fmt.Errorf("the model asks for the gradient of %q, which is not in Trainable: %w", name, snug.ErrConfig)
	}
	return snug.ViewOf(acc), snug.Into{Alpha: 1, Beta: 1}, nil
}
