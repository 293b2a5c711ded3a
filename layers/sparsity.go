package layers

import (
	"math"
)

// cut turns rows of a gate into max(gate − c, 0), where c is what a share Sparsity of normally distributed numbers with the row's mean and
// deviation is less than. Without a Sparsity it does nothing.
func (b *MLP) cut(p *Pass, gate *Tensor) {
	if b.Sparsity == 0 {
		return
	}
	p.Do(func() error {
		n := b.Down[0].In
		rows, factor := newRows32(gate.View, n), b.deviations()
		for i := range p.rows {
			row := rows.load(i)
			mean, deviation := moments(row)
			c := float32(mean + deviation*factor)
			for j, v := range row {
				row[j] = max(v-c, 0)
			}
			rows.store(i)
		}
		return nil
	})
}

// deviations returns how many deviations above the mean c is.
func (b *MLP) deviations() float64 {
	return float64(float32(math.Sqrt2 * math.Erfinv(2*float64(float32(b.Sparsity))-1)))
}

func moments(row []float32) (mean, deviation float64) {
	for _, v := range row {
		mean += float64(v)
	}
	mean /= float64(len(row))
	for _, v := range row {
		deviation += (float64(v) - mean) * (float64(v) - mean)
	}
	return mean, math.Sqrt(deviation / float64(len(row)))
}

// open returns the gate as the activation takes it: gate itself, or a new tensor, which shut frees.
func (b *MLP) open(p *Pass, gate *Tensor) *Tensor {
	if b.Sparsity == 0 {
		return gate
	}
	c := p.Get(b.Down[0].In)
	p.copyTo(c, gate)
	b.cut(p, c)
	return c
}

func (b *MLP) shut(p *Pass, open, gate *Tensor) {
	if open != gate {
		p.Put(open)
	}
}

// cutBackward turns gate into its gradient, for the gradient d of what cut makes of it.
func (b *MLP) cutBackward(p *Pass, gate, d *Tensor) {
	if b.Sparsity == 0 {
		return
	}
	p.Do(func() error {
		n := b.Down[0].In
		rows, ds, factor := newRows32(gate.View, n), newRows32(d.View, n), b.deviations()
		for i := range p.rows {
			row, g := rows.load(i), ds.load(i)
			mean, deviation := moments(row)
			c, sum := float32(mean+deviation*factor), 0.0
			for j, v := range row {
				if v-c > 0 {
					sum += float64(g[j])
				}
			}
			slope := 0.0
			if deviation > 0 {
				slope = factor * sum / (float64(n) * deviation)
			}
			for j, v := range row {
				dv := -sum/float64(n) - slope*(float64(v)-mean)
				if v-c > 0 {
					dv += float64(g[j])
				}
				row[j] = float32(dv)
			}
			rows.store(i)
		}
		return nil
	})
}

// checkSparsity returns whether the Sparsity is one of a gate on its own, and a share.
func (b *MLP) checkSparsity() bool {
	return b.Sparsity == 0 || b.Sparsity > 0 && b.Sparsity < 1 && len(b.In) == 2
}
