package segment

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
)

// checkTensors returns an error if a parameter of layers is missing in a file, is quantized, or has another shape.
func checkTensors(w *amp.Weights, list layers.Sequential) (err error) {
	list.Params(func(p *layers.Param) bool {
		err = checkTensor(w, p.Name, p.Shape)
		return err == nil
	})
	return err
}

func checkTensor(w *amp.Weights, name string, shape []int) error {
	info, has := w.Tensor(name)
	switch dt := info.ElementType(); {
	case !has:
		return fmt.Errorf("the file lacks %s: %w", name, snug.ErrConfig)
	case dt != snug.F32 && dt != snug.F16 && dt != snug.BF16:
		return fmt.Errorf("%s has elements of the type %s, want F32, F16 or BF16: %w", name, info.DType, snug.ErrConfig)
	case !slices.Equal(info.Shape, shape):
		return fmt.Errorf("%s has the shape %v, want %v by the configuration: %w", name, info.Shape, shape, snug.ErrShape)
	}
	return nil
}

// load reads the parameters of a model.
func load(w *amp.Weights, m *layers.Model) error {
	return w.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range m.Params() {
			if !yield(p.Name, p.Value) {
				return
			}
		}
	})
}
