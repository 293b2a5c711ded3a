package main

import (
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug/layers"
)

// batch returns clips of a ball that moves, and in the target of each frame how far it moves a frame, down and to the right.
func batch(seed uint64) layers.Sample {
	rng := rand.New(rand.NewPCG(1, seed))
	s := layers.Sample{Sequences: clips}
	for range clips {
		y, x := 16+32*rng.Float64(), 16+32*rng.Float64()
		dy, dx := 3*rng.NormFloat64(), 3*rng.NormFloat64()
		for f := range frames {
			at, to := y+float64(f)*dy, x+float64(f)*dx
			for i := range size * size {
				far := math.Hypot(float64(i/size)-at, float64(i%size)-to)
				s.X = append(s.X, float32(math.Exp(-far*far/18)+0.02*rng.NormFloat64()))
			}
			s.Y = append(s.Y, float32(dy/3), float32(dx/3))
		}
	}
	return s
}
