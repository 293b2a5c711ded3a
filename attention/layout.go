package attention

import (
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
)

// operand is one of the four tensor shapes of Options.
type operand struct {
	name                 string
	batch, heads, n, dim int
	strides              Strides
}

// operands returns the shapes of q, k, v and out.
func (c *Options) operands() [4]operand {
	batch, keys, rows := c.batches(), c.batches(), c.SeqK
	if c.cached() {
		keys, rows = c.cache.batch, c.cache.rows
	}
	return [...]operand{
		{"q", batch, c.Heads, c.SeqQ, c.Dim, c.Q},
		{"k", keys, c.KVHeads, rows, c.Dim, c.K},
		{"v", keys, c.KVHeads, rows, c.DimV, c.V},
		{"out", batch, c.Heads, c.SeqQ, c.DimV, c.Out},
	}
}

// resolve returns the strides with defaults filled in, or the error in them. With these
// strides extent does not overflow.
func (o operand) resolve() (Strides, error) {
	// Empty dimensions count as 1, so that no partial product overflows.
	head, ok1 := mulAdd(0, max(o.n, 1), o.dim)
	batch, ok2 := mulAdd(0, max(o.heads, 1), head)
	_, ok3 := mulAdd(0, max(o.batch, 1), batch)
	if !ok1 || !ok2 || !ok3 {
		return Strides{}, fmt.Errorf("attention: %s is [%d,%d,%d,%d], more than an int counts: %w",
			o.name, o.batch, o.heads, o.n, o.dim, snug.ErrShape)
	}
	if o.strides == (Strides{}) {
		return Strides{Batch: batch, Head: head, Row: o.dim}, nil
	}
	if !o.disjoint() {
		return Strides{}, fmt.Errorf("attention: %s is [%d,%d,%d,%d], strides %+v are negative, let rows overlap or reach too far: %w",
			o.name, o.batch, o.heads, o.n, o.dim, o.strides, snug.ErrShape)
	}
	return o.strides, nil
}

// disjoint reports whether no stride is negative and rows do not overlap: in the order of
// strides, each dimension steps over all elements that the dimensions of smaller stride
// reach.
func (o operand) disjoint() bool {
	dims := [...]struct{ n, stride int }{{o.n, o.strides.Row}, {o.heads, o.strides.Head}, {o.batch, o.strides.Batch}}
	for i := 1; i < len(dims); i++ {
		for j := i; j > 0 && dims[j].stride < dims[j-1].stride; j-- {
			dims[j], dims[j-1] = dims[j-1], dims[j]
		}
	}
	if dims[0].stride < 0 {
		return false
	}
	if o.empty() {
		return true
	}
	reach := o.dim
	for _, d := range dims {
		if d.n <= 1 {
			continue
		}
		if d.stride < reach {
			return false
		}
		var ok bool
		if reach, ok = mulAdd(reach, d.n-1, d.stride); !ok {
			return false
		}
	}
	return true
}

func (o operand) empty() bool { return o.batch == 0 || o.heads == 0 || o.n == 0 }

// zeros names the dimensions that make o empty, as fields of Options.
func (o operand) zeros() string {
	rows := "SeqQ"
	if o.name == "k" || o.name == "v" {
		rows = "SeqK"
	}
	var names []string
	for _, d := range []struct {
		name string
		n    int
	}{{"Batch", o.batch}, {"Heads", o.heads}, {rows, o.n}} {
		if d.n == 0 {
			names = append(names, d.name+" is 0")
		}
	}
	return strings.Join(names, ", ")
}

// extent returns the elements from the first to the last one of the tensor.
func (o operand) extent() int {
	if o.empty() {
		return 0
	}
	return (o.batch-1)*o.strides.Batch + (o.heads-1)*o.strides.Head + (o.n-1)*o.strides.Row + o.dim
}

// mulAdd returns sum + n·stride of non-negative numbers, and false if it overflows an int.
func mulAdd(sum, n, stride int) (int, bool) {
	if stride != 0 && n > (math.MaxInt-sum)/stride {
		return 0, false
	}
	return sum + n*stride, true
}
