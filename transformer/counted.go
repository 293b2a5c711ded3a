package transformer

import (
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// counted are the rows of a batch whose labels are not ignored. On the CPU the head computes these alone: they move to
// the front of its rows, and their gradients move back. A prompt then costs the head nothing.
type counted struct {
	labels  []int32   // of the rows
	weights []float32 // of the rows; nil: all are 1
	rows    []int32   // their numbers, in order; empty if no row is left out

	some    bool // rows are left out
	kept    []int32
	weighed []float32
}

// set makes c the rows of the labels that count. It allocates where no batch was as long.
func (c *counted) set(labels []int32, weights []float32, dev *snug.Device) {
	c.labels, c.weights, c.rows = labels, weights, c.rows[:0]
	c.some = dev.IsCPU() && slices.ContainsFunc(labels, func(t int32) bool { return t < 0 })
	if !c.some {
		return
	}
	c.kept, c.weighed = c.kept[:0], c.weighed[:0]
	for i, t := range labels {
		if t < 0 {
			continue
		}
		c.rows, c.kept = append(c.rows, int32(i)), append(c.kept, t)
		if weights != nil {
			c.weighed = append(c.weighed, weights[i])
		}
	}
	c.labels = c.kept
	if weights != nil {
		c.weights = c.weighed
	}
}

// gather moves the counted rows of v, of cols elements each, to the front, and returns them.
func (c *counted) gather(v snug.View, cols int) snug.View {
	if !c.some {
		return v
	}
	data, size := device.Mem(&v).Bytes(), cols*v.DType().Size()
	for to, from := range c.rows {
		copy(data[to*size:][:size], data[int(from)*size:])
	}
	return part(v, 0, len(c.rows)*cols)
}

// scatter moves rows from the front back to where gather found them. The others become zeros.
func (c *counted) scatter(v snug.View, cols int) {
	if !c.some {
		return
	}
	data, size := device.Mem(&v).Bytes(), cols*v.DType().Size()
	end := len(data) / size
	for from := len(c.rows) - 1; from >= 0; from-- {
		to := int(c.rows[from])
		clear(data[(to+1)*size : end*size])
		copy(data[to*size:][:size], data[from*size:])
		end = to
	}
	clear(data[:end*size])
}
