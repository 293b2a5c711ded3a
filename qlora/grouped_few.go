package qlora

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// This file has what products of few rows by codes of a Grouped weight need beside those by NF4. The loops multiply by q-8. With
// zero points
//
//	y  = x·Wᵀ  has for each group also (8 - zero)·scale·Σ x
//	dx = dy·W  has for each group also Σ dy·(8 - zero)·scale
//
// and with act order the columns of x and dx are taken in the order of the weight.

// inOrder writes rows of x in the order of the weight.
func (g *groups) inOrder(to []float32, x snug.View, in int) {
	if g == nil || g.order == nil {
		half.Load(to, x, 0)
		return
	}
	row := tiles.Get(in)
	defer tiles.Put(row)
	for lo := 0; lo < len(to); lo += in {
		half.Load((*row)[:in], x, lo)
		for k, at := range g.order {
			to[lo+k] = (*row)[at]
		}
	}
}

// fromOrder writes dx of rows that are in the order of the weight, with beta·dx.
func (g *groups) fromOrder(dx snug.View, from []float32, in int, beta float32) {
	row := tiles.Get(in)
	defer tiles.Put(row)
	for lo := 0; lo < len(from); lo += in {
		x := (*row)[:in]
		clear(x)
		if beta != 0 {
			half.Load(x, dx, lo)
		}
		for k, at := range g.order {
			x[at] = from[lo+k] + beta*x[at]
		}
		half.Store(dx, lo, x)
	}
}

// blockSums writes the sums of the blocks of x.
func blockSums(sums, x []float32, block int) {
	for i := range sums {
		s := float32(0)
		for _, v := range x[i*block:][:block] {
			s += v
		}
		sums[i] = s
	}
}

// addZeros adds to sums what zero points do, for the outputs from lo on.
func (a *fewArgs) addZeros(sums, absmax []float32, lo int) {
	n, blocks, zeros := len(sums)/a.rows, a.in/a.block, snug.Host[uint8](a.zeros)
	for i := range n {
		s, z := absmax[i*blocks:][:blocks], zeros[(lo+i)*blocks:][:blocks]
		for r := range a.rows {
			x, sum := a.xSums[r*blocks:][:blocks], float32(0)
			for b, v := range x {
				sum += (middle - float32(z[b])) * s[b] * v
			}
			sums[r*n+i] += sum
		}
	}
}

// addZeros adds to the sums of blocks what an output does whose factors are dy.
func (a *backArgs) addZeros(to, absmax, dy []float32, firstBlock int) {
	zeros := snug.Host[uint8](a.zeros)[firstBlock:]
	for b, s := range absmax {
		f := (middle - float32(zeros[b])) * s
		for r := range a.rows {
			to[r*len(absmax)+b] += f * dy[r]
		}
	}
}
