package main

import (
	"context"
	"math"
	"math/rand/v2"
)

// sampleStart is what the model goes on from.
const sampleStart = "\nfunc "

// sample returns text that the model writes after start, drawn with
// temperature 0.7. The same weights and seed give the same text.
func (t *trainer) sample(ctx context.Context, start string) (string, error) {
	rng := rand.New(rand.NewPCG(t.seed, 0x5a))
	tokens := make([]int32, 0, t.context)
	for _, k := range t.data.vocab.encode([]byte(start)) {
		tokens = append(tokens, int32(k))
	}
	logits := make([]float32, t.vocab)
	known := 256 + len(t.data.vocab.words) // a short text may leave tokens unused
	for range t.sampled {
		window := tokens[max(0, len(tokens)-t.context):]
		next, err := t.next(ctx, window, logits)
		if err != nil {
			return "", err
		}
		tokens = append(tokens, draw(next[:known], 0.7, rng.Float64()))
	}
	return t.data.vocab.decode(tokens), nil
}

// next computes the logits of the token after window. The model runs on
// a multiple of 32 tokens, so that few sizes of buffers are needed; causal
// attention hides the padding.
func (t *trainer) next(ctx context.Context, window []int32, logits []float32) ([]float32, error) {
	n := min((len(window)+31)/32*32, t.context)
	t.shape(1, n)
	inputs := t.inputs[:n]
	clear(inputs)
	copy(inputs, window)
	h, err := t.lastHidden(ctx, inputs)
	if err != nil {
		return nil, err
	}
	defer t.pool.put(h)
	return logits, t.logits(logits, sub(h.View, (len(window)-1)*t.dim, t.dim))
}

// draw picks an index by softmax(logits/temperature) and a uniform number u.
func draw(logits []float32, temperature, u float64) int32 {
	top := logits[0]
	for _, x := range logits {
		top = max(top, x)
	}
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x-top) / temperature)
	}
	u *= sum
	for i, x := range logits {
		if u -= math.Exp(float64(x-top) / temperature); u <= 0 {
			return int32(i)
		}
	}
	return int32(len(logits) - 1)
}
