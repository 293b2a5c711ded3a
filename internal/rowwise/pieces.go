package rowwise

// Activations that are made of pieces. A NaN is none of a comparison's sides, and so it stays a NaN. Products are rounded
// before they are added to, so that all tiers have the same bits.

// ramp returns the ramp of x from 0 to high·scale.
func ramp(x, shift, high, scale float32) float32 {
	x += shift
	if 0 > x {
		x = 0
	}
	if high < x {
		x = high
	}
	return float32(x * scale)
}

func ramps(dst, x []float32, shift, high, scale float32, _ bool) {
	for i, v := range x {
		dst[i] = ramp(v, shift, high, scale)
	}
}

func rampMul(dst, x []float32, floor, shift, high, scale float32, _ bool) {
	for i, v := range x {
		r := ramp(v, shift, high, scale)
		if floor > v {
			v = floor
		}
		dst[i] = v * r
	}
}

func leaky(dst, x []float32, slope float32, _ bool) {
	for i, v := range x {
		y := float32(slope * v)
		if v > 0 {
			y = v
		}
		dst[i] = y
	}
}

func sigmoid(dst, x []float32, _ bool) {
	for i, v := range x {
		dst[i] = sigmoidOf(v)
	}
}

func pieceSlopes(dx, dy, x []float32, low, last, below, a, b, above float32, _ bool) {
	for i, v := range x {
		s := float32(a*v) + b
		if v <= low {
			s = below
		}
		if v > last {
			s = above
		}
		dx[i] = dy[i] * s
	}
}

func outputSlopes(dx, dy, y []float32, a, b float32, _ bool) {
	for i, v := range y {
		s := float32((b-v)*v) + a
		dx[i] = dy[i] * s
	}
}
