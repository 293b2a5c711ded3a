package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroValues: no method of a zero value of an exported type, nor a function, panics
// whatever its arguments are, and what cannot be done is an error.
func TestZeroValues(t *testing.T) {
	kerneltest.NoPanics(t,
		Task{}, Run{}, Plan{}, Choice{}, Prediction{}, Model{}, Layer{}, Attention{}, Head{}, GPT{}, ViT{}, CNN{},
		Device{}, Process{}, &Teacher{}, &MissError{}, Change{}, Gradient(0), Gradient(-1), Operation{},
	)
	for name, call := range map[string]func() error{
		"Task.Fit":        func() error { return second(Best(Task{}.Fit(0))) },
		"Best":            func() error { return second(Best(nil)) },
		"Task.Predict":    func() error { return second(Task{}.Predict(Run{})) },
		"Task.Costs":      func() error { return second(Task{}.Costs(Run{})) },
		"Task.Schedule":   func() error { return second(Task{}.Schedule(Run{})) },
		"Task.Resident":   func() error { return second(Task{}.Resident(Run{})) },
		"Model.Validate":  Model{}.Validate,
		"GPT.Model":       func() error { return second(GPT{}.Model()) },
		"ViT.Model":       func() error { return second(ViT{}.Model()) },
		"CNN.Model":       func() error { return second(CNN{}.Model()) },
		"Device.Validate": Device{}.Validate,
		"ModelNamed":      func() error { return second(ModelNamed("", 0)) },
		"GPTNamed":        func() error { return second(GPTNamed("")) },
		"DeviceNamed":     func() error { return second(DeviceNamed("")) },
		"ReadModel":       func() error { return second(ReadModel(nil)) },
		"WriteTable":      func() error { return Plan{}.WriteTable(nil) },
		"WriteSVG":        func() error { return Plan{}.WriteSVG(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NotPanics(t, func() {
				err := call()
				require.True(t, isOne(err, snug.ErrConfig, snug.ErrShape, snug.ErrCorrupt), "%s: %v", name, err)
				kerneltest.Error(t, "plan."+name, err)
			}, name)
		})
	}
	var b strings.Builder
	require.NoError(t, Plan{}.WriteSVG(&b))
	require.NotContains(t, b.String(), "NaN")
	require.NotContains(t, b.String(), "Inf")
}
