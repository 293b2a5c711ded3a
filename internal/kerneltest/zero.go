package kerneltest

import (
	"errors"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// Zero calls every exported method of the values, and the values themselves that are
// functions, with zeros as arguments: nil pointers, slices and functions, zero structs.
// It requires that none panics, and that errors are those of package snug.
func Zero(t *testing.T, values ...any) {
	t.Helper()
	for _, value := range values {
		v := reflect.ValueOf(value)
		if v.Kind() == reflect.Func && v.NumMethod() == 0 {
			zero(t, v.Type().String(), v)
			continue
		}
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			if v.Kind() == reflect.Pointer && v.IsNil() && byValue(v.Type(), m.Name) {
				continue // Go itself panics where a nil pointer stands for a value
			}
			zero(t, v.Type().String()+"."+m.Name, v.Method(i))
		}
	}
}

// byValue reports whether a pointer's method is one of what it points to.
func byValue(pointer reflect.Type, name string) bool {
	_, found := pointer.Elem().MethodByName(name)
	return found
}

func zero(t *testing.T, name string, f reflect.Value) {
	t.Helper()
	in := make([]reflect.Value, f.Type().NumIn())
	for i := range in {
		in[i] = reflect.Zero(f.Type().In(i))
	}
	call := f.Call
	if f.Type().IsVariadic() {
		call = f.CallSlice
	}
	var out []reflect.Value
	require.NotPanics(t, func() { out = call(in) }, name)
	for _, o := range out {
		err, ok := o.Interface().(error)
		if !ok {
			continue
		}
		typed := false
		for _, sentinel := range []error{
			snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrConfig, snug.ErrNonFinite, snug.ErrCorrupt, snug.ErrNoMemory, snug.ErrNotBuilt,
		} {
			typed = typed || errors.Is(err, sentinel)
		}
		require.True(t, typed, "%s: an error of its own: %v", name, err)
	}
}
