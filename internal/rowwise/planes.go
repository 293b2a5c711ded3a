package rowwise

// Loops over the planes of images, whose channels have their own factors, and over rows of which every column has its own.

func centeredSums(x []float32, center float32) (sum, squares float32) {
	var s, q [4]float32
	for i, v := range x {
		v -= center
		s[i%4] += v
		q[i%4] += float32(v * v)
	}
	return total(s), total(q)
}

func centeredDots(dy, x []float32, center float32) (sum, dot float32) {
	var s, q [4]float32
	for i, v := range x {
		s[i%4] += dy[i]
		q[i%4] += float32(dy[i] * (v - center))
	}
	return total(s), total(q)
}

func affine(dst, x []float32, center, scale, shift float32, _ bool) {
	for i, v := range x {
		dst[i] = float32((v-center)*scale) + shift
	}
}

func affineGrad(dx, dy, x []float32, center, a, b, c, beta float32, _ bool) {
	for i, v := range x {
		addGrad(&dx[i], float32(a*dy[i])+float32(b*(v-center))+c, beta)
	}
}

func columnSums(sum, squares, x, center []float32) {
	for i, v := range x {
		v -= center[i]
		sum[i] += v
		squares[i] += float32(v * v)
	}
}

func columnDots(sum, dot, dy, x, center []float32) {
	for i, v := range x {
		sum[i] += dy[i]
		dot[i] += float32(dy[i] * (v - center[i]))
	}
}

func columnAffine(dst, x, center, scale, shift []float32, _ bool) {
	for i, v := range x {
		dst[i] = float32((v-center[i])*scale[i]) + shift[i]
	}
}

func columnAffineGrad(dx, dy, x, center, a, b, c []float32, beta float32, _ bool) {
	for i, v := range x {
		addGrad(&dx[i], float32(a[i]*dy[i])+float32(b[i]*(v-center[i]))+c[i], beta)
	}
}

// addGrad sets acc to beta·acc + g, and does not read it where beta is 0.
func addGrad(acc *float32, g, beta float32) {
	if beta != 0 {
		g += float32(beta * *acc)
	}
	*acc = g
}
