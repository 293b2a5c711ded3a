package plan

import (
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroValues: no method of a zero value of an exported type, nor a function, panics
// whatever its arguments are, and what cannot be done is an error.
func TestZeroValues(t *testing.T) {
	for _, v := range []any{
		Task{}, Run{}, Plan{}, Choice{}, Prediction{}, Model{}, Layer{}, Attention{}, Head{}, GPT{}, ViT{}, CNN{},
		Device{}, Process{}, &Teacher{}, &MissError{}, Change{}, Gradient(0), Gradient(-1), Operation{},
	} {
		value := reflect.ValueOf(v)
		for i := range value.NumMethod() {
			name := value.Type().String() + "." + value.Type().Method(i).Name
			for _, arguments := range [][]reflect.Value{zeros(value.Method(i).Type()), writers(value.Method(i).Type())} {
				call := value.Method(i).Call
				if value.Method(i).Type().IsVariadic() {
					call = value.Method(i).CallSlice
				}
				require.NotPanics(t, func() { call(arguments) }, name)
			}
		}
	}
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

// zeros returns the zero values of the arguments of a method.
func zeros(method reflect.Type) (list []reflect.Value) {
	for i := range method.NumIn() {
		list = append(list, reflect.Zero(method.In(i)))
	}
	return list
}

// writers returns the largest numbers, and what can be written to.
func writers(method reflect.Type) []reflect.Value {
	list := zeros(method)
	for i, v := range list {
		switch {
		case v.CanInt():
			list[i] = reflect.New(v.Type()).Elem()
			list[i].SetInt(math.MaxInt32)
		case method.In(i) == reflect.TypeFor[io.Writer]():
			list[i] = reflect.ValueOf(io.Discard)
		}
	}
	return list
}
