package gonum

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/quant8"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize"
)

// Method is an optimizer of package quant8 as a method of gonum's optimize.Minimize:
//
//	method := &gonum.Method{Rule: quant8.AdamW{}, Rate: func(step int) float64 { return 1e-2 }}
//	result, err := optimize.Minimize(problem, x0, &optimize.Settings{MajorIterations: 1000}, method)
//
// A step is a major iteration: one evaluation of Func and of Grad, and no line search, so that both may use another part
// of the data at each step. Func may then grow from step to step, and the result is the last location, not the best.
// The default Settings.Converger ends a run without progress over 100 steps; optimize.NeverTerminate does not.
//
// A Func that is NaN or +Inf ends the run with an error that wraps snug.ErrNonFinite, and so does a gradient that
// [Optimizer.Step] refuses.
//
// The rule gets the location as one vector, which some rules for matrices refuse. The state takes the bytes that
// [quant8.Options] says; LBFGS keeps 272 bytes an element by default, and BFGS 8 for each pair of elements. A Method
// serves one Minimize at a time, and each begins with a new state.
type Method struct {
	Rule    quant8.Rule // default quant8.AdamW{}, whose weight decay is 0.01
	Options quant8.Options
	// Rate returns the learning rate of a step, from 1; default 1e-3 at each.
	Rate func(step int) float64
	// GradStopThreshold ends the run with optimize.GradientThreshold when no element of the gradient is as large.
	// 0 stands for 1e-12, as in the methods of gonum; NaN for never.
	GradStopThreshold float64

	status optimize.Status
	err    error
	opt    *Optimizer // nil between runs
	bytes  int64
}

var _ optimize.Statuser = (*Method)(nil)

// Init implements [optimize.Method].
func (m *Method) Init(dim, tasks int) int {
	m.status, m.err, m.bytes = optimize.NotTerminated, nil, 0
	return 1
}

// Uses implements [optimize.Method]. The error says that the problem has no Grad.
func (m *Method) Uses(has optimize.Available) (optimize.Available, error) {
	if !has.Grad {
		return optimize.Available{}, fmt.Errorf("%w: gonum.Method: the problem has no Grad", snug.ErrConfig)
	}
	return optimize.Available{Grad: true}, nil
}

// Status implements [optimize.Statuser].
func (m *Method) Status() (optimize.Status, error) { return m.status, m.err }

// StateBytes returns the bytes of the optimizer's state in the last run, 0 if it had no step.
func (m *Method) StateBytes() int64 { return m.bytes }

// Run implements [optimize.Method].
func (m *Method) Run(operation chan<- optimize.Task, result <-chan optimize.Task, tasks []optimize.Task) {
	const both = optimize.FuncEvaluation | optimize.GradEvaluation
	task := tasks[0]
	exchange := func(op optimize.Operation) (running bool) {
		task.Op = op
		operation <- task
		task = <-result
		return task.Op != optimize.PostIteration
	}
	running := task.Op&both == both || exchange(both&^task.Op)
	if running {
		m.begin(task.X)
	}
	for step := 1; running; step++ {
		if m.judge(step, task.Location); m.status != optimize.Failure {
			running = exchange(optimize.MajorIteration)
		}
		if running && m.status == optimize.NotTerminated {
			m.step(step, task.Gradient)
		}
		switch {
		case !running:
		case m.status == optimize.NotTerminated:
			running = exchange(both)
		default:
			running = exchange(optimize.MethodDone)
		}
	}
	m.opt = nil
	for range result { // which Minimize closes before it reads the end of operation
	}
	close(operation)
}

// begin makes the optimizer of a run, which moves x.
func (m *Method) begin(x []float64) {
	rule := cmp.Or[quant8.Rule](m.Rule, quant8.AdamW{})
	var err error
	m.opt, err = New(rule, m.Options, Param{Name: "x", Value: mat.NewVecDense(len(x), x)})
	if err != nil {
		m.status, m.err = optimize.Failure, err
	}
}

// judge sets the status if a run ends at the location of a step.
func (m *Method) judge(step int, at *optimize.Location) {
	threshold := cmp.Or(m.GradStopThreshold, 1e-12)
	switch {
	case m.status != optimize.NotTerminated:
	case math.IsNaN(at.F) || math.IsInf(at.F, 1):
		m.status, m.err = optimize.Failure, fmt.Errorf("%w: gonum.Method: Func is %g at step %d", snug.ErrNonFinite, at.F, step)
	case floats.Norm(at.Gradient, math.Inf(1)) < threshold:
		m.status = optimize.GradientThreshold
	}
}

// step moves the location, or ends the run with an error.
func (m *Method) step(step int, gradient []float64) {
	rate := 1e-3
	if m.Rate != nil {
		rate = m.Rate(step)
	}
	if err := m.opt.Step(rate, mat.NewVecDense(len(gradient), gradient)); err != nil {
		m.status, m.err = optimize.Failure, err
	}
	m.bytes = m.opt.StateBytes()
}
