package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/limits"
)

// newDevice measures what a device other than the CPU can do, with snug's own
// functions, once: nobody else uses it. What only reads is held against copies
// too.
func newDevice(ctx context.Context, dev *snug.Device, o options) (*machine, error) {
	m := &machine{dev: dev, emulated: o.emulated(), threads: o.threads, largest: o.sizes().largest, bandwidths: map[traffic]measured{}}
	if m.emulated {
		return m, nil
	}
	for set := smallest; set <= m.largest; set *= 2 {
		w := copying(set)
		seconds, err := w.fastest(ctx, dev)
		if err != nil {
			return nil, fmt.Errorf("copy on %v: %w", dev, err)
		}
		m.bandwidths[traffic{limits.Copy, set}] = measured{rate: float64(set) / seconds}
	}
	for _, dt := range both {
		p, err := productPeak(ctx, dev, dt)
		if err != nil {
			return nil, fmt.Errorf("%s on %v: %w", p.name, dev, err)
		}
		if p.rate > 0 {
			m.peaks = append(m.peaks, p)
		}
	}
	var err error
	m.pinned, err = newPinned(ctx, dev)
	return m, err
}

// copying is a copy of half of a working set to the other half.
func copying(set int) work {
	return work{prepare: func(mem *memory) (run, done func() error, err error) {
		n := set / 2 / snug.F32.Size()
		from, to := mem.empty(snug.F32, n), mem.empty(snug.F32, n)
		return func() error { return snug.Copy(to, from) }, nil, nil
	}}
}

// productPeak returns the best rate of square products, up to the first that
// takes long. It is 0 where the device has none.
func productPeak(ctx context.Context, dev *snug.Device, dt snug.DType) (best peak, err error) {
	const long, most = 10e-3, 8192
	best.name, best.bf16 = fmt.Sprintf("matmul %v", dt), dt == snug.BF16
	for n := 256; n <= most; n *= 2 {
		w := matmul(dt, n, n, n, "nn")
		seconds, err := w.fastest(ctx, dev)
		if errors.Is(err, snug.ErrNotBuilt) {
			return best, nil
		}
		if err != nil {
			return best, err
		}
		best.rate = max(best.rate, w.products/seconds)
		if seconds > long {
			break
		}
	}
	return best, nil
}

// launches is what a call costs that gives the device next to nothing to do:
// one of many, for which nobody waits.
func launches() []work {
	return []work{{
		kernel: "launch", dtype: "f32-bf16", shape: lenShape(1), ops: 1, peers: []string{torch},
		prepare: func(mem *memory) (run, done func() error, err error) {
			from, to := mem.operand(snug.F32, 1), mem.empty(snug.BF16, 1)
			return func() error { return amp.Cast(to, from) }, nil, nil
		},
	}}
}
