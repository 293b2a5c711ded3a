package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Backend says whose arithmetic resizes and normalizes: transformers has two forms of each image processor.
type Backend int

// The backends.
const (
	// Torchvision is what transformers 5 uses by default, and before that the processors whose names end in Fast.
	Torchvision Backend = iota
	// Pillow is backend="pil", and what use_fast=False was.
	Pillow
)

// backend is one of them.
type backend struct {
	name         string
	lacks        map[Filter]bool
	columnsFirst func(from, to size) bool                  // whether columns are resized before rows
	bits         func(largest float64) uint                // of weights after the point, by the largest of an axis
	nearest      func(in, out int) []int                   // the input of each output
	before       func(total, part int) int                 // pixels before a part that stands in the middle of more
	values       func(c *config, channel int) [256]float32 // what each level becomes
}

var backends = []backend{
	Torchvision: {
		name:         "torchvision",
		lacks:        map[Filter]bool{Box: true, Hamming: true},
		columnsFirst: func(size, size) bool { return false },
		bits: func(largest float64) uint { // weights fit in int16: ATen's UpSampleKernel.cpp
			bits := uint(0)
			for bits < 22 && int(0.5+float64(largest*float64(int(1)<<(bits+1)))) < 1<<15 {
				bits++
			}
			return bits
		},
		nearest: func(in, out int) []int { // "nearest-exact", with the scale in float32
			scale := float32(in) / float32(out)
			at := make([]int, out)
			for i := range at {
				at[i] = min(int((float32(i)+0.5)*scale), in-1)
			}
			return at
		},
		before: func(total, part int) int { return (total - part) / 2 },
		values: torchValues,
	},
	Pillow: {
		name: "pil",
		columnsFirst: func(from, to size) bool {
			return to.height < from.height && from.height-to.height > 2*(from.width-to.width)
		},
		bits: func(float64) uint { return 32 - 8 - 2 },
		nearest: func(in, out int) []int { // an affine transform, which adds up
			scale := float64(in) / float64(out)
			at := make([]int, out)
			x := float64(scale * 0.5)
			for i := range at {
				at[i] = min(int(x), in-1)
				x += scale
			}
			return at
		},
		before: func(total, part int) int { return (total - part + 1) / 2 },
		values: pillowValues,
	},
}

func (b Backend) known() bool { return b >= 0 && int(b) < len(backends) }

// String returns the name that transformers has for the backend.
func (b Backend) String() string {
	if !b.known() {
		return "unknown"
	}
	return backends[b].name
}

// check returns an error if the backend does not have the filter.
func (b Backend) check(f Filter) error {
	switch {
	case !b.known():
		return fmt.Errorf("backend %d, want Torchvision or Pillow: %w", b, snug.ErrConfig)
	case !f.known():
		return fmt.Errorf("filter %d, want 0 to %d: %w", f, len(kernels)-1, snug.ErrConfig)
	case backends[b].lacks[f]:
		return fmt.Errorf("filter %s, which backend %s does not have: %w", f, b, snug.ErrConfig)
	}
	return nil
}

// torchValues has the arithmetic of TorchvisionBackend.rescale_and_normalize, in float32: (x - mean/factor)/(std/factor).
func torchValues(c *config, channel int) (v [256]float32) {
	mean, std := float32(c.mean[channel]), float32(c.std[channel])
	if c.rescale && c.normalize {
		mean, std = float32(mean*float32(1/c.factor)), float32(std*float32(1/c.factor))
	}
	for i := range v {
		switch x := float32(i); {
		case c.normalize:
			v[i] = (x - mean) / std
		case c.rescale:
			v[i] = x * float32(c.factor)
		default:
			v[i] = x
		}
	}
	return v
}

// pillowValues has the arithmetic of image_transforms.rescale, in float64, and then of normalize, in float32: (x factor - mean)/std.
func pillowValues(c *config, channel int) (v [256]float32) {
	mean, std := float32(c.mean[channel]), float32(c.std[channel])
	for i := range v {
		x := float32(i)
		if c.rescale {
			x = float32(float64(i) * c.factor)
		}
		if c.normalize {
			x = (x - mean) / std
		}
		v[i] = x
	}
	return v
}
