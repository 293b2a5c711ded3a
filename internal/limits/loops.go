package limits

// fma does 8 multiplications and additions a step, in 8 independent sums.
func fma(steps int) {
	var a, b, c, d, e, f, g, h float32
	x := float32(steps)
	for range steps {
		a = a*x + x
		b = b*x + x
		c = c*x + x
		d = d*x + x
		e = e*x + x
		f = f*x + x
		g = g*x + x
		h = h*x + x
	}
	sink.Store(uint64(a + b + c + d + e + f + g + h))
}
