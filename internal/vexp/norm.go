package vexp

func sum(x []float32) float32 {
	var s0, s1, s2, s3 float32
	for ; len(x) >= 4; x = x[4:] {
		s0 += x[0]
		s1 += x[1]
		s2 += x[2]
		s3 += x[3]
	}
	for _, v := range x {
		s0 += v
	}
	return (s0 + s1) + (s2 + s3)
}

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

func sumSquares(x []float32, center float32) float32 {
	var lanes [4]float32
	for i, v := range x {
		v -= center
		lanes[i%4] += float32(v * v)
	}
	return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

func finite(x []float32) bool {
	for _, v := range x {
		if v-v != 0 {
			return false
		}
	}
	return true
}

func layerNorm(dst, x, gamma, beta []float32, mean, rstd float32) {
	for i, v := range x {
		dst[i] = float32((v-mean)*rstd*gamma[i]) + beta[i]
	}
}

func layerNormSums(dgamma, dbeta, dy, x, gamma []float32, mean, rstd float32) (sum, sumX float32) {
	var s, sX [4]float32
	for i, d := range dy {
		xhat := (x[i] - mean) * rstd
		dgamma[i] += float32(d * xhat)
		dbeta[i] += d
		g := float32(d * gamma[i])
		s[i%4] += g
		sX[i%4] += float32(g * xhat)
	}
	return (s[0] + s[1]) + (s[2] + s[3]), (sX[0] + sX[1]) + (sX[2] + sX[3])
}

func layerNormGrad(dst, dy, x, gamma []float32, mean, rstd, avg, avgX float32) {
	for i, d := range dy {
		xhat := (x[i] - mean) * rstd
		dst[i] = rstd * (float32(d*gamma[i]) - avg - float32(xhat*avgX))
	}
}

func rmsNorm(dst, x, gamma []float32, rstd float32) {
	for i, v := range x {
		dst[i] = v * rstd * gamma[i]
	}
}

func rmsNormSums(dgamma, dy, x, gamma []float32, rstd float32) (sumX float32) {
	var s [4]float32
	for i, d := range dy {
		xhat := float32(x[i] * rstd)
		dgamma[i] += float32(d * xhat)
		s[i%4] += float32(float32(d*gamma[i]) * xhat)
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func rmsNormGrad(dst, dy, x, gamma []float32, rstd, avgX float32) {
	for i, d := range dy {
		xhat := float32(x[i] * rstd)
		dst[i] = rstd * (float32(d*gamma[i]) - float32(xhat*avgX))
	}
}
