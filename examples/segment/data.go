package main

import (
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug/vision/segment"
)

// scene is what an image shows, in units of its side: a disc on noise.
type scene struct {
	y, x, r float64
	color   [3]float64
	rng     *rand.Rand
	box     bool // says what is meant, else a point does
}

func draw(i int) scene {
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	s := scene{y: 0.2 + 0.6*rng.Float64(), x: 0.2 + 0.6*rng.Float64(), r: 0.1 + 0.1*rng.Float64(), rng: rng, box: i%2 == 0}
	for c := range s.color {
		s.color[c] = 2 * rng.NormFloat64()
	}
	return s
}

// inside reports whether pixel at of an image of n by n pixels is in the disc.
func (s scene) inside(at, n int) bool {
	return math.Hypot((float64(at/n)+0.5)/float64(n)-s.y, (float64(at%n)+0.5)/float64(n)-s.x) < s.r
}

// pixels returns the image, [3, n, n].
func (s scene) pixels(n int) []float32 {
	x := make([]float32, 3*n*n)
	for i := range x {
		if x[i] = float32(0.3 * s.rng.NormFloat64()); s.inside(i%(n*n), n) {
			x[i] = float32(s.color[i/(n*n)])
		}
	}
	return x
}

// target returns the mask of the disc, [n, n].
func (s scene) target(n int) []float32 {
	x := make([]float32, n*n)
	for i := range x {
		if s.inside(i, n) {
			x[i] = 1
		}
	}
	return x
}

// prompt returns what a user says, in pixels of an image of n by n.
func (s scene) prompt(n int) (p segment.Prompt) {
	to := func(v float64) float32 { return float32(v * float64(n)) }
	if s.box {
		p.Box = &segment.Box{Left: to(s.x - s.r), Top: to(s.y - s.r), Right: to(s.x + s.r), Bottom: to(s.y + s.r)}
	} else {
		p.Points = []segment.Point{{X: to(s.x), Y: to(s.y)}}
	}
	return p
}
