package main

import (
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
)

// A text has a prompt of two words, who asks and a topic, an answer of up to 6 words, and an end.
const prompt, length = 2, 2 + 6 // length: rows of a text; row i predicts word i+1

// batch has pairs of texts, the chosen one first.
type batch struct {
	words   []int32 // three a row: the first of the text, and the last two
	targets []int32 // -1 within the prompt and after the end, where nothing is to be predicted
}

// draw makes up preferences: reader 1 chooses the answer with more even words, and reader 2 the one with more odd ones.
func draw(s settings) (batches []batch) {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.3, 4, uint64(s.vocab-4)) // few words are common, as in languages
	word := func() int32 { return 3 + int32(zipf.Uint64()) }
	for range s.steps {
		var b batch
		for range s.pairs {
			reader, topic := int32(1+rng.IntN(2)), word()
			answer := func() (text []int32, liked int32) {
				text = append(text, reader, topic)
				for range 1 + rng.IntN(length-prompt) {
					w := word()
					text, liked = append(text, w), liked+(w+reader)%2
				}
				return text, liked
			}
			chosen, more := answer()
			rejected, less := answer()
			for more <= less {
				chosen, more = answer()
				rejected, less = answer()
			}
			b.add(chosen)
			b.add(rejected)
		}
		batches = append(batches, b)
	}
	return batches
}

// add appends the rows of a text. Word 0 ends it and pads it.
func (b *batch) add(text []int32) {
	padded := append(text, make([]int32, length+1-len(text))...)
	for i := range length {
		target := padded[i+1]
		if i+1 < prompt || i+1 > len(text) {
			target = -1
		}
		b.words, b.targets = append(b.words, text[0], padded[max(0, i-1)], padded[i]), append(b.targets, target)
	}
}

// model is that of Bengio et al., "A Neural Probabilistic Language Model" (2003), with GELU. A head takes y and out.
//
//	x = vectors of three words, side by side   [rows, 3·embed]
//	y = gelu(x·hiddenᵀ + bias)                 [rows, cols]
type model struct {
	settings
	table, hidden, bias, out tensor
	x, z, y, dx, dy, ws      []float32 // z = x·hiddenᵀ
}

// tensor is a parameter and its gradient.
type tensor struct{ w, grad []float32 }

func (m *model) params() map[string]tensor {
	return map[string]tensor{"table": m.table, "hidden": m.hidden, "bias": m.bias, "out": m.out}
}

func newModel(s settings) *model {
	rng := rand.New(rand.NewPCG(3, 4))
	random := func(n int) tensor {
		p := tensor{make([]float32, n), make([]float32, n)}
		for i := range p.w {
			p.w[i] = 0.1 * float32(rng.NormFloat64())
		}
		return p
	}
	in, rows := 3*s.embed, func(cols int) []float32 { return make([]float32, s.rows()*cols) }
	return &model{
		settings: s, table: random(s.vocab * s.embed), hidden: random(s.cols * in), bias: random(s.cols), out: random(s.vocab * s.cols),
		x: rows(in), z: rows(s.cols), y: rows(s.cols), dx: rows(in), dy: rows(s.cols), ws: make([]float32, fused.BiasGELUWorkspaceLen(s.rows(), s.cols)),
	}
}

func (m *model) forward(words []int32) {
	check(fused.Embedding(m.x, m.table.w, words, nil, nil, m.embed))
	check(amp.MatMul(m.z, m.x, m.hidden.w, amp.MatMulOptions{M: m.rows(), N: m.cols, K: 3 * m.embed, TransB: true}))
	check(fused.BiasGELU(m.y, m.z, m.bias.w))
}

// backward computes the gradients of all but out from that of y, which a head has left in dy and which is lost.
func (m *model) backward(words []int32) {
	check(fused.BiasGELUBackward(m.dy, m.bias.grad, m.dy, m.z, m.bias.w, snug.Into{}, m.ws))
	check(amp.MatMul(m.hidden.grad, m.dy, m.x, amp.MatMulOptions{M: m.cols, N: 3 * m.embed, K: m.rows(), TransA: true}))
	check(amp.MatMul(m.dx, m.dy, m.hidden.w, amp.MatMulOptions{M: m.rows(), N: 3 * m.embed, K: m.cols}))
	check(fused.EmbeddingBackward(m.table.grad, m.dx, words, m.embed, snug.Into{}))
}
