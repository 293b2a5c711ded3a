package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun: both forms take the same course, and learn to prefer what is chosen.
func TestRun(t *testing.T) {
	all, some := run(settings{vocab: 512, embed: 16, cols: 32, pairs: 16, steps: 50})
	require.InDelta(t, math.Ln2, all.losses[0], 1e-12) // the model is the reference
	require.InDeltaSlice(t, all.losses, some.losses, 1e-5)
	require.InDeltaSlice(t, all.ahead, some.ahead, 1/16.)
	require.Less(t, mean(all.losses[40:]), 0.5)
	require.Greater(t, mean(all.ahead[40:]), max(0.8, 0.1+mean(all.ahead[:10])))
}

// TestDraw: a text has a target for each word of the answer and the end, and what is chosen follows from the reader.
func TestDraw(t *testing.T) {
	s := settings{vocab: 20, pairs: 50, steps: 1}
	b := draw(s)[0]
	require.Len(t, b.targets, s.rows())
	liked := make([]int, 2*s.pairs)
	for i := range liked {
		words, targets := b.words[3*i*length:][:3*length], b.targets[i*length:][:length]
		require.Negative(t, targets[0])
		answer := targets[prompt-1:]
		for r, target := range answer {
			if target == 0 {
				require.Positive(t, r)
				answer, targets = answer[:r], answer[r+1:]
				break
			}
			require.Equal(t, target, words[3*(prompt+r)+2])
			liked[i] += int(target+words[0]) % 2
		}
		require.NotContains(t, answer, int32(-1))
		for _, target := range targets {
			require.Negative(t, target)
		}
	}
	for i := 0; i < len(liked); i += 2 {
		require.Greater(t, liked[i], liked[i+1])
	}
}

// TestGradients: those of both forms are the finite differences of the loss in float64.
func TestGradients(t *testing.T) {
	s := settings{vocab: 11, embed: 3, cols: 5, pairs: 3, steps: 2}
	b := draw(s)[1]
	ref := make([]float32, s.rows())
	for i, target := range b.targets {
		if target >= 0 {
			ref[i] = -2 - float32(i%7)/4 // another model than the policy, so that margins are not 0
		}
	}
	for name, h := range map[string]head{"plain": newPlain(s), "chunked": newChunked(s, 5, 4)} {
		m := newModel(s)
		weights := map[string][]float64{}
		for name, p := range m.params() {
			weights[name] = make([]float64, len(p.w))
			for i := range p.w {
				p.w[i] *= 5 // away from the middle of the activation
				weights[name][i] = float64(p.w[i])
			}
		}
		logp, dlogp := make([]float32, s.rows()), make([]float32, s.rows())
		m.forward(b.words)
		h.forward(logp, m.y, m.out.w, b.targets)
		loss, _ := prefer(dlogp, logp, ref)
		require.InDelta(t, definition(s, b, weights, ref), loss, 1e-6, name)
		h.backward(m.dy, m.out.grad, dlogp, m.y, m.out.w, b.targets)
		m.backward(b.words)
		for param, p := range m.params() {
			largest := 0.0
			for i, w := range weights[param] {
				const by = 1e-4
				weights[param][i] = w + by
				more := definition(s, b, weights, ref)
				weights[param][i] = w - by
				slope := (more - definition(s, b, weights, ref)) / (2 * by)
				weights[param][i] = w
				require.InDelta(t, slope, p.grad[i], 1e-6, "%s: %s[%d]", name, param, i)
				largest = max(largest, math.Abs(slope))
			}
			require.Greater(t, largest, 0.01, param) // so that the bound means something
		}
	}
}

// definition is the loss, of all that the comments of model and prefer say.
func definition(s settings, b batch, w map[string][]float64, ref []float32) (loss float64) {
	product := func(x, w []float64) (list []float64) { // x·wᵀ
		for row := range len(w) / len(x) {
			sum := 0.0
			for i := range x {
				sum += x[i] * w[row*len(x)+i]
			}
			list = append(list, sum)
		}
		return list
	}
	ratio := make([]float64, 2*s.pairs) // log policy − log ref
	for r, target := range b.targets {
		if target < 0 {
			continue
		}
		var x []float64
		for _, word := range b.words[3*r:][:3] {
			x = append(x, w["table"][int(word)*s.embed:][:s.embed]...)
		}
		y := product(x, w["hidden"])
		for i := range y {
			z := y[i] + w["bias"][i]
			y[i] = z / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(z+0.044715*z*z*z)))
		}
		logits, sum := product(y, w["out"]), 0.0
		for _, z := range logits {
			sum += math.Exp(z)
		}
		ratio[r/length] += logits[target] - math.Log(sum) - float64(ref[r])
	}
	for i := 0; i < len(ratio); i += 2 {
		loss += math.Log(1+math.Exp(-beta*(ratio[i]-ratio[i+1]))) / float64(s.pairs)
	}
	return loss
}
