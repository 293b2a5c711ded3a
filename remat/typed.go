package remat

import (
	"context"
	"fmt"
	"reflect"

	"github.com/snug-ml/snug"
)

// TypedStage is a [Stage] that turns activations of one type into another, such as the tokens of an encoder into vectors:
// dx is an X and dy a Y. The rest of Stage's contract holds.
type TypedStage[X, Y, S any] interface {
	Forward(ctx context.Context, x X) (y Y, err error)
	ForwardSave(ctx context.Context, x X) (y Y, s S, err error)
	Backward(ctx context.Context, x X, s S, dy Y) (dx X, err error)
}

// Typed makes a stage of a Chain[any, any] from s, so that the activations and saved sets of a chain can differ in type. The
// functions of the chain tell the types apart. A step whose operand has another type, because the stage before makes one
// or the loss returns one, returns an error that wraps [snug.ErrConfig] and releases nothing. The stage has the name that s has.
// A value within an interface costs an allocation, of the size of a slice's header for a slice.
// Of nil it is nil, which a Chain refuses.
func Typed[X, Y, S any](s TypedStage[X, Y, S]) Stage[any, any] {
	if s == nil {
		return nil
	}
	return typed[X, Y, S]{s}
}

type typed[X, Y, S any] struct{ stage TypedStage[X, Y, S] }

func (t typed[X, Y, S]) Forward(ctx context.Context, x any) (any, error) {
	in, err := as[X](t, "the input", x)
	if err != nil {
		return nil, err
	}
	return untyped(t.stage.Forward(ctx, in))
}

func (t typed[X, Y, S]) ForwardSave(ctx context.Context, x any) (any, any, error) {
	in, err := as[X](t, "the input", x)
	if err != nil {
		return nil, nil, err
	}
	y, s, err := t.stage.ForwardSave(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	return y, s, nil
}

func (t typed[X, Y, S]) Backward(ctx context.Context, x, s, dy any) (any, error) {
	in, err := as[X](t, "the input", x)
	if err != nil {
		return nil, err
	}
	saved, err := as[S](t, "the saved set", s)
	if err != nil {
		return nil, err
	}
	grad, err := as[Y](t, "the gradient of the output", dy)
	if err != nil {
		return nil, err
	}
	return untyped(t.stage.Backward(ctx, in, saved, grad))
}

// String returns the name of the stage.
func (t typed[X, Y, S]) String() string {
	if s, ok := t.stage.(fmt.Stringer); ok {
		return s.String()
	}
	return ""
}

func untyped[T any](x T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return x, nil
}

// as returns a value as a T. A nil interface is one of any interface type.
func as[T any](stage fmt.Stringer, what string, x any) (T, error) {
	v, ok := x.(T)
	if !ok && (x != nil || any(v) != nil) {
		return v, fmt.Errorf("remat: stage %q: %s is a %T, want %v: %w", stage, what, x, reflect.TypeFor[T](), snug.ErrConfig)
	}
	return v, nil
}
