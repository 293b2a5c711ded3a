package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/half"
)

// CheckGradients compares the gradients of a model with differences of its loss. For each parameter p it takes the slope of the loss
// L along a direction d,
//
//	(8·(L(p+h·d) − L(p−h·d)) − (L(p+2h·d) − L(p−2h·d))) / 12h
//
// which is the product of the gradient and d: one direction tests all elements. Three directions are tried, the gradient's own and
// two random ones, with six steps h each, of which the one counts whose slope is the most certain. How certain a slope is follows
// from differences of higher order, which grow with the rounding of L, and where L has a kink, as with ReLU and max pooling. A
// gradient is wrong if two directions say so; where all slopes are too uncertain, because L is computed in few digits, the error
// says that, too.
//
// It also checks that Backprop adds what the window asks for, times its scale, and that its loss is that of Evaluate. Switch off
// dropout and what else is random, and make batch norms Frozen: Evaluate computes another function than Backprop with others. It changes the parameters and restores them; Evaluate is called 75 times a parameter. It takes
// 24 bytes for each element of the largest parameter, and 12 of all.
//
// The error is a [GradientError], or what the model returned; errors.Is with [snug.ErrConfig] for a nil model.
func CheckGradients[B any](ctx context.Context, model Model[B], batch B) (err error) {
	if model == nil {
		return fmt.Errorf("train: CheckGradients: the model is nil: %w", snug.ErrConfig)
	}
	defer fault.Named(&err, "train: CheckGradients")
	c := gradientCheck[B]{ctx: ctx, model: model, batch: batch, rng: rand.New(rand.NewPCG(1, 1)), window: checkWindow{}}
	for name, p := range model.Trainable() {
		c.window[name] = make([]float32, p.Len())
	}
	if len(c.window) == 0 {
		return fmt.Errorf("the model has no parameter that trains: %w", snug.ErrConfig)
	}
	if err := c.backprop(); err != nil {
		return err
	}
	for name, p := range model.Trainable() {
		if err := c.parameter(name, p); err != nil {
			return err
		}
	}
	return nil
}

// GradientError says that a gradient is not that of the loss. The slopes are those of the loss along a direction.
type GradientError struct {
	Name  string  // of the parameter
	Slope float64 // by differences
	Got   float64 // by the gradient
	Bound float64 // how uncertain the slope is
	what  string
}

func (e *GradientError) Error() string {
	if e == nil {
		return "train: a nil GradientError"
	}
	return e.what
}

// checkWindow takes gradients, times ½, to what its accumulators hold.
type checkWindow map[string][]float32

// Into implements [Window].
func (w checkWindow) Into(name string) (snug.View, snug.Into, error) {
	acc, into, err := sumWindow(w).Into(name)
	into.Alpha = 0.5
	return acc, into, err
}

type gradientCheck[B any] struct {
	ctx    context.Context
	model  Model[B]
	batch  B
	rng    *rand.Rand
	window checkWindow // the gradients, after backprop
	whole  float64     // norm of all gradients
}

// backprop computes the gradients twice: into zeros with a scale of 2, and on top of other numbers with a scale of 4.
func (c *gradientCheck[B]) backprop() error {
	const start = 0.75
	loss, err := c.model.Backprop(c.ctx, c.batch, 2, c.window)
	if err != nil {
		return err
	}
	evaluated, err := c.loss()
	if err != nil {
		return err
	}
	if d := math.Abs(loss.Mean() - evaluated); !(d <= 1e-2*math.Abs(evaluated)) {
		return &GradientError{Slope: evaluated, Got: loss.Mean(), what: fmt.Sprintf("the loss of Backprop is %v, that of Evaluate %v", loss.Mean(), evaluated)}
	}
	first := c.window
	c.window = checkWindow{}
	for name, g := range first {
		c.window[name] = slices.Repeat([]float32{start}, len(g))
	}
	if _, err := c.model.Backprop(c.ctx, c.batch, 4, c.window); err != nil {
		return err
	}
	for name := range c.model.Trainable() {
		g, again := first[name], c.window[name]
		norm, off := 0.0, 0.0
		for i, x := range g {
			norm += float64(x) * float64(x)
			d := float64(again[i]) - start - 2*float64(x)
			off += d * d
		}
		if norm, off = math.Sqrt(norm), math.Sqrt(off); !(off <= 0.05*norm+1e-6*start*math.Sqrt(float64(len(g)))) {
			return &GradientError{Name: name, what: fmt.Sprintf("%s: Backprop with twice the scale, into accumulators that hold %v, gives %v ± %v more of a gradient with the norm %v: want its double added, as Into says",
				name, start, 2*norm, off, norm)}
		}
		c.whole += norm * norm
	}
	c.whole, c.window = math.Sqrt(c.whole), first
	return nil
}

func (c *gradientCheck[B]) loss() (float64, error) {
	l, err := c.model.Evaluate(c.ctx, c.batch)
	if err != nil {
		return 0, err
	}
	if mean := l.Mean(); !math.IsNaN(mean) && !math.IsInf(mean, 0) {
		return mean, nil
	}
	return 0, fmt.Errorf("the loss is %v: %w", l.Mean(), snug.ErrNonFinite)
}

// parameter checks the gradient of a parameter.
func (c *gradientCheck[B]) parameter(name string, p snug.View) (err error) {
	g := c.window[name]
	before, err := hostFloats(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, setFloats(p, before)) }()
	size := 0.0
	for _, x := range before {
		size += float64(x) * float64(x) / float64(len(before))
	}
	if size = math.Sqrt(size); size < 1e-3 {
		size = 1
	}
	var slopes []slope
	kink := 0.0
	for try := range 3 {
		d, norm := make([]float64, len(g)), 0.0
		for i := range d {
			if d[i] = float64(g[i]); try > 0 {
				d[i] = c.rng.NormFloat64()
			}
			norm += d[i] * d[i]
		}
		if norm == 0 {
			continue
		}
		for i := range d {
			d[i] *= size * math.Sqrt(float64(len(d))/norm)
		}
		s, err := c.slope(name, p, before, d)
		if err != nil {
			return err
		}
		slopes, kink = append(slopes, s), max(kink, s.kink)
	}
	var wrong *GradientError
	faults, certain := 0, false
	for i := range slopes {
		e := &slopes[i].GradientError
		// Kinks of different signs hide each other along a direction, and not along all of them.
		e.Bound = max(e.Bound, 4*kink)
		if least := 1e-3 * c.whole * size; e.Bound <= 0.2*max(math.Abs(e.Slope), math.Abs(e.Got), least) {
			certain = true
		}
		if d := math.Abs(e.Slope - e.Got); !(d <= e.Bound+1e-3*math.Abs(e.Slope)) {
			if faults++; wrong == nil || d/e.Bound > math.Abs(wrong.Slope-wrong.Got)/wrong.Bound {
				wrong = e
			}
		}
	}
	switch {
	case faults > 1:
		wrong.what = fmt.Sprintf("%s: the slope of the loss along a direction is %.6g ± %.1g by differences, and %.6g by the gradient", name, wrong.Slope, wrong.Bound, wrong.Got)
		return wrong
	case !certain:
		return &GradientError{Name: name, what: name + ": the loss is too coarse, or has too many kinks, to tell its slope by differences: check in float32, with fewer rows, or with activations without kinks"}
	}
	return nil
}

// slope is a slope of the loss, and how much it differs on both sides of a point.
type slope struct {
	GradientError
	kink float64
}

// rounding is how much the loss of a model with weights of a type is rounded, at least, as a share of it.
var rounding = map[snug.DType]float64{snug.F32: 0x1p-22, snug.F16: 0x1p-11, snug.BF16: 0x1p-8}

// slope returns the most certain slope of the loss along d, and what the gradient says of it. Steps are those that the parameter's
// type can make.
func (c *gradientCheck[B]) slope(name string, p snug.View, before []float32, d []float64) (best slope, err error) {
	best.GradientError = GradientError{Name: name, Bound: math.Inf(1)}
	middle, err := c.loss()
	if err != nil {
		return best, err
	}
	last, lastBound := 0.0, math.Inf(1)
	for h := 0x1p-2; h > 0x1p-14; h /= 4 {
		var at [5]float64
		at[2] = middle
		got := 0.0
		for k := range at {
			if k == 2 {
				continue
			}
			moved := make([]float32, len(before))
			for i, x := range before {
				moved[i] = float32(float64(x) + float64(k-2)*h*d[i])
			}
			if err := setFloats(p, moved); err != nil {
				return best, err
			}
			if moved, err = hostFloats(p); err != nil {
				return best, err
			}
			if at[k], err = c.loss(); err != nil {
				return best, err
			}
			weight := [...]float64{1, -8, 0, 8, -1}[k] / (12 * h)
			for i, x := range moved {
				got += weight * (float64(x) - float64(before[i])) * 2 * float64(c.window[name][i]) / 2
			}
		}
		narrow := (at[3] - at[1]) / (2 * h)
		wide := (8*(at[3]-at[1]) - (at[4] - at[0])) / (12 * h)
		fourth := math.Abs(at[4]-4*at[3]+6*at[2]-4*at[1]+at[0]) / h
		bound := 3 * max(math.Abs(wide-narrow), fourth, rounding[p.DType()]*math.Abs(middle)/h)
		kink := math.Abs(at[3]-2*at[2]+at[1]) / h // between the slopes on both sides
		bound = max(bound, 4*kink, math.Abs(wide-last)-lastBound)
		if last, lastBound = wide, bound; bound < best.Bound {
			best.Slope, best.Got, best.Bound, best.kink = wide, got, bound, kink
		}
	}
	return best, setFloats(p, before)
}

// hostFloats returns the elements of a vector of a model as float32.
func hostFloats(v snug.View) ([]float32, error) {
	host, free, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err != nil {
		return nil, err
	}
	if err := snug.Copy(host, v); err != nil {
		return nil, errors.Join(err, free())
	}
	x := make([]float32, v.Len())
	half.Load(x, host, 0)
	return x, free()
}

// setFloats sets the elements of a vector of a model, rounded to its type.
func setFloats(v snug.View, x []float32) error {
	host, free, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err != nil {
		return err
	}
	half.Store(host, 0, x)
	return errors.Join(snug.Copy(v, host), free())
}
