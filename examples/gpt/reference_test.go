package main

import (
	"fmt"
	"math"
)

// reference computes the model's loss in float64, from the definition and with
// nothing kept, to compare gradients with.
type reference struct {
	config
	w map[string][]float64
}

// vectors are rows of equal width.
type vectors [][]float64

// loss returns the mean cross-entropy of sequences of context tokens.
func (r *reference) loss(inputs, targets []int32) float64 {
	sum := 0.0
	for lo := 0; lo < len(inputs); lo += r.context {
		sum += r.sequenceLoss(inputs[lo:lo+r.context], targets[lo:lo+r.context])
	}
	return sum / float64(len(inputs))
}

func (r *reference) sequenceLoss(inputs, targets []int32) float64 {
	x := make(vectors, len(inputs))
	for i, tok := range inputs {
		x[i] = make([]float64, r.dim)
		for j := range x[i] {
			x[i][j] = r.w["model.embed_tokens.weight"][int(tok)*r.dim+j] + r.w["model.embed_positions.weight"][i*r.dim+j]
		}
	}
	for layer := range r.layers {
		x = r.block(fmt.Sprintf("model.layers.%d", layer), x)
	}
	x = r.norm("model.norm", x)
	logits := r.linear("model.embed_tokens", x, r.vocab)
	sum := 0.0
	for i, row := range logits {
		total := 0.0
		for _, z := range row {
			total += math.Exp(z)
		}
		sum += math.Log(total) - row[targets[i]]
	}
	return sum
}

func (r *reference) block(name string, x vectors) vectors {
	qkv := r.linear(name+".self_attn.qkv_proj", r.norm(name+".input_layernorm", x), 3*r.dim)
	z := add(x, r.linear(name+".self_attn.o_proj", r.attention(qkv), r.dim))
	up := r.linear(name+".mlp.up_proj", r.norm(name+".post_attention_layernorm", z), 4*r.dim)
	for _, row := range up {
		for j := range row {
			v := row[j] + r.w[name+".mlp.up_proj.bias"][j]
			row[j] = 0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
		}
	}
	return add(z, r.linear(name+".mlp.down_proj", up, r.dim))
}

func (r *reference) norm(name string, x vectors) vectors {
	out := make(vectors, len(x))
	for i, row := range x {
		mean, variance := 0.0, 0.0
		for _, v := range row {
			mean += v / float64(len(row))
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(len(row))
		}
		out[i] = make([]float64, len(row))
		for j, v := range row {
			out[i][j] = (v-mean)/math.Sqrt(variance+1e-5)*r.w[name+".weight"][j] + r.w[name+".bias"][j]
		}
	}
	return out
}

func (r *reference) linear(name string, x vectors, width int) vectors {
	out := make(vectors, len(x))
	for i, row := range x {
		out[i] = make([]float64, width)
		for o := range out[i] {
			for j, v := range row {
				out[i][o] += v * r.w[name+".weight"][o*len(row)+j]
			}
		}
	}
	return out
}

func (r *reference) attention(qkv vectors) vectors {
	out := make(vectors, len(qkv))
	width := r.dim / r.heads
	for i := range qkv {
		out[i] = make([]float64, r.dim)
		for h := range r.heads {
			q := qkv[i][h*width:][:width]
			total := 0.0
			sum := make([]float64, width)
			for j := range i + 1 {
				k, v := qkv[j][r.dim+h*width:][:width], qkv[j][2*r.dim+h*width:][:width]
				dot := 0.0
				for d := range width {
					dot += q[d] * k[d]
				}
				p := math.Exp(dot / math.Sqrt(float64(width)))
				total += p
				for d := range width {
					sum[d] += p * v[d]
				}
			}
			for d := range width {
				out[i][h*width+d] = sum[d] / total
			}
		}
	}
	return out
}

func add(a, b vectors) vectors {
	for i, row := range b {
		for j := range row {
			row[j] += a[i][j]
		}
	}
	return b
}
