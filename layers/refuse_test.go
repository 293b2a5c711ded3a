package layers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/train"
)

// lost is a window of gradients that nobody reads.
type lost map[string][]float32

func (g lost) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(g[name]), snug.Into{Beta: 1}, nil
}

func lostOf(m *Model) lost {
	g := lost{}
	for name, v := range m.Trainable() {
		g[name] = make([]float32, v.Len())
	}
	return g
}

// change returns a layer that f has changed.
func change[L Layer](l L, f func(L)) L {
	f(l)
	return l
}

// badParams yields its parameters whatever yield returns.
type badParams struct {
	Dropout
	list []*Param
}

func (b badParams) Params(yield func(*Param) bool) {
	for _, w := range b.list {
		yield(w)
	}
}

// TestRefuses has layers that would compute something else than they say, or panic.
func TestRefuses(t *testing.T) {
	attention := func(f func(*Attention)) Layer { return change(NewAttention("a", 8, 2, 2), f) }
	linear := func(f func(*Linear)) Layer { return change(NewLinear("l", 8, 8, false), f) }
	experts := func(f func(*Experts)) Layer { return change(NewExperts("e", 8, 16, 3, 1), f) }
	balance := &Balance{Factor: 1}
	balanced := experts(func(e *Experts) { e.Balance = balance })
	one := func() *Param { return newParam("one", 0, 1) }
	values := func(x []float32) *qlora.LoRA {
		return &qlora.LoRA{In: 8, Out: 8, Rank: 1, Scale: 1, A: snug.ViewOf(x), B: snug.ViewOf(x)}
	}
	for name, list := range map[string][]Layer{
		"plain, both directions": {attention(func(a *Attention) { a.Plain, a.Bidirectional = true, true })},
		"plain, softcap":         {attention(func(a *Attention) { a.Plain, a.Softcap = true, 1 })},
		"norm of keys alone":     {attention(func(a *Attention) { a.KNorm = *NewRMSNorm("k", 4) })},
		"norm of values alone":   {attention(func(a *Attention) { a.VNorm = Norm{Unit: 4} })},
		"keys are plain values":  {attention(func(a *Attention) { a.QKV = a.QKV[:2] })},
		"parts, causal":          {attention(func(a *Attention) { a.Parts = true })},
		"parts, cross-attention": {attention(func(a *Attention) { a.Parts, a.Bidirectional, a.Source = true, true, &Source{} })},
		"packed, norms of heads": {attention(func(a *Attention) {
			a.QKV, a.QNorm, a.KNorm = []Linear{*NewLinear("qkv", 8, 24, false)}, *NewRMSNorm("q", 4), *NewRMSNorm("k", 4)
		})},
		"rope of other heads": {attention(func(a *Attention) {
			a.Rope = NewAngles(Rope{Kind: RopeDefault, Theta: 1e4, Dim: 8}, nil)
		})},
		"latent without Up":     {latentOf(func(b *Latent) { b.Up = nil })},
		"latent, other queries": {latentOf(func(b *Latent) { b.KeyDim++ })},
		"latent, other rank":    {latentOf(func(b *Latent) { b.KVNorm = *NewRMSNorm("n", 5) })},
		"latent, norm alone":    {latentOf(func(b *Latent) { b.QNorm = *NewRMSNorm("n", 8) })},
		"latent, other rope": {latentOf(func(b *Latent) {
			b.Rope = NewAngles(Rope{Kind: RopeDefault, Theta: 1e4, Dim: 4}, nil)
		})},
		"packed, query scale": {attention(func(a *Attention) {
			a.QKV, a.Rope = []Linear{*NewLinear("qkv", 8, 24, false)}, NewAngles(Rope{Kind: RopeDefault, Theta: 1e4, Dim: 4, QueryScale: 1, OriginalPositions: 2}, nil)
		})},
		"inner widths":        {change(NewMLP("m", 8, 16, square, false), func(b *MLP) { b.Down[0] = *NewLinear("d", 8, 8, false) })},
		"MLP of zeros":        {&MLP{In: make([]Linear, 1), Down: make([]Linear, 1)}},
		"router":              {experts(func(e *Experts) { e.Router = *NewLinear("r", 8, 2, false) })},
		"balance of two":      {balanced, change(NewExperts("f", 8, 16, 5, 1), func(e *Experts) { e.Balance = balance })},
		"balance twice":       {balanced, balanced},
		"frozen trains":       {linear(func(l *Linear) { l.Frozen = new(qlora.Linear) })},
		"zero adapter":        {linear(func(l *Linear) { l.Adapter = new(Adapter) })},
		"adapter's values":    {linear(func(l *Linear) { l.Adapter = &Adapter{LoRA: values(make([]float32, 8)), ParamA: one(), ParamB: one()} })},
		"nil norm":            {(*Norm)(nil)},
		"scale of a mean":     {&Norm{Weight: one(), Centered: true, ScaleOnly: true}},
		"groups with a bias":  {&Norm{Weight: one(), Bias: one(), Groups: 1}},
		"groups that remain":  {&Norm{Weight: one(), Groups: -1}},
		"scale with a bias":   {&Norm{Weight: one(), Bias: one(), ScaleOnly: true}},
		"channels last":       {convOf(conv.ChannelsFirst, 2, 2), convOf(conv.ChannelsLast, 2, 2)},
		"another size":        {convOf(conv.ChannelsFirst, 2, 2), convOf(conv.ChannelsFirst, 4, 1)},
		"norm of others":      {convOf(conv.ChannelsFirst, 2, 2), ReLU, NewGroupNorm("n", 1, 4, 2)},
		"norm, channels last": {convOf(conv.ChannelsLast, 2, 2), NewGroupNorm("n", 1, 2, 4)},
		"skip, channels last": {Concat{convOf(conv.ChannelsLast, 2, 2)}},
		"within":              {Residual{convOf(conv.ChannelsFirst, 2, 2)}, ReLU, Sequential{ReLU, Tiled{convOf(conv.ChannelsLast, 2, 2), 1}}},
		"late embedding":      {NewLinear("l", 8, 8, false), NewEmbedding("e", 8, 8)},
		"same names":          {badParams{Dropout{}, []*Param{one(), one(), newParam("other", 0, 1)}}},
		"nil parameter":       {badParams{Dropout{}, []*Param{nil, one()}}},
	} {
		if m, err := NewModel(8, MSE{}, Options{}, list...); m != nil || !errors.Is(err, snug.ErrConfig) && !errors.Is(err, snug.ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewModel(math.MaxInt, MSE{}, Options{}, NewLinear("l", math.MaxInt, math.MaxInt, false)); !errors.Is(err, snug.ErrConfig) {
		t.Error("a matrix whose number of elements overflows")
	}
}

// latentOf is a changed Latent for rows of 8 elements.
func latentOf(f func(*Latent)) Layer {
	return change(&Latent{
		In: []Linear{*NewLinear("q", 8, 10, false), *NewLinear("down", 8, 5, false)}, Up: []Linear{*NewLinear("up", 3, 14, false)},
		Out: []Linear{*NewLinear("out", 8, 8, false)}, Heads: 2, KeyDim: 3, RopeDim: 2, ValueDim: 4, Scale: 1,
	}, f)
}

// convOf is a convolution of 2 channels.
func convOf(l conv.Layout, height, width int) Layer {
	numbered++
	return NewConv(fmt.Sprint("conv", numbered), conv.Shape{In: 2, Out: 2, Dims: 2, Size: [3]int{height, width}, Kernel: [3]int{1, 1}, Layout: l}, false)
}

var numbered int

// TestSourceRows leaves no row of a source out.
func TestSourceRows(t *testing.T) {
	s := &Source{Rows: 5, X: &Tensor{View: snug.ViewOf(make([]float32, 20))}}
	a := NewAttention("a", 4, 1, 1)
	a.Source = s
	m, err := NewModel(4, MSE{}, Options{}, a)
	if err != nil {
		t.Fatal(err)
	}
	sample := Sample{X: make([]float32, 16), Y: make([]float32, 16)}
	for _, c := range []struct {
		sequences   int
		batch, rows []int
		whole       bool
	}{
		{1, nil, nil, true}, {2, nil, nil, false}, {0, []int{0, 4}, nil, false}, {0, []int{0, 4}, []int{0, 3}, false}, {0, []int{0, 4}, []int{0, 5}, true},
		{0, []int{0, 1, 4}, []int{0, 5}, false}, {0, []int{0, 1, 4}, []int{}, false},
	} {
		sample.Sequences, sample.Starts, s.Starts = c.sequences, c.batch, c.rows
		if _, err := m.Evaluate(context.Background(), sample); (err == nil) != c.whole || err != nil && !errors.Is(err, snug.ErrShape) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestSourceAdapters trains adapters of keys and values also where nobody wants the gradient of the source.
func TestSourceAdapters(t *testing.T) {
	var gradients []lost
	for _, dx := range []*Tensor{nil, {View: snug.ViewOf(make([]float32, 16))}} {
		a := NewAttention("a", 4, 1, 1)
		a.Source = &Source{Rows: 4, X: &Tensor{View: snug.ViewOf(numbers(16))}, DX: dx}
		for i := range a.QKV {
			l := &a.QKV[i]
			x := snug.ViewOf(numbers(4))
			param := func(name string, shape ...int) *Param {
				return &Param{Name: l.Weight.Name + name, Shape: shape, Value: x, Trains: true}
			}
			l.Adapter = &Adapter{LoRA: &qlora.LoRA{In: 4, Out: 4, Rank: 1, Scale: 1, A: x, B: x}, ParamA: param(".A", 1, 4), ParamB: param(".B", 4, 1)}
		}
		m, err := NewModel(4, MSE{}, Options{}, a)
		if err != nil {
			t.Fatal(err)
		}
		copy(a.Out[0].Weight.Value.Float32s(), numbers(16))
		g := lostOf(m)
		costs, err := m.Costs(1, 4)
		if _, e := m.Backprop(context.Background(), Sample{X: numbers(16), Y: make([]float32, 16)}, 1, g); err != nil || e != nil || m.Report.Mismatches != nil || len(costs.Stages) != 1 {
			t.Fatal(err, e, m.Report.Mismatches)
		}
		gradients = append(gradients, g)
	}
	if fmt.Sprint(gradients[0]) != fmt.Sprint(gradients[1]) || gradients[0]["a.k.weight.A"][0] == 0 || gradients[0]["a.v.weight.B"][0] == 0 {
		t.Error(gradients)
	}
}

// numbers are unlike each other.
func numbers(n int) (x []float32) {
	for i := range n {
		x = append(x, float32(i*i%7)/7-0.3)
	}
	return x
}

// TestReleasedSets keeps no sets of layers that do not use them again.
func TestReleasedSets(t *testing.T) {
	m, err := NewModel(4, MSE{}, Options{}, Sequential{NewLinear("l", 4, 4, false), square}, NewLinear("k", 4, 4, false))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := m.Backprop(context.Background(), Sample{X: make([]float32, 8), Y: make([]float32, 8)}, 1, lostOf(m)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(m.pass.sets); n > 2 {
		t.Errorf("%d freed sets after 20 steps", n)
	}
}

// TestBalanceWithin adds the loss of Experts wherever they stand.
func TestBalanceWithin(t *testing.T) {
	var losses []float64
	for _, wrap := range []func(Layer) Layer{
		func(l Layer) Layer { return l },
		func(l Layer) Layer { return Sequential{&Sequential{l}} },
	} {
		e := NewExperts("e", 4, 8, 3, 1)
		e.Balance = &Balance{Factor: 10}
		m, err := NewModel(4, MSE{}, Options{}, wrap(e))
		if err != nil {
			t.Fatal(err)
		}
		loss, err := m.Backprop(context.Background(), Sample{X: []float32{1, 2, 3, 4}, Y: make([]float32, 4)}, 1, lostOf(m))
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss.Mean())
	}
	if losses[0] != losses[1] {
		t.Error(losses)
	}
}

// TestLayerAgain trains a layer whose first model failed, or is another, as soon as its gradient is complete.
func TestLayerAgain(t *testing.T) {
	l := NewLinear("l", 4, 4, false)
	if _, err := NewModel(4, MSE{}, Options{}, l, NewLinear("l", 4, 4, false)); err == nil {
		t.Fatal("two parameters of one name")
	}
	for i := range 2 {
		m, err := NewModel(4, MSE{}, Options{}, l)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := train.New(m, train.Options{Gradients: plan.InBackward})
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(l.Weight.Value.Float32s())
		if _, err := tr.Train(context.Background(), []Sample{{X: []float32{1, 2, 3, 4}, Y: make([]float32, 4)}}); err != nil || fmt.Sprint(l.Weight.Value.Float32s()) == before {
			t.Error(i, err)
		}
	}
}

// TestPassAlone runs tiles in a pass that no model began.
func TestPassAlone(t *testing.T) {
	b := NewMLP("m", 1, 1, square, false)
	if _, err := NewModel(1, MSE{}, Options{}, b); err != nil {
		t.Fatal(err)
	}
	p, err := NewPass(Options{Tiles: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Batch.Shape(3*WholeRows, 1, nil); err != nil {
		t.Fatal(err)
	}
	p.Begin()
	x := p.Get(1)
	clear(x.Float32s())
	if b.Forward(p, x); p.Failed() != nil {
		t.Error(p.Failed())
	}
}
