package conv

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// maxLen is the most elements that a vector may have.
const maxLen = math.MaxInt - 1

// checkFrame checks what the shapes of poolings and of resizes have in common.
func checkFrame(dims int, layout Layout, batch int, name string, channels int) error {
	if dims < 1 || dims > 3 {
		return fmt.Errorf("a shape of %d Dims, want 1, 2 or 3: %w", dims, snug.ErrConfig)
	}
	if layout > ChannelsLast {
		return fmt.Errorf("unknown Layout %d: %w", layout, snug.ErrConfig)
	}
	if err := inRange("Batch", batch, 0); err != nil {
		return err
	}
	return inRange(name, channels, 1)
}

// field is an element of an array of a shape.
type field struct {
	name  string
	value int
	least int
}

// check checks the field of dimension i.
func (f *field) check(i, dims int) error {
	if i >= dims && f.value != 0 {
		return fmt.Errorf("%s[%d] is %d, want 0 for Dims %d: %w", f.name, i, f.value, dims, snug.ErrShape)
	}
	if f.value < f.least || f.value > maxField {
		return fmt.Errorf("%s[%d] is %d, want %d to 2^28: %w", f.name, i, f.value, f.least, snug.ErrShape)
	}
	return nil
}

// elements returns those of a vector, or MaxInt.
func elements(batch, channels int, size [3]int, dims int) int {
	n := product(batch, channels)
	for _, x := range size[:dims] {
		n = product(n, x)
	}
	return n
}

// outer returns an array of Dims elements as one of three, with ones before.
func outer(size [3]int, dims int) [3]int {
	all := [3]int{1, 1, 1}
	copy(all[3-dims:], size[:dims])
	return all
}
