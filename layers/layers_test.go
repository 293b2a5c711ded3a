package layers

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/qlora"
)

// gradients is a window that adds gradients up.
type gradients map[string][]float32

func (g gradients) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(g[name]), snug.Into{Beta: 1}, nil
}

// someLayer draws a layer that takes rows of width elements, and the name of its activation.
func someLayer(t *rapid.T, width int) (l Layer, act string) {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	norm := func(name string, cols int) Norm {
		switch rapid.IntRange(0, 4).Draw(t, name) {
		case 4:
			n := *NewRMSNorm(name, cols)
			n.Centered = true
			return n
		case 3:
			return *NewLayerScale(name, cols, 1)
		case 0:
			return *NewRMSNorm(name, cols)
		case 1:
			return *NewLayerNorm(name, cols)
		}
		return Norm{}
	}
	linear := func(name string, in, out int) Linear {
		l := *NewLinear(name, in, out, flip(name+" bias"))
		if l.Transposed = flip(name + " transposed"); l.Transposed {
			l.Weight.Shape = []int{in, out}
		}
		l.Weight.Trains = rapid.IntRange(0, 3).Draw(t, name+" trains") > 0
		if flip(name + " adapter") {
			a := &Adapter{LoRA: &qlora.LoRA{In: in, Out: out, Rank: 2, Scale: 0.5}, ParamA: newParam(name+".A", 1, 2, in), ParamB: newParam(name+".B", 1, out, 2)}
			if a.FrozenA = flip(name + " frozen A"); a.FrozenA {
				a.ParamA.Trains = false
			}
			l.Adapter = a
		}
		return l
	}
	post := func() (n Norm) {
		switch rapid.IntRange(0, 3).Draw(t, "post") {
		case 3:
			n.Factor = 0.75
		case 1:
			n = *NewRMSNorm("post", width)
		case 2:
			n = *NewLayerScale("post", width, 0.5)
			n.Weight.Trains = flip("post trains")
		}
		return n
	}
	plain := map[string]Activation{"gelu": GELU, "tanh": GELUTanh, "quick": QuickGELU, "square": square, "relu": ReLU, "relu6": ReLU6, "leaky": LeakyReLU(0.25), "hard swish": HardSwish,
		"sigmoid": Sigmoid, "tangent": Tanh, "silu": SiLU}
	if flip("Go") {
		plain["square"] = SquaredReLU
	}
	names := slices.Sorted(maps.Keys(plain))
	gated := map[string]Activation{"silu": SiLU, "tanh": GELUTanh}
	switch rapid.IntRange(0, 14).Draw(t, "layer") {
	case 14:
		return someAltUp(t, width, linear, flip), ""
	case 13:
		return someBeside(t, width, norm, linear), ""
	case 12:
		b := someMamba2(t, width, norm, linear)
		b.Post = post()
		return b, ""
	case 11:
		b := someDeltaNet(t, width, norm, linear)
		b.Post = post()
		return b, ""
	case 10:
		return someParallel(t, width, norm, linear, flip), ""
	case 9:
		return someExperts(t, width, norm, linear), ""
	case 7:
		b := someLatent(t, width, norm, linear)
		b.Post = post()
		return b, ""
	case 0:
		l := linear("linear", width, rapid.IntRange(1, 9).Draw(t, "out"))
		return &l, ""
	case 1:
		b := &MLP{Norm: norm("norm", width), Post: post()}
		hidden := rapid.IntRange(1, 9).Draw(t, "hidden")
		b.Down = []Linear{linear("down", hidden, width)}
		b.In = []Linear{linear("up", width, hidden)}
		if flip("gated") {
			act = rapid.SampledFrom([]string{"silu", "tanh"}).Draw(t, "act")
			b.Activation, b.In = gated[act], append([]Linear{linear("gate", width, hidden)}, b.In...)
			if flip("factor of the gate") {
				b.GateFactor = 0.7
			}
			if flip("scaled") {
				factor := newParam("factor", 1, 1)
				factor.Trains = false
				return &Scaled{Layer: b, Factor: factor}, act
			}
			return b, act
		}
		act = rapid.SampledFrom(names).Draw(t, "act")
		b.Activation, b.In[0].Bias = plain[act], nil
		if flip("bias") {
			b.Bias = newParam("bias", 1, hidden)
		}
		return b, act
	case 2:
		keys, dim := rapid.IntRange(1, 2).Draw(t, "keys"), 2*rapid.IntRange(1, 3).Draw(t, "dim")
		b := &Attention{Norm: norm("norm", width), Post: post(), Heads: keys * rapid.IntRange(1, 2).Draw(t, "group"), KVHeads: keys, HeadDim: dim, Scale: 0.4}
		q, kv := b.queries(), b.keys()
		if flip("packed") {
			b.QKV = []Linear{linear("qkv", width, q+2*kv)}
		} else {
			b.QKV = []Linear{linear("q", width, q), linear("k", width, kv), linear("v", width, kv)}
			if b.Gated = flip("gated"); b.Gated {
				b.QKV[0] = linear("q", width, 2*q)
			}
			if flip("norms of heads") {
				b.QNorm, b.KNorm = *NewRMSNorm("qnorm", dim), *NewRMSNorm("knorm", dim)
				if flip("norms of all heads") {
					if b.QNorm, b.KNorm = *NewRMSNorm("qnorm", q), *NewRMSNorm("knorm", kv); flip("of each head") {
						b.QNorm.Groups, b.KNorm.Groups, b.QNorm.Centered, b.KNorm.Centered = b.Heads, b.KVHeads, flip("centered"), flip("keys centered")
					}
				}
				if b.NormLast = flip("norms last"); !b.NormLast && flip("norm of values") {
					if b.VNorm = (Norm{Unit: dim, Eps: 1e-6}); flip("keys are values") {
						b.QKV = b.QKV[:2]
					}
				}
			}
		}
		if flip("rope") {
			r := Rope{Kind: RopeDefault, Theta: 100, Dim: dim}
			if !b.packed() && flip("query scale") {
				r.QueryScale, r.OriginalPositions = 0.75, 2
			}
			b.Rope = NewAngles(r, nil)
		}
		if len(b.QKV) == 3 && b.QNorm.Weight == nil && b.Rope == nil && !b.Gated && flip("cross") {
			b.Source = &Source{} // whose rows follow from the batch
			b.QKV[1], b.QKV[2] = linear("k", 5, kv), linear("v", 5, kv)
		}
		b.Out = []Linear{linear("out", q, width)}
		if b.Bidirectional = flip("bidirectional"); !b.Bidirectional && b.Source == nil {
			b.Window = rapid.IntRange(0, 3).Draw(t, "window")
		}
		if flip("sinks") {
			b.Sinks = newParam("sinks", 1, b.Heads)
		}
		return b, ""
	case 8:
		b := &ShortConv{Norm: norm("norm", width), Post: post(), Taps: rapid.IntRange(1, 6).Draw(t, "taps")}
		inner := rapid.IntRange(1, 5).Draw(t, "inner")
		b.In, b.Out, b.Conv = []Linear{linear("in", width, 3*inner)}, []Linear{linear("out", inner, width)}, newParam("conv", 1, inner, 1, b.Taps)
		if b.Conv.Trains = flip("conv trains"); flip("bias") {
			b.Bias = newParam("bias", 1, inner)
			b.Bias.Trains = flip("bias trains")
		}
		return b, ""
	case 3:
		if flip("alone") {
			act = rapid.SampledFrom(names).Draw(t, "act")
			return plain[act], act
		}
		act = rapid.SampledFrom(names).Draw(t, "act")
		up, down := linear("up", width, 5), linear("down", 5, width)
		return Residual{Sequential{NewLayerNorm("first", width), NewRMSNorm("second", width), &up, plain[act], &down, NewRMSNorm("last", width)}}, act
	}
	if channels := rapid.SampledFrom([]int{1, width, 2}).Draw(t, "channels"); width%channels == 0 && flip("signal") {
		return someConv(t, channels, width/channels), ""
	}
	return &Embedding{Table: newTable("table", 6, width), Positions: newTable("positions", 40, width), Scale: 0.5}, ""
}

// values gives the parameters of a layer values, of a deviation that keeps gradients away from 0.
// someConv draws a layer for signals of so many channels and positions.
func someConv(t *rapid.T, channels, positions int) Layer {
	kernel := rapid.IntRange(1, positions).Draw(t, "kernel")
	window := conv.PoolShape{Batch: 1, Channels: channels, Dims: 1, Size: [3]int{positions}, Kernel: [3]int{kernel}, Stride: [3]int{rapid.IntRange(1, 3).Draw(t, "stride")}}
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 4:
		n := NewGroupNorm("norm", channels, channels, positions)
		if channels%2 != 0 || positions == 1 || rapid.Bool().Draw(t, "one group") {
			n.Groups = 1
		}
		if channels*positions == 1 { // whose gradient is rounding alone
			return AvgPool{window}
		}
		n.Weight.Trains, n.Bias.Trains = rapid.Bool().Draw(t, "weight trains"), rapid.Bool().Draw(t, "bias trains")
		return n
	case 0:
		return MaxPool{window}
	case 1:
		return AvgPool{window}
	case 2:
		return Resize{conv.ResizeShape{Channels: channels, Dims: 1, Size: window.Size, Out: [3]int{rapid.IntRange(1, 9).Draw(t, "size")}}}
	}
	s := conv.Shape{In: channels, Out: rapid.IntRange(1, 4).Draw(t, "out"), Dims: 1, Size: window.Size, Kernel: window.Kernel, Stride: window.Stride,
		PadBefore: [3]int{rapid.IntRange(0, 2).Draw(t, "before")}, PadAfter: [3]int{rapid.IntRange(0, 2).Draw(t, "after")}}
	l := NewConv("conv", s, rapid.Bool().Draw(t, "bias"))
	l.Weight.Trains = rapid.IntRange(0, 3).Draw(t, "trains") > 0
	return l
}

func values(rng *rand.Rand, l Layer) (params []*Param) {
	for w := range l.Params {
		params = append(params, w)
		x := make([]float32, w.Len())
		for i := range x {
			x[i] = w.constant + float32(0.6*rng.NormFloat64())
		}
		w.Value = snug.ViewOf(x)
	}
	each := func(list ...Linear) {
		for _, l := range list {
			if l.Adapter != nil {
				l.Adapter.A, l.Adapter.B = l.Adapter.ParamA.Value, l.Adapter.ParamB.Value
			}
		}
	}
	switch l := l.(type) {
	case *Linear:
		each(*l)
	case *MLP:
		each(append(slices.Clone(l.In), l.Down...)...)
	case *Scaled:
		b := l.Layer.(*MLP)
		each(append(slices.Clone(b.In), b.Down...)...)
	case *Attention:
		each(append(slices.Clone(l.QKV), l.Out...)...)
	case *Parallel:
		if each(append(slices.Clone(l.Attention.QKV), l.Attention.Out...)...); l.Mamba != nil {
			each(append(slices.Clone(l.Mamba.In), l.Mamba.Out...)...)
		} else {
			each(append(slices.Clone(l.MLP.In), l.MLP.Down...)...)
		}
	case *Experts:
		each(l.linears()...)
	case *AltUp:
		each(l.linears()...)
	case *Beside:
		each(slices.Concat(l.Experts.linears(), l.MLP.In, l.MLP.Down)...)
	case *Latent:
		each(slices.Concat(l.In, l.QUp, l.Up, l.Out)...)
	case *ShortConv:
		each(append(slices.Clone(l.In), l.Out...)...)
	case *DeltaNet:
		each(append(slices.Clone(l.In), l.Out...)...)
	case *Mamba2:
		each(append(slices.Clone(l.In), l.Out...)...)
	case Residual:
		for _, inner := range l.Layer.(Sequential) {
			if l, is := inner.(*Linear); is {
				each(*l)
			}
		}
	}
	return params
}

// someDeltaNet draws a DeltaNet whose heads may share keys, of products side by side or interleaved.
func someDeltaNet(t *rapid.T, width int, norm func(string, int) Norm, linear func(string, int, int) Linear) *DeltaNet {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	keys := rapid.IntRange(1, 2).Draw(t, "keys")
	heads := keys * rapid.IntRange(1, 3).Draw(t, "group")
	b := NewDeltaNet("delta", width, keys, heads, rapid.IntRange(3, 5).Draw(t, "key dim"), rapid.IntRange(1, 3).Draw(t, "dim"), rapid.IntRange(1, 4).Draw(t, "taps"))
	b.Norm, b.Inner.Eps = norm("norm", width), 0.1 // a small one makes a norm of few elements a step
	b.In = []Linear{linear("qkv", width, b.channels()), linear("z", width, b.values()), linear("b", width, heads), linear("a", width, heads)}
	if b.Interleaved = flip("interleaved"); b.Interleaved {
		b.In = []Linear{linear("qkvz", width, b.channels()+b.values()), linear("ba", width, 2*heads)}
	}
	b.Out = []Linear{linear("out", b.values(), width)}
	for _, w := range []*Param{b.Conv, b.Bias, b.ALog, b.Inner.Weight} {
		w.constant, w.Trains = 0.5, flip(w.Name+" trains")
	}
	return b
}

// someMamba2 draws a Mamba2 with groups, limits and factors, and with or without a gated norm.
func someMamba2(t *rapid.T, width int, norm func(string, int) Norm, linear func(string, int, int) Linear) *Mamba2 {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	groups := rapid.IntRange(1, 2).Draw(t, "groups")
	heads := groups * rapid.IntRange(1, 3).Draw(t, "group")
	b := NewMamba2("mamba", width, heads, rapid.IntRange(1, 3).Draw(t, "dim"), groups, rapid.IntRange(1, 4).Draw(t, "state"), rapid.IntRange(1, 4).Draw(t, "taps"))
	b.Norm, b.Eps, b.Before = norm("norm", width), 0.1, flip("before")
	if flip("one group") {
		b.InnerGroups = 0
	}
	b.In, b.Out = []Linear{linear("in", width, b.width())}, []Linear{linear("last", b.values(), width)}
	for _, w := range []*Param{b.Conv, b.ConvBias, b.Bias, b.ALog, b.Skip, b.Inner} {
		w.constant, w.Trains = 0.5, flip(w.Name+" trains")
	}
	if flip("no norm") {
		b.Inner = nil
	}
	if flip("no bias") {
		b.ConvBias = nil
	}
	if flip("factors") {
		b.Factors = [5]float32{0.5, 2, 0.7, 0, 1.5}
	}
	if flip("limits") {
		b.Min, b.Max = 1e-4, 100
	}
	return b
}

// someParallel returns a Parallel with one norm or two, and heads in one matrix by turns or side by side.
func someParallel(t *rapid.T, width int, norm func(string, int) Norm, linear func(string, int, int) Linear, flip func(string) bool) *Parallel {
	const heads, dim, hidden = 2, 4, 5
	b := &Parallel{
		Attention: &Attention{Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 0.4, QKV: []Linear{linear("qkv", width, 3*heads*dim)},
			Out: []Linear{linear("out", heads*dim, width)}, Interleaved: flip("interleaved")},
		MLP: &MLP{Activation: SiLU, In: []Linear{linear("gate", width, hidden), linear("up", width, hidden)}, Down: []Linear{linear("down", hidden, width)}},
	}
	b.Norm = norm("norm", width)
	second, post := &b.MLP.Norm, &b.MLP.Post
	if flip("mamba") {
		b.MLP, b.Mamba = nil, someMamba2(t, width, norm, linear)
		b.Mamba.Norm = Norm{}
		second, post = &b.Mamba.Norm, &b.Mamba.Post
	}
	if flip("two norms") {
		b.Norm, b.Attention.Norm, *second = Norm{}, b.Norm, norm("norm2", width)
	}
	if flip("factors of halves") {
		b.Attention.Post.Factor, post.Factor = 0.5, 1.5
	}
	if flip("rope") {
		b.Attention.Rope = NewAngles(Rope{Kind: RopeDefault, Theta: 100, Dim: dim}, nil)
	}
	return b
}

// layerOf returns what a Concat is around.
func layerOf(l Layer) Layer {
	if c, is := l.(Concat); is {
		return c.Layer
	}
	return l
}

// layerProperty: a layer has the output and the gradients of its definition in float64, by differences; it saves what its cost says;
// a set that is computed again has the same bits, and nothing stays in use.
func layerProperty(t *rapid.T) {
	width := rapid.IntRange(1, 7).Draw(t, "width")
	l, act := someLayer(t, width)
	if _, is := l.(*Embedding); is {
		width = 0
	}
	if b, is := l.(*AltUp); is && b.First == nil {
		width *= b.Streams
	}
	rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
	params := values(rng, l)
	_, attends := l.(*Attention)
	switch l.(type) {
	case *Latent, *ShortConv, *DeltaNet, *Mamba2, *Parallel, *AltUp:
		attends = true
	}
	if _, embeds := l.(*Embedding); !attends && !embeds && rapid.Bool().Draw(t, "tiled") {
		l = Tiled{l, rapid.IntRange(1, 4).Draw(t, "tile")}
	}
	if _, embeds := l.(*Embedding); !embeds && rapid.IntRange(0, 3).Draw(t, "concat") == 0 {
		l = Concat{l}
	}
	p, err := NewPass(Options{})
	require.NoError(t, err)
	sequences, rows := rapid.IntRange(1, 3).Draw(t, "sequences"), rapid.IntRange(1, 5).Draw(t, "rows")
	require.NoError(t, p.Batch.Shape(sequences*rows, sequences, nil))
	if rapid.Bool().Draw(t, "starts") {
		require.NoError(t, p.Batch.Shape(rows+3, 0, []int{0, rows, rows + 3}))
	}
	for range p.Batch.Rows {
		p.Batch.Tokens = append(p.Batch.Tokens, int32(rng.IntN(6)))
	}
	p.Begin()
	source, dsource := make([]float32, 5*4*p.Batch.Sequences), make([]float32, 5*4*p.Batch.Sequences)
	if a, is := layerOf(l).(*Attention); is && a.Source != nil {
		for i := range source {
			source[i] = float32(rng.NormFloat64())
		}
		*a.Source = Source{Rows: 4 * p.Batch.Sequences, X: &Tensor{View: snug.ViewOf(source)}, DX: &Tensor{View: snug.ViewOf(dsource)}}
		if p.Batch.Starts != nil {
			a.Source.Starts = []int{0, 1, 4 * p.Batch.Sequences}
		}
	}
	out, err := l.Width(width)
	require.NoError(t, err)
	cost := p.Cost(l, width, p.Batch)

	x := p.Get(width)
	d := &definition{batch: p.Batch, values: map[*Param][]float64{}}
	for _, v := range source {
		d.source = append(d.source, float64(v))
	}
	input := make([]float64, x.Len())
	for i := range input {
		x.Float32s()[i] = float32(rng.NormFloat64())
		input[i] = float64(x.Float32s()[i])
	}
	g := gradients{}
	for _, w := range params {
		g[w.Name] = make([]float32, w.Len())
		for _, v := range w.Value.Float32s() {
			d.values[w] = append(d.values[w], float64(v))
		}
	}
	p.Window = g
	p.Start(context.Background())
	var y *Tensor
	var s Saved
	forward := p.Measure(func() { y = l.Forward(p, x) })
	save := p.Measure(func() { _, s = l.ForwardSave(p, x) })
	require.NoError(t, p.Failed())
	require.Equal(t, cost.Output, y.Bytes())
	require.Equal(t, cost.Saved, p.SavedBytes(s))
	inner := layerOf(l)
	if tiled, is := inner.(Tiled); is {
		inner = tiled.Layer
	}
	_, routes := inner.(*Experts) // whose costs assume sizes of groups
	if _, is := inner.(*Beside); is {
		routes = true
	}
	if !routes {
		require.Equal(t, cost.ForwardExtra, max(forward-cost.Output, save-cost.Saved))
	}
	want := d.layer(l, act, slices.Clone(input))
	require.Equal(t, p.Batch.Rows*out, y.Len())
	largest := 1.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i, v := range want {
		require.InDelta(t, v, y.Float32s()[i], 2e-5*largest)
	}
	var list, again []*Tensor
	list = s.Tensors(list)
	var second Saved
	if r, is := l.(Resaver); is {
		second = r.Resave(p, x)
	} else {
		_, second = l.ForwardSave(p, x)
	}
	for i, tensor := range second.Tensors(again) {
		if tensor != nil && i > 0 { // the first is the output
			require.Equal(t, device.Mem(&list[i].View).Bytes(), device.Mem(&tensor.View).Bytes())
		}
	}
	p.ReleaseSaved(second)

	dy := p.Get(out)
	for i := range dy.Float32s() {
		dy.Float32s()[i] = float32(rng.NormFloat64())
	}
	slope := slices.Clone(dy.Float32s())
	p.Put(y)
	held := p.Used()
	var dx *Tensor
	backward := dy.Bytes() - x.Bytes() + p.Measure(func() { dx = l.Backward(p, x, s, dy) })
	if !routes {
		require.Equal(t, cost.BackwardExtra, backward)
	}
	require.NoError(t, p.Failed())
	_ = held
	bound := 2e-3
	if _, is := inner.(*AltUp); is { // whose streams are divided by their lengths
		bound = 1e-2
	}
	along := func(at []float64, got []float32, name string) {
		direction, sum, scale := make([]float64, len(at)), 0.0, 0.0
		before := slices.Clone(at)
		for i := range direction {
			direction[i] = rng.NormFloat64()
			sum += float64(got[i]) * direction[i]
			scale += math.Abs(float64(got[i]) * direction[i])
		}
		const h = 1e-5
		loss := func(h float64) (sum float64) {
			for i := range at {
				at[i] = before[i] + h*direction[i]
			}
			for i, v := range d.layer(l, act, slices.Clone(input)) {
				sum += v * float64(slope[i])
			}
			return sum
		}
		difference := (loss(h) - loss(-h)) / (2 * h)
		copy(at, before)
		require.InDelta(t, difference, sum, bound*max(scale, 0.05), name)
	}
	for _, w := range params {
		if w.Trains {
			along(d.values[w], g[w.Name], w.Name)
		} else {
			require.Zero(t, slices.Max(g[w.Name]), w.Name)
		}
	}
	if a, is := layerOf(l).(*Attention); is && a.Source != nil {
		along(d.source, dsource, "source")
	}
	if _, is := l.(*Embedding); !is {
		along(input, dx.Float32s(), "x")
		p.Put(dx)
	}
	p.ReleaseSaved(s)
	p.Put(x)
	require.Zero(t, p.Used())
}

func TestLayers(t *testing.T) { rapid.Check(t, layerProperty) }

func FuzzLayers(f *testing.F) { f.Fuzz(rapid.MakeFuzz(layerProperty)) }
