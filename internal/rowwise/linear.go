package rowwise

func add(dst, a, b []float32, _ bool) {
	for i, x := range a {
		dst[i] = x + b[i]
	}
}

func addNext(dst, a, b, _, _ []float32, _ bool) { add(dst, a, b, false) }

func addScaled(acc, x []float32, alpha float32, _, _ []float32) {
	for i, v := range x {
		acc[i] += float32(alpha * v)
	}
}

func scaleAbove(x []float32, a, threshold float32) {
	for i, v := range x {
		if v < threshold {
			x[i] = 0
		} else {
			x[i] = a * v
		}
	}
}

func scale(dst, src []float32, a float32) {
	for i, x := range src {
		dst[i] = a * x
	}
}

func axpby(acc, x []float32, alpha, beta float32) {
	for i, v := range x {
		acc[i] = float32(beta*acc[i]) + float32(alpha*v)
	}
}

func dropout(dst, src []float32, words []uint32, threshold uint32, scale float32, _ bool) {
	for i, x := range src {
		if words[i] >= threshold {
			dst[i] = scale * x
		} else {
			dst[i] = 0
		}
	}
}

func rotate(a, b, cos, sin []float32, turn float32, heads, stride int) {
	for h := range heads {
		a, b := a[h*stride:], b[h*stride:]
		for i, c := range cos {
			x, y, s := a[i], b[i], turn*sin[i]
			a[i] = float32(x*c) - float32(y*s)
			b[i] = float32(y*c) + float32(x*s)
		}
	}
}

func rotatePairs(cos, sin, x []float32, turn float32) {
	for i, c := range cos {
		pair, s := x[2*i:][:2], turn*sin[i]
		a, b := pair[0], pair[1]
		pair[0] = float32(a*c) - float32(b*s)
		pair[1] = float32(b*c) + float32(a*s)
	}
}
