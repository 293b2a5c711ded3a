package gguf

import "math"

// signed is a type with x = (d s) q in its groups of 16.
type signed struct {
	half float32 // q is from -half to half-1
	most float32 // s is from -most to most-1
}

// encode sets d, s and q of b: as [ranged.encode], without minima. q is x (half + t/10) / -x', rounded, for t from -9 to 9, where x'
// has the largest magnitude of the group.
func (k *signed) encode(b *block) {
	var a [16]float64
	top := 0.0
	for g := range a {
		a[g] = k.fit((*[16]float32)(b.x[16*g:]), (*[16]float32)(b.w[16*g:]))
		if math.Abs(a[g]) > math.Abs(top) {
			top = a[g]
		}
	}
	b.d = step(float32(top), k.most, k.most/32)
	var before cost
	for g := range a {
		before.add(k.choose(b, g, a[g]))
	}
	k.refit(b, before)
}

// step returns the d that reaches a factor with s of -most, or of the few next to it, whichever binary16 holds best: equal elements have
// no other error.
func step(top, most, few float32) (d float32) {
	if top == 0 {
		return 0
	}
	least := float32(math.Inf(1))
	for s := -most; s < few-most; s++ {
		near := rounded16(top / s)
		if off := float32(math.Abs(float64(float32(near*s) - top))); off < least {
			least, d = off, near
		}
	}
	return d
}

// reach is how far the search goes, in tenths of a level.
const reach = 9

// tie is how much less good than another t is 0, which fits what the others fit by the noise of rounding, when it is preferred.
const tie = 1 - 1e-9

// fit returns the factor a of a group. Its error is less by (sum w q x)^2 / sum w q^2.
func (k *signed) fit(x, w *[16]float32) float64 {
	var of sums
	top := largest(x[:])
	if top > -tiny && top < tiny {
		return 0
	}
	var added [2*reach + 2]struct{ qq, qx float64 } // as in ranged.fit, for magnitudes
	const steps = 2 * reach
	start := k.half - 0.1*reach
	for j, v := range x {
		p := v / top
		most := k.half
		if p < 0 {
			p, most = -p, k.half-1
		}
		q := min(float32(nearest(start*p)), most)
		wv, each := float64(w[j]), 10/p
		wx := wv * float64(v)
		if v*top < 0 {
			wx = -wx
		}
		of.qq += float64(wv * float64(q) * float64(q))
		of.qx += float64(wx * float64(q))
		for t := float32((q+0.5)*each) - float32(10*start); t < steps && q < most; t += each {
			at := &added[int(max(t, 0))+1]
			at.qq += float64(wv * float64(2*q+1))
			at.qx += wx
			q++
		}
	}
	best, most := of, 0.0
	for t := range added {
		of.qq, of.qx = of.qq+added[t].qq, of.qx+added[t].qx
		if e := of.qx * of.qx / of.qq; e > most || t == reach && e > most*tie {
			most, best = e, of
		}
	}
	if best.qq == 0 {
		return 0
	}
	return -best.qx / best.qq // q has the other sign
}

// choose sets s and q of a group, and returns the error: s is the nearest, one less or one more.
func (k *signed) choose(b *block, g int, a float64) cost {
	s0 := int32(0)
	if b.d != 0 {
		s0 = nearest(bounded(float32(a)/b.d, -k.most, k.most-1))
	}
	least, s, at := cost{weighted: math.Inf(1)}, s0, (*[16]int32)(b.q[16*g:])
	var q [16]int32
	for b.s[g] = max(s0-1, -int32(k.most)); b.s[g] <= min(s0+1, int32(k.most)-1); b.s[g]++ {
		if e := k.quantize(b, g); e.weighted < least.weighted {
			least, s, q = e, b.s[g], *at
		}
	}
	b.s[g], *at = s, q
	return least
}

// quantize sets q of a group, and returns the error.
func (k *signed) quantize(b *block, g int) (e cost) {
	ds := b.d * float32(b.s[g])
	inv := inverse(ds)
	x, w, q := (*[16]float32)(b.x[16*g:]), (*[16]float32)(b.w[16*g:]), (*[16]int32)(b.q[16*g:])
	for j, v := range x {
		l := nearest(bounded(v*inv, -k.half, k.half-1))
		q[j] = l
		diff := float32(ds*float32(l)) - v
		e.plain += float64(diff * diff)
		e.weighted += float64(w[j] * diff * diff)
	}
	return e
}

// refit takes another d if it makes the error smaller than before.
func (k *signed) refit(b *block, before cost) {
	qq, qx := 0.0, 0.0
	for i, v := range b.x {
		q := float64(b.s[i/16] * b.q[i])
		qq += float64(float64(b.w[i]) * q * q)
		qx += float64(float64(b.w[i]) * q * float64(v))
	}
	if qq == 0 {
		return
	}
	c := *b
	if c.d = rounded16(float32(qx / qq)); c.d == b.d {
		return
	}
	var after cost
	for g := range 16 {
		after.add(k.quantize(&c, g))
	}
	if after.below(before) {
		*b = c
	}
}
