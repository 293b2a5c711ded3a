package layers

import (
	"context"
	"fmt"
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

// definition computes layers in float64 as their documentation defines them.
type definition struct {
	batch  Batch
	values map[*Param][]float64
	source []float64 // of a cross-attention
}

func (d *definition) linear(l *Linear, x []float64) (y []float64) {
	w := d.values[l.Weight]
	for row := range slices.Chunk(x, l.In) {
		for i := range l.Out {
			sum := 0.0
			if l.Bias != nil {
				sum = d.values[l.Bias][i]
			}
			for j, v := range row {
				if l.Transposed {
					sum += v * w[j*l.Out+i]
				} else {
					sum += v * w[i*l.In+j]
				}
			}
			y = append(y, sum)
		}
	}
	if a := l.Adapter; a != nil {
		down := d.linear(&Linear{Weight: a.ParamA, In: l.In, Out: a.Rank}, x)
		for i, v := range d.linear(&Linear{Weight: a.ParamB, In: a.Rank, Out: l.Out}, down) {
			y[i] += float64(a.Scale) * v
		}
	}
	return y
}

func (d *definition) norm(n Norm, x []float64) (y []float64) {
	if n.Weight == nil {
		return slices.Clone(x)
	}
	for row := range slices.Chunk(x, n.Weight.Len()) {
		if n.ScaleOnly {
			for i, v := range row {
				y = append(y, v*d.values[n.Weight][i])
			}
			continue
		}
		mean, square := 0.0, 0.0
		for _, v := range row {
			mean += v / float64(len(row))
		}
		if n.Bias == nil {
			mean = 0
		}
		for _, v := range row {
			square += (v - mean) * (v - mean) / float64(len(row))
		}
		for i, v := range row {
			w := d.values[n.Weight][i]
			if n.PlusOne {
				w++
			}
			if v = (v - mean) / math.Sqrt(square+float64(n.Eps)) * w; n.Bias != nil {
				v += d.values[n.Bias][i]
			}
			y = append(y, v)
		}
	}
	return y
}

// function returns an activation of a number by its name in the test.
var function = map[string]func(x float64) float64{
	"silu": func(x float64) float64 { return x / (1 + math.Exp(-x)) },
	"gelu": func(x float64) float64 { return x * (1 + math.Erf(x/math.Sqrt2)) / 2 },
	"tanh": func(x float64) float64 {
		return x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) / 2
	},
	"quick":      func(x float64) float64 { return x / (1 + math.Exp(-1.702*x)) },
	"square":     func(x float64) float64 { return max(x, 0) * max(x, 0) },
	"relu":       func(x float64) float64 { return max(x, 0) },
	"relu6":      func(x float64) float64 { return min(max(x, 0), 6) },
	"leaky":      func(x float64) float64 { return max(x, x/4) },
	"hard swish": func(x float64) float64 { return x * min(max(x+3, 0), 6) / 6 },
	"sigmoid":    func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	"tangent":    math.Tanh,
}

var square = Elementwise(func(x float32) float32 { return max(x, 0) * max(x, 0) }, func(x float32) float32 { return 2 * max(x, 0) })

func (d *definition) attention(b *Attention, x []float64) []float64 {
	h := d.norm(b.Norm, x)
	q, k, v := d.linear(&b.QKV[0], h), []float64(nil), []float64(nil)
	if b.Source != nil {
		k, v = d.linear(&b.QKV[1], d.source), d.linear(&b.QKV[2], d.source)
	} else if !b.packed() {
		k, v = d.linear(&b.QKV[1], h), d.linear(&b.QKV[2], h)
	} else {
		var all []float64
		all, q = q, nil
		for row := range slices.Chunk(all, b.queries()+2*b.keys()) {
			q, k, v = append(q, row[:b.queries()]...), append(k, row[b.queries():][:b.keys()]...), append(v, row[b.queries()+b.keys():]...)
		}
	}
	q, k = d.norm(b.QNorm, q), d.norm(b.KNorm, k)
	if b.Rope != nil {
		inverse, _, err := b.Rope.Rope().Frequencies(0)
		if err != nil {
			panic(err)
		}
		for _, of := range [][]float64{q, k} {
			heads := len(of) / d.batch.Rows / b.HeadDim
			for i := 0; i < len(of); i += b.HeadDim {
				position, half := float64(d.batch.Positions[i/(heads*b.HeadDim)]), b.HeadDim/2
				for j := range half {
					sin, cos := math.Sincos(position * float64(inverse[j]))
					one, two := of[i+j], of[i+half+j]
					of[i+j], of[i+half+j] = one*cos-two*sin, two*cos+one*sin
				}
			}
		}
	}
	out := make([]float64, len(q))
	for row := range d.batch.Rows {
		first := row - int(d.batch.Positions[row])
		last := row
		if b.Bidirectional {
			for last+1 < d.batch.Rows && d.batch.Positions[last+1] > 0 {
				last++
			}
		}
		if b.Window > 0 {
			first = max(first, row+1-b.Window)
		}
		if b.Source != nil {
			sequence := -1
			for _, position := range d.batch.Positions[:row+1] {
				if position == 0 {
					sequence++
				}
			}
			each := b.Source.Rows / d.batch.Sequences
			if first, last = sequence*each, (sequence+1)*each-1; b.Source.Starts != nil {
				first, last = b.Source.Starts[sequence], b.Source.Starts[sequence+1]-1
			}
		}
		for head := range b.Heads {
			kv := head / (b.Heads / b.KVHeads) * b.HeadDim
			sum := 0.0
			y := out[row*b.queries()+head*b.HeadDim:][:b.HeadDim]
			for j := first; j <= last; j++ {
				score := 0.0
				for e := range b.HeadDim {
					score += q[row*b.queries()+head*b.HeadDim+e] * k[j*b.keys()+kv+e]
				}
				weight := math.Exp(b.Scale * score)
				sum += weight
				for e := range y {
					y[e] += weight * v[j*b.keys()+kv+e]
				}
			}
			if b.Sinks != nil {
				sum += math.Exp(d.values[b.Sinks][head])
			}
			for e := range y {
				y[e] /= sum
			}
		}
	}
	return d.add(x, d.norm(b.Post, d.linear(&b.Out[0], out)))
}

func (d *definition) add(x, y []float64) []float64 {
	for i := range y {
		y[i] += x[i]
	}
	return y
}

// layer computes a layer; act is the name of its activation.
func (d *definition) layer(l Layer, act string, x []float64) []float64 {
	switch l := l.(type) {
	case *Linear:
		return d.linear(l, x)
	case *Norm:
		return d.norm(*l, x)
	case Activation:
		y := slices.Clone(x)
		for i := range y {
			y[i] = function[act](y[i])
		}
		return y
	case *MLP:
		h := d.norm(l.Norm, x)
		up := d.linear(&l.In[len(l.In)-1], h)
		if l.Bias != nil {
			for i := range up {
				up[i] += d.values[l.Bias][i%l.Bias.Len()]
			}
		}
		if len(l.In) == 2 {
			for i, g := range d.linear(&l.In[0], h) {
				up[i] *= function[act](g)
			}
		} else {
			for i := range up {
				up[i] = function[act](up[i])
			}
		}
		return d.add(x, d.norm(l.Post, d.linear(&l.Down[0], up)))
	case *Attention:
		return d.attention(l, x)
	case *Embedding:
		var y []float64
		for i, token := range d.batch.Tokens {
			width := l.Table.Shape[1]
			for j := range width {
				v := float64(l.Scale) * d.values[l.Table][int(token)*width+j]
				if l.Positions != nil {
					v += float64(l.Scale) * d.values[l.Positions][int(d.batch.Positions[i])*width+j]
				}
				y = append(y, v)
			}
		}
		return y
	case *Conv:
		return d.conv(l, x)
	case *GroupNorm:
		y := slices.Clone(x)
		channels := l.Weight.Len()
		for i, group := range slices.Collect(slices.Chunk(y, channels/l.Groups*l.Positions)) {
			mean, square := 0.0, 0.0
			for _, v := range group {
				mean += v / float64(len(group))
			}
			for _, v := range group {
				square += (v - mean) * (v - mean) / float64(len(group))
			}
			for j := range group {
				c := (i*channels/l.Groups + j/l.Positions) % channels
				group[j] = (group[j]-mean)/math.Sqrt(square+float64(l.Eps))*d.values[l.Weight][c] + d.values[l.Bias][c]
			}
		}
		return y
	case MaxPool:
		return eachWindow(l.Shape, x, slices.Max[[]float64])
	case AvgPool:
		return eachWindow(l.Shape, x, func(w []float64) (mean float64) {
			for _, v := range w {
				mean += v / float64(len(w))
			}
			return mean
		})
	case Resize:
		var y []float64
		for row := range slices.Chunk(x, l.Shape.Channels*l.Shape.Size[0]) {
			for c := range l.Shape.Channels {
				for o := range l.Shape.Out[0] {
					y = append(y, row[c*l.Shape.Size[0]+o*l.Shape.Size[0]/l.Shape.Out[0]])
				}
			}
		}
		return y
	case Sequential:
		for _, inner := range l {
			x = d.layer(inner, act, x)
		}
		return x
	case Residual:
		return d.add(x, d.layer(l.Layer, act, x))
	case Tiled:
		return d.layer(l.Layer, act, x)
	case Concat:
		y := d.layer(l.Layer, act, slices.Clone(x))
		rows, both := d.batch.Rows, []float64(nil)
		for i := range rows {
			both = slices.Concat(both, x[i*len(x)/rows:(i+1)*len(x)/rows], y[i*len(y)/rows:(i+1)*len(y)/rows])
		}
		return both
	}
	panic(fmt.Sprintf("no definition of %T", l))
}

// conv is a convolution of signals, channels first.
func (d *definition) conv(l *Conv, x []float64) (y []float64) {
	s, w := l.Shape, d.values[l.Weight]
	for row := range slices.Chunk(x, s.In*s.Size[0]) {
		for o := range s.Out {
			for at := range s.OutSize()[0] {
				sum := 0.0
				if l.Bias != nil {
					sum = d.values[l.Bias][o]
				}
				for c := range s.In {
					for k := range s.Kernel[0] {
						if i := at*max(1, s.Stride[0]) + k - s.PadBefore[0]; i >= 0 && i < s.Size[0] {
							sum += w[(o*s.In+c)*s.Kernel[0]+k] * row[c*s.Size[0]+i]
						}
					}
				}
				y = append(y, sum)
			}
		}
	}
	return y
}

// eachWindow calls f for the windows of signals without padding, channels first.
func eachWindow(p conv.PoolShape, x []float64, f func([]float64) float64) (y []float64) {
	for channel := range slices.Chunk(x, p.Size[0]) {
		for o := range p.OutSize()[0] {
			at := o * p.Stride[0]
			y = append(y, f(channel[at:at+p.Kernel[0]]))
		}
	}
	return y
}

// gradients is a window that adds gradients up.
type gradients map[string][]float32

func (g gradients) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(g[name]), snug.Into{Beta: 1}, nil
}

// someLayer draws a layer that takes rows of width elements, and the name of its activation.
func someLayer(t *rapid.T, width int) (l Layer, act string) {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	norm := func(name string, cols int) Norm {
		switch rapid.IntRange(0, 3).Draw(t, name) {
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
		switch rapid.IntRange(0, 2).Draw(t, "post") {
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
	switch rapid.IntRange(0, 6).Draw(t, "layer") {
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
			if flip("norms of heads") {
				b.QNorm, b.KNorm = *NewRMSNorm("qnorm", dim), *NewRMSNorm("knorm", dim)
			}
		}
		if flip("rope") {
			b.Rope = NewAngles(Rope{Kind: RopeDefault, Theta: 100, Dim: dim}, nil)
		}
		if len(b.QKV) == 3 && b.QNorm.Weight == nil && b.Rope == nil && flip("cross") {
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
	case *Attention:
		each(append(slices.Clone(l.QKV), l.Out...)...)
	case Residual:
		for _, inner := range l.Layer.(Sequential) {
			if l, is := inner.(*Linear); is {
				each(*l)
			}
		}
	}
	return params
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
	rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
	params := values(rng, l)
	_, attends := l.(*Attention)
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
	require.Equal(t, cost.ForwardExtra, max(forward-cost.Output, save-cost.Saved))
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
	require.Equal(t, cost.BackwardExtra, dy.Bytes()-x.Bytes()+p.Measure(func() { dx = l.Backward(p, x, s, dy) }))
	require.NoError(t, p.Failed())
	_ = held
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
		require.InDelta(t, difference, sum, 2e-3*max(scale, 0.05), name)
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
