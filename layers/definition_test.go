package layers

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug/conv"
)

// definition computes layers in float64 as their documentation defines them.
type definition struct {
	batch  Batch
	values map[*Param][]float64
	source []float64 // of a cross-attention
	chosen [][]int   // experts of each row
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
	if n.none() {
		y = slices.Clone(x)
		for i := range y {
			y[i] *= max(float64(n.Factor), map[bool]float64{true: 1}[n.Factor == 0])
		}
		return y
	}
	for at, row := range slices.Collect(slices.Chunk(x, n.cols())) {
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
		if n.Bias == nil && !n.Centered {
			mean = 0
		}
		for _, v := range row {
			square += (v - mean) * (v - mean) / float64(len(row))
		}
		for i, v := range row {
			w := 1.0
			if n.Weight != nil {
				w = d.values[n.Weight][at%max(1, n.Groups)*n.cols()+i]
			}
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
	var gate []float64
	if b.Gated {
		var all []float64
		all, q = q, nil
		for head := range slices.Chunk(all, 2*b.HeadDim) {
			q, gate = append(q, head[:b.HeadDim]...), append(gate, head[b.HeadDim:]...)
		}
	}
	if b.Source != nil {
		k, v = d.linear(&b.QKV[1], d.source), d.linear(&b.QKV[2], d.source)
	} else if b.Interleaved {
		var all []float64
		all, q = q, nil
		for head := range slices.Chunk(all, 3*b.HeadDim) {
			q, k, v = append(q, head[:b.HeadDim]...), append(k, head[b.HeadDim:2*b.HeadDim]...), append(v, head[2*b.HeadDim:]...)
		}
	} else if !b.packed() {
		k, v = d.linear(&b.QKV[1], h), d.linear(&b.QKV[len(b.QKV)-1], h)
	} else {
		var all []float64
		all, q = q, nil
		for row := range slices.Chunk(all, b.queries()+2*b.keys()) {
			q, k, v = append(q, row[:b.queries()]...), append(k, row[b.queries():][:b.keys()]...), append(v, row[b.queries()+b.keys():]...)
		}
	}
	if v = d.norm(b.VNorm, v); !b.NormLast {
		q, k = d.norm(b.QNorm, q), d.norm(b.KNorm, k)
	}
	if b.Rope != nil {
		inverse, _, err := b.Rope.Rope().Frequencies(0)
		if err != nil {
			panic(err)
		}
		for n, of := range [][]float64{q, k} {
			heads := len(of) / d.batch.Rows / b.HeadDim
			for i := 0; i < len(of); i += b.HeadDim {
				position, half := float64(d.batch.Positions[i/(heads*b.HeadDim)]), b.HeadDim/2
				scale := 1.0
				if r := b.Rope.Rope(); n == 0 && r.QueryScale != 0 {
					scale += r.QueryScale * math.Log(1+math.Floor(position/float64(r.OriginalPositions)))
				}
				for j := range half {
					sin, cos := math.Sincos(position * float64(inverse[j]))
					one, two := of[i+j], of[i+half+j]
					of[i+j], of[i+half+j] = scale*(one*cos-two*sin), scale*(two*cos+one*sin)
				}
			}
		}
	}
	if b.NormLast {
		q, k = d.norm(b.QNorm, q), d.norm(b.KNorm, k)
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
	for i, z := range gate {
		out[i] /= 1 + math.Exp(-z)
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
// deltaNet returns norm(delta(q, k, v, g, beta))·silu(z).
func (d *definition) deltaNet(l *DeltaNet, h []float64) (y []float64) {
	each, keys := l.Heads/l.KeyHeads, l.keys()
	qkv, z, beta, a := d.linear(&l.In[0], h), []float64(nil), []float64(nil), []float64(nil)
	if !l.Interleaved {
		z, beta, a = d.linear(&l.In[1], h), d.linear(&l.In[2], h), d.linear(&l.In[3], h)
	} else {
		all := qkv
		qkv = nil
		for row := range slices.Chunk(all, l.In[0].Out) {
			var parts [3][]float64
			for head := range slices.Chunk(row, len(row)/l.KeyHeads) {
				for i, n := range []int{l.KeyDim, l.KeyDim, each * l.Dim} {
					parts[i], head = append(parts[i], head[:n]...), head[n:]
				}
				z = append(z, head...)
			}
			qkv = append(qkv, slices.Concat(parts[:]...)...)
		}
		for head := range slices.Chunk(d.linear(&l.In[1], h), 2*each) {
			beta, a = append(beta, head[:each]...), append(a, head[each:]...)
		}
	}
	n := l.channels()
	unit := func(x []float64) []float64 {
		sum := 1e-6
		for _, v := range x {
			sum += v * v
		}
		x = slices.Clone(x)
		for i := range x {
			x[i] /= math.Sqrt(sum)
		}
		return x
	}
	for s := range d.batch.Sequences {
		lo := s * d.batch.Rows / d.batch.Sequences
		if d.batch.Starts != nil {
			lo = d.batch.Starts[s]
		}
		states := make([][]float64, l.Heads)
		for row := lo; row < d.batch.end(s); row++ {
			mixed := make([]float64, n)
			for c := range mixed {
				for tap := range l.Taps {
					if from := row - l.Taps + 1 + tap; from >= lo {
						mixed[c] += d.values[l.Conv][c*l.Taps+tap] * qkv[from*n+c]
					}
				}
				mixed[c] /= 1 + math.Exp(-mixed[c])
			}
			for head := range l.Heads {
				if states[head] == nil {
					states[head] = make([]float64, l.KeyDim*l.Dim)
				}
				state, at := states[head], head/each*l.KeyDim
				q, k, v := unit(mixed[at:][:l.KeyDim]), unit(mixed[keys+at:][:l.KeyDim]), mixed[2*keys+head*l.Dim:][:l.Dim]
				step := 1 / (1 + math.Exp(-beta[row*l.Heads+head]))
				g := -math.Exp(d.values[l.ALog][head]) * math.Log1p(math.Exp(a[row*l.Heads+head]+d.values[l.Bias][head]))
				for j := range l.Dim {
					was := 0.0
					for i := range k {
						state[i*l.Dim+j] *= math.Exp(g)
						was += state[i*l.Dim+j] * k[i]
					}
					out := 0.0
					for i := range k {
						state[i*l.Dim+j] += k[i] * step * (v[j] - was)
						out += state[i*l.Dim+j] * q[i] / math.Sqrt(float64(l.KeyDim))
					}
					y = append(y, out)
				}
			}
		}
	}
	y = d.norm(l.Inner, y)
	for i, v := range z {
		y[i] *= v / (1 + math.Exp(-v))
	}
	return y
}

// mamba2 returns the gated norm of the state space's output.
func (d *definition) mamba2(l *Mamba2, in []float64) (y []float64) {
	n, width := l.channels(), l.width()
	factor := func(i int) float64 {
		if l.Factors[i] == 0 {
			return 1
		}
		return float64(l.Factors[i])
	}
	part := func(c int) int { // of a channel
		switch {
		case c < l.values():
			return 1
		case c < l.values()+l.keys():
			return 2
		}
		return 3
	}
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	for s := range d.batch.Sequences {
		lo := s * d.batch.Rows / d.batch.Sequences
		if d.batch.Starts != nil {
			lo = d.batch.Starts[s]
		}
		state := make([]float64, l.values()*l.StateDim)
		for row := lo; row < d.batch.end(s); row++ {
			mixed := make([]float64, n)
			for c := range mixed {
				if l.ConvBias != nil {
					mixed[c] = d.values[l.ConvBias][c]
				}
				for tap := range l.Taps {
					if from := row - l.Taps + 1 + tap; from >= lo {
						mixed[c] += d.values[l.Conv][c*l.Taps+tap] * factor(part(c)) * in[from*width+l.values()+c]
					}
				}
				mixed[c] = silu(mixed[c])
			}
			out := make([]float64, l.values())
			for head := range l.Heads {
				dt := math.Log1p(math.Exp(factor(4)*in[row*width+l.values()+n+head] + d.values[l.Bias][head]))
				if dt = max(dt, float64(l.Min)); l.Max > 0 {
					dt = min(dt, float64(l.Max))
				}
				group := head * l.Groups / l.Heads
				for j := range l.Dim {
					at := head*l.Dim + j
					sum := d.values[l.Skip][head] * mixed[at]
					for i := range l.StateDim {
						state := &state[at*l.StateDim+i]
						*state = *state*math.Exp(-math.Exp(d.values[l.ALog][head])*dt) + mixed[l.values()+group*l.StateDim+i]*dt*mixed[at]
						sum += mixed[l.values()+l.keys()+group*l.StateDim+i] * *state
					}
					out[at] = sum
				}
			}
			gate := func() {
				for i := range out {
					out[i] *= silu(factor(0) * in[row*width+i])
				}
			}
			if l.Inner == nil || !l.Before {
				gate()
			}
			if l.Inner != nil {
				size := l.values() / max(1, l.InnerGroups)
				for i := range max(1, l.InnerGroups) {
					group, sum := out[i*size:][:size], 0.0
					for _, v := range group {
						sum += v * v / float64(size)
					}
					for j := range group {
						group[j] *= d.values[l.Inner][i*size+j] / math.Sqrt(sum+float64(l.Eps))
					}
				}
			}
			if l.Inner != nil && l.Before {
				gate()
			}
			y = append(y, out...)
		}
	}
	return y
}

// shortConv returns c·conv(b·u).
func (d *definition) shortConv(l *ShortConv, in []float64) (y []float64) {
	n, at := l.width(), func(row, part, channel int) float64 { return in[(3*row+part)*l.width()+channel] }
	for s := range d.batch.Sequences {
		lo := s * d.batch.Rows / d.batch.Sequences
		if d.batch.Starts != nil {
			lo = d.batch.Starts[s]
		}
		for row := lo; row < d.batch.end(s); row++ {
			for c := range n {
				sum := 0.0
				if l.Bias != nil {
					sum = d.values[l.Bias][c]
				}
				for tap := range l.Taps {
					if from := row - l.Taps + 1 + tap; from >= lo {
						sum += d.values[l.Conv][c*l.Taps+tap] * at(from, 0, c) * at(from, 2, c)
					}
				}
				y = append(y, sum*at(row, 1, c))
			}
		}
	}
	return y
}

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
			for i, g := range d.sparse(l.Sparsity, l.In[0].Out, d.linear(&l.In[0], h)) {
				if l.GateFactor != 0 {
					g *= float64(l.GateFactor)
				}
				up[i] *= function[act](g)
			}
		} else {
			for i := range up {
				up[i] = function[act](up[i])
			}
		}
		return d.add(x, d.norm(l.Post, d.linear(&l.Down[0], up)))
	case *ShortConv:
		return d.add(x, d.norm(l.Post, d.linear(&l.Out[0], d.shortConv(l, d.linear(&l.In[0], d.norm(l.Norm, x))))))
	case *Mamba2:
		return d.add(x, d.norm(l.Post, d.linear(&l.Out[0], d.mamba2(l, d.linear(&l.In[0], d.norm(l.Norm, x))))))
	case *DeltaNet:
		return d.add(x, d.norm(l.Post, d.linear(&l.Out[0], d.deltaNet(l, d.norm(l.Norm, x)))))
	case *Attention:
		return d.attention(l, x)
	case *Parallel:
		h := d.norm(l.Norm, x)
		y := slices.Clone(x)
		for _, half := range l.inside() {
			for i, z := range d.layer(half, "silu", h) {
				y[i] += z - h[i]
			}
		}
		return y
	case *Experts:
		return d.experts(l, x)
	case *AltUp:
		return d.altUp(l, x)
	case *Beside:
		y := d.experts(l.Experts, x)
		for i, z := range d.layer(l.MLP, "silu", x) {
			y[i] += z - 2*x[i]
		}
		return d.add(x, d.norm(l.Post, y))
	case *Latent:
		return d.latent(l, x)
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
	case *Scaled:
		y := d.layer(l.Layer, act, x)
		for i := range y {
			y[i] *= d.values[l.Factor][0]
		}
		return y
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
