package gguf

import "math"

// block is a superblock that is encoded. s and n are numbers of its groups, q of its elements.
type block struct {
	x    *[superBlock]float32
	w    [superBlock]float32 // weights of the squared errors
	d, m float32             // binary16 numbers
	s, n [16]int32
	q    [superBlock]int32
}

// cost is the squared error of elements, with their weights and without.
type cost struct{ weighted, plain float64 }

func (e *cost) add(f cost) { e.weighted, e.plain = e.weighted+f.weighted, e.plain+f.plain }

// below says that an error is smaller, but not at the expense of elements whose weights are small beside those of other groups.
func (e cost) below(f cost) bool { return e.weighted < f.weighted && e.plain <= f.plain }

// ranged is a type with x = (d s) q - (m n) in its groups.
type ranged struct {
	size        int     // elements of a group
	top         float32 // the largest q
	most        float32 // the largest s and n
	first, last int     // of the search, tenths of a level
}

// sums are those of a group, with its weights: of w, w x, w q, w q^2 and w q x.
type sums struct{ w, x, q, qq, qx float64 }

// better returns how much smaller than the sum of w x^2 the error of a q + c is.
func (s *sums) better(a, c float64) float64 {
	first := float64(a * (2*s.qx - float64(a*s.qq)))
	return first + float64(c*(2*(s.x-float64(a*s.q))-float64(c*s.w)))
}

// encode sets all of b but x and w. Products are rounded before they are added, here and in what it calls, so that every machine
// finds the same.
//
// For each group it searches a and c, without the rounding of d s and m n, of the least error
//
//	E = sum w (a q + c - x)^2
//
// q is (x - lo) (top + t/10) / (hi - lo), rounded, for t from first to last, and then a and c are those of least squares, with c of 0 or
// less. d and m reach the largest a and -c, and s and n are the best near a/d and -c/m. At last d and m are those of least squares of the
// whole block, if they make the sum of E smaller.
func (k *ranged) encode(b *block) {
	groups := superBlock / k.size
	var a, c [16]float64
	d, m := 0.0, 0.0
	for g := range groups {
		a[g], c[g] = k.fit(b.x[g*k.size:][:k.size], b.w[g*k.size:][:k.size])
		d, m = max(d, a[g]), max(m, -c[g])
	}
	b.d, b.m = rounded16(float32(d)/k.most), rounded16(float32(m)/k.most)
	var before cost
	for g := range groups {
		before.add(k.choose(b, g, a[g], c[g]))
	}
	k.refit(b, before)
}

// maxSteps is the largest number of steps of a search, more than the largest difference of first and last.
const maxSteps = 32

// tiny is a range whose scale is 0 in binary16.
const tiny = 1e-9

// fit returns a and c of a group.
func (k *ranged) fit(x, w []float32) (a, c float64) {
	var of sums
	w = w[:len(x)]
	lo, hi := min(x[0], 0), x[0]
	for j, v := range x {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
		of.w += float64(w[j])
		of.x += float64(float64(w[j]) * float64(v))
	}
	if hi-lo < tiny {
		return 0, float64(lo)
	}
	// As t grows, q of an element grows, by one where (top + t/10) (x - lo) / (hi - lo) passes a half: added has what the sums
	// grow by at each t.
	var added [maxSteps]struct{ q, qq, qx float64 }
	start, steps := k.top+float32(0.1*float32(k.first)), float32(k.last-k.first)
	for j, v := range x {
		y := v - lo
		q := min(float32(nearest(start/(hi-lo)*y)), k.top)
		wv, each := float64(w[j]), 10*(hi-lo)/y
		of.q += float64(wv * float64(q))
		of.qq += float64(wv * float64(q) * float64(q))
		of.qx += float64(wv * float64(q) * float64(v))
		for t := float32((q+0.5)*each) - float32(10*start); t < steps && q < k.top; t += each {
			at := &added[int(max(t, 0))+1]
			at.q += wv
			at.qq += float64(wv * float64(2*q+1))
			at.qx += float64(wv * float64(v))
			q++
		}
	}
	most := math.Inf(-1)
	for t := range k.last - k.first + 1 {
		of.q, of.qq, of.qx = of.q+added[t].q, of.qq+added[t].qq, of.qx+added[t].qx
		det := float64(of.w*of.qq) - float64(of.q*of.q)
		if det <= 0 {
			continue
		}
		at, ct := (float64(of.w*of.qx)-float64(of.x*of.q))/det, (float64(of.qq*of.x)-float64(of.q*of.qx))/det
		if ct > 0 {
			at, ct = of.qx/of.qq, 0
		}
		if e := of.better(at, ct); e > most {
			most, a, c = e, at, ct
		}
	}
	if math.IsInf(most, -1) { // all weights but one are zeros
		return float64((hi - lo) / k.top), float64(lo)
	}
	return a, c
}

// choose sets s, n and q of a group, and returns the error: s and n are the nearest, one less or one more.
func (k *ranged) choose(b *block, g int, a, c float64) cost {
	s0, n0 := k.level(float32(a), b.d), k.level(float32(-c), b.m)
	s, n, least := s0, n0, float32(math.Inf(1))
	for i := max(s0-1, 0); i <= min(s0+1, int32(k.most)); i++ {
		for j := max(n0-1, 0); j <= min(n0+1, int32(k.most)); j++ {
			if e := k.try(b, g, b.d*float32(i), b.m*float32(j)); e < least {
				least, s, n = e, i, j
			}
		}
	}
	b.s[g], b.n[g] = s, n
	return k.quantize(b, g)
}

// try returns the error of a group with the best q.
func (k *ranged) try(b *block, g int, ds, mn float32) (e float32) {
	inv, top := inverse(ds), k.top
	x := b.x[g*k.size:][:k.size]
	w := b.w[g*k.size:][:len(x)]
	for j, v := range x {
		v += mn
		diff := float32(ds*(float32(bounded(v*inv, 0, top))+shift-shift)) - v
		e += float32(w[j] * diff * diff)
	}
	return e
}

// level returns the number of steps that are nearest to v.
func (k *ranged) level(v, step float32) int32 {
	if step == 0 {
		return 0
	}
	return nearest(bounded(v/step, 0, k.most))
}

// quantize sets q of a group, and returns the error.
func (k *ranged) quantize(b *block, g int) (e cost) {
	ds, mn := b.d*float32(b.s[g]), b.m*float32(b.n[g])
	inv := inverse(ds)
	q := b.q[g*k.size:][:k.size]
	x, w := b.x[g*k.size:][:len(q)], b.w[g*k.size:][:len(q)]
	for j, v := range x {
		l := nearest(bounded((v+mn)*inv, 0, k.top))
		q[j] = l
		diff := float32(ds*float32(l)) - mn - v
		e.plain += float64(diff * diff)
		e.weighted += float64(w[j] * diff * diff)
	}
	return e
}

// refit takes other d and m if they make the error smaller than before.
func (k *ranged) refit(b *block, before cost) {
	var qq, qn, nn, qx, nx float64
	for g := range superBlock / k.size {
		q := b.q[g*k.size:][:k.size]
		x, w := b.x[g*k.size:][:len(q)], b.w[g*k.size:][:len(q)]
		var of sums
		for j, v := range x {
			wq := float64(w[j]) * float64(q[j])
			of.w += float64(w[j])
			of.x += float64(float64(w[j]) * float64(v))
			of.q += wq
			of.qq += float64(wq * float64(q[j]))
			of.qx += float64(wq * float64(v))
		}
		s, n := float64(b.s[g]), float64(b.n[g])
		qq, qn, nn = qq+float64(s*s*of.qq), qn+float64(s*n*of.q), nn+float64(n*n*of.w)
		qx, nx = qx+float64(s*of.qx), nx+float64(n*of.x)
	}
	c := *b
	if det := float64(qq*nn) - float64(qn*qn); det > 1e-9*qq*nn {
		c.d = rounded16(float32((float64(qx*nn) - float64(nx*qn)) / det))
		c.m = rounded16(float32((float64(qx*qn) - float64(nx*qq)) / det))
	} else if qq > 0 && nn == 0 {
		c.d = rounded16(float32(qx / qq))
	}
	if c.d < 0 || c.m < 0 || c.d == b.d && c.m == b.m {
		return
	}
	var after cost
	for g := range superBlock / k.size {
		after.add(k.quantize(&c, g))
	}
	if after.below(before) {
		*b = c
	}
}

const shift = 1.5 * (1 << 23) // beside it floats are integers

// nearest rounds a number below 2^22 to nearest, ties to even.
func nearest(v float32) int32 {
	return int32(math.Float32bits(float32(v)+shift)) - int32(math.Float32bits(shift))
}

// bounded returns v, or the bound that it is beyond.
func bounded(v, lo, hi float32) float32 {
	if v < lo {
		return lo
	}
	if v > hi {
		return hi
	}
	return v
}
