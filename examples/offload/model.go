package main

import (
	"context"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
)

// The network: depth layers x + tanh(x·W) of some width, for batch samples. A weight takes
// 4 bytes and 2 in bfloat16, its gradient 4; the state of AdamW in 8 bits takes 2.
const (
	depth = 24
	batch = 64
)

// model is the network over paged weights, and its one batch.
type model struct {
	width   int
	runner  *offload.Runner
	updater *offload.Updater
	layers  []offload.Layer
	acts    [depth + 1][]float32 // the input of each layer, and the output
	tanh    [depth][]float32     // of each layer
	target  []float32
	dx, du  []float32 // gradients of a layer's output, and of its product
	dw      []float32
}

func newModel(width int, runner *offload.Runner, updater *offload.Updater, layers []offload.Layer) *model {
	m := &model{width: width, runner: runner, updater: updater, layers: layers, dw: make([]float32, width*width)}
	for l := range m.acts {
		m.acts[l] = make([]float32, batch*width)
	}
	for l := range m.tanh {
		m.tanh[l] = make([]float32, batch*width)
	}
	m.target, m.dx, m.du = make([]float32, batch*width), make([]float32, batch*width), make([]float32, batch*width)
	for i := range m.target {
		m.acts[0][i] = float32(math.Sin(float64(i) * 1.7))
		m.target[i] = float32(math.Cos(float64(i) * 0.9))
	}
	return m
}

// firstWeights fills a layer.
func firstWeights(layer int) func(lo int, w []float32) error {
	return func(lo int, w []float32) error {
		for i := range w {
			w[i] = float32(math.Sin(float64((lo+i)*(2*layer+3)))) / 64
		}
		return nil
	}
}

// gradients runs the network forward and backward, gives the gradient of each layer to
// the updater as soon as it is there, and returns the loss: half the mean square of the
// distance from the target.
func (m *model) gradients(ctx context.Context) (loss float64, err error) {
	if err := m.runner.Forward(ctx, m.forward); err != nil {
		return 0, err
	}
	for i, y := range m.acts[depth] {
		d := y - m.target[i]
		loss += float64(d) * float64(d) / 2 / float64(len(m.target))
		m.dx[i] = d / float32(len(m.target))
	}
	return loss, m.runner.Backward(ctx, m.backward)
}

func (m *model) forward(l int, w []snug.View) error {
	x, t, y := m.acts[l], m.tanh[l], m.acts[l+1]
	if err := amp.MatMul(t, x, w[0].Float32s(), amp.MatMulOptions{M: batch, N: m.width, K: m.width}); err != nil {
		return err
	}
	for i := range t {
		t[i] = float32(math.Tanh(float64(t[i])))
		y[i] = x[i] + t[i]
	}
	return nil
}

func (m *model) backward(l int, w []snug.View) error {
	for i, t := range m.tanh[l] {
		m.du[i] = m.dx[i] * (1 - float32(t*t))
	}
	if err := amp.MatMul(m.dw, m.acts[l], m.du, amp.MatMulOptions{M: m.width, N: m.width, K: batch, TransA: true}); err != nil {
		return err
	}
	if err := m.updater.Accumulate(m.layers[l].Name, 0, snug.ViewOf(m.dw), 1); err != nil {
		return err
	}
	// The residual branch passes dx on as it is.
	return amp.MatMul(m.dx, m.du, w[0].Float32s(), amp.MatMulOptions{M: batch, N: m.width, K: m.width, TransB: true, Into: snug.Into{Beta: 1}})
}
