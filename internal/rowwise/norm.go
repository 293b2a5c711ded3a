package rowwise

import "math"

func dot(x, y []float32) float32 {
	var s0, s1, s2, s3 float32
	for y = y[:len(x)]; len(x) >= 4 && len(y) >= 4; x, y = x[4:], y[4:] {
		s0 += float32(x[0] * y[0])
		s1 += float32(x[1] * y[1])
		s2 += float32(x[2] * y[2])
		s3 += float32(x[3] * y[3])
	}
	for i, v := range x {
		s0 += float32(v * y[i])
	}
	return (s0 + s1) + (s2 + s3)
}

func finite(x []float32) bool {
	for _, v := range x {
		if v-v != 0 {
			return false
		}
	}
	return true
}

// total adds up four lanes.
func total(lanes [4]float32) float32 { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) }

func layerNorm(dst, x, gamma, beta []float32, eps float32, _ bool) (mean, rstd float32) {
	var lanes [4]float32
	for i, v := range x {
		lanes[i%4] += v
	}
	mean = total(lanes) / float32(len(x))
	rstd = inverseRoot(x, mean, eps)
	for i, v := range x {
		dst[i] = float32((v-mean)*rstd*gamma[i]) + beta[i]
	}
	return mean, rstd
}

func rmsNorm(dst, x, gamma []float32, eps float32, _ bool) (rstd float32) {
	rstd = inverseRoot(x, 0, eps)
	for i, v := range x {
		dst[i] = v * rstd * gamma[i]
	}
	return rstd
}

// inverseRoot returns 1/√(Σ (x[i] − center)²/n + eps).
func inverseRoot(x []float32, center, eps float32) float32 {
	var lanes [4]float32
	for i, v := range x {
		v -= center
		lanes[i%4] += float32(v * v)
	}
	return 1 / float32(math.Sqrt(float64(total(lanes)/float32(len(x))+eps)))
}

func layerNormGrad(dx, dgamma, dbeta, dy, x, gamma []float32, mean, rstd, alpha, beta float32, _ bool) {
	var sum, sumX [4]float32
	for i, d := range dy {
		xhat := (x[i] - mean) * rstd
		dgamma[i] += float32(d * xhat)
		dbeta[i] += d
		g := float32(d * gamma[i])
		sum[i%4] += g
		sumX[i%4] += float32(g * xhat)
	}
	n := float32(len(x))
	avg, avgX := total(sum)/n, total(sumX)/n
	for i, d := range dy {
		xhat := (x[i] - mean) * rstd
		g := rstd * (float32(d*gamma[i]) - avg - float32(xhat*avgX))
		into(&dx[i], g, alpha, beta)
	}
}

func rmsNormGrad(dx, dgamma, dy, x, gamma []float32, rstd, alpha, beta float32, _ bool) {
	var sumX [4]float32
	for i, d := range dy {
		xhat := float32(x[i] * rstd)
		dgamma[i] += float32(d * xhat)
		sumX[i%4] += float32(float32(d*gamma[i]) * xhat)
	}
	avgX := total(sumX) / float32(len(x))
	for i, d := range dy {
		xhat := float32(x[i] * rstd)
		into(&dx[i], rstd*(float32(d*gamma[i])-float32(xhat*avgX)), alpha, beta)
	}
}

// into sets acc to beta·acc + alpha·g, and does not read it where beta is 0.
func into(acc *float32, g, alpha, beta float32) {
	g *= alpha
	if beta != 0 {
		g += float32(beta * *acc)
	}
	*acc = g
}
