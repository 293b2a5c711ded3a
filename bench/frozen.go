package main

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// frozens are products by a weight in NF4 on a device, in two ways: "fused" decodes in the kernel that multiplies, and
// "decoded" decodes the weight as a whole and multiplies by it, as qlora.Linear does tile by tile
// with the vendor's library. Where "decoded" becomes the faster, qlora.Linear should begin to use the library.
func frozens(s sizes) (all []work) {
	for _, out := range []int{s.width, 7 * s.width / 2} {
		for _, back := range []bool{false, true} {
			for _, rows := range s.many {
				for _, decoded := range []bool{false, true} {
					all = append(all, frozen(rows, out, s.width, back, decoded))
				}
			}
		}
	}
	return all
}

// frozen is y = x·Wᵀ for W of out×in, or dx = dy·W if back is set.
func frozen(rows, out, in int, back, decoded bool) work {
	const dt = snug.BF16
	flops := 2 * float64(rows) * float64(out) * float64(in)
	w := work{
		kernel: "nf4 fused", dtype: dt.String(), shape: fmt.Sprintf("rows=%d out=%d in=%d forward", rows, out, in),
		reads: size(dt, rows*in) + 4.127/8*float64(out*in), writes: size(dt, rows*out), ops: flops, products: flops, bf16: true,
	}
	n, k := out, in
	if back {
		n, k = in, out
		w.shape = fmt.Sprintf("rows=%d out=%d in=%d backward", rows, out, in)
		w.reads, w.writes = w.reads-size(dt, rows*in)+size(dt, rows*out), size(dt, rows*in)
	}
	if decoded {
		w.kernel = "nf4 decoded"
	}
	w.prepare = func(mem *memory) (run, done func() error, err error) {
		whole, x, y := mem.operand(dt, out*in), mem.operand(dt, rows*k), mem.empty(dt, rows*n)
		if mem.err != nil {
			return nil, nil, mem.err
		}
		codes, err := qlora.NewWeight(whole, []int{out, in}, qlora.Options{})
		if err != nil {
			return nil, nil, err
		}
		if decoded {
			c := amp.MatMulOptions{M: rows, N: n, K: k, TransB: !back}
			return func() error {
				return errors.Join(codes.Dequantize(whole), amp.MatMul(y, x, whole, c))
			}, codes.Close, nil
		}
		l, err := qlora.NewLinear(codes, dt, 1) // with a tile of a row the library is not used
		if err != nil {
			return nil, nil, errors.Join(err, codes.Close())
		}
		done = func() error { return errors.Join(l.Close(), codes.Close()) }
		if back {
			return func() error { return l.Backward(y, x, 0) }, done, nil
		}
		return func() error { return l.Forward(y, x, 0) }, done, nil
	}
	return w
}
