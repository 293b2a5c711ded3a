package main

import (
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug/layers"
)

const vocabulary, answers = 16, 4

// batch returns clips of a moving ball, and for each a question of random words. One word asks in which direction the ball moves: 0 up
// or down, 1 left or right. The label of the last word is the answer, 0 to 3; the other words have no label.
func batch(seed uint64) layers.Sample {
	rng := rand.New(rand.NewPCG(1, seed))
	s := layers.Sample{Sequences: clips, Decoder: &layers.Sample{Sequences: clips}}
	for range clips {
		y, x := 10+12*rng.Float64(), 10+12*rng.Float64()
		dy, dx := 1.5*rng.NormFloat64(), 1.5*rng.NormFloat64()
		for i := range frames * size * size {
			f, row, column := float64(i/(size*size)), float64(i/size%size), float64(i%size)
			far := math.Hypot(row-y-f*dy, column-x-f*dx)
			s.X = append(s.X, float32(math.Exp(-far*far/9)+0.02*rng.NormFloat64()))
		}
		asks, at := rng.IntN(2), rng.IntN(words)
		for i := range words {
			word := 2 + rng.IntN(vocabulary-2)
			if i == at {
				word = asks
			}
			s.Decoder.Tokens, s.Decoder.Labels = append(s.Decoder.Tokens, int32(word)), append(s.Decoder.Labels, -1)
		}
		answer := int32(2 * asks)
		if []float64{dy, dx}[asks] > 0 {
			answer++
		}
		s.Decoder.Labels[len(s.Decoder.Labels)-1] = answer
	}
	return s
}
