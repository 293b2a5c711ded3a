package gomlx

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/ml/context"
)

// This file compares later graphs with that of New. A checkpoint has what the graph of New uses and changes, so other
// graphs of training use no more, and change no more.

// note keeps the variables that are there before a graph is built.
func (m *model) note() {
	m.before = map[*context.Variable]bool{}
	for v := range m.ctx.IterVariables() {
		m.before[v] = true
	}
}

// forget deletes the variables that a graph has made which was then refused.
func (m *model) forget() error {
	var list []*context.Variable
	for v := range m.ctx.IterVariables() {
		if !m.before[v] {
			list = append(list, v)
		}
	}
	return catch("GoMLX", func() (err error) {
		for _, v := range list {
			err = errors.Join(err, thrown(m.ctx.DeleteVariable(v.Scope(), v.Name())))
		}
		return err
	})
}

// compare panics if a graph after that of New uses other variables, or changes others.
func (m *model) compare(g *graph.Graph, training bool) {
	for v := range m.ctx.IterVariables() {
		name := v.ScopeAndName()
		used, changed := v.InUseByGraph(g), v.ChangedInGraph(g)
		switch {
		case !m.before[v]:
			panic(fmt.Errorf("the model makes variable %q with this batch, and did not with that of New", name))
		case changed && (v.Trainable || m.named[name] != nil):
			panic(fmt.Errorf("the model changes the variable %q, which trains", name))
		case !training && changed:
			m.touch(v)
		case !training || !used || v == m.global:
		case v.Trainable && m.named[name] == nil:
			panic(fmt.Errorf("variable %q trains with this batch and not with that of New", name))
		case !m.used[v]:
			panic(fmt.Errorf("the model uses variable %q with this batch, and did not with that of New", name))
		case changed && !slices.Contains(m.moved, v):
			panic(fmt.Errorf("the model changes variable %q with this batch, and did not with that of New", name))
		}
	}
}

// touch keeps the value of a variable that a graph of evaluation will change.
func (m *model) touch(v *context.Variable) {
	if slices.Contains(m.touched, v) {
		return
	}
	if m.saved != nil {
		if err := m.saved.add(v); err != nil {
			panic(err)
		}
	}
	m.touched = append(m.touched, v)
}
