package main

import (
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/crc32c"
)

// casts are all pairs of floating-point types, and stochastic rounding.
func casts(s sizes) (all []work) {
	for _, src := range floats {
		for _, dst := range floats {
			if src == dst {
				continue
			}
			for _, n := range s.lens {
				all = append(all, work{
					kernel: "cast", dtype: fmt.Sprintf("%v-%v", src, dst), shape: lenShape(n),
					reads: size(src, n), writes: size(dst, n), ops: float64(n), peers: []string{torch},
					prepare: func(mem *memory) (run, done func() error, err error) {
						from, to := mem.operand(src, n), mem.empty(dst, n)
						return func() error { return amp.Cast(to, from) }, nil, nil
					},
				})
			}
		}
	}
	for _, n := range s.lens {
		all = append(all, work{
			kernel: "cast stochastic", dtype: "f32-bf16", shape: lenShape(n),
			reads: size(snug.F32, n), writes: size(snug.BF16, n), ops: float64(n), peers: []string{torch},
			prepare: func(mem *memory) (run, done func() error, err error) {
				from, to, draw := mem.operand(snug.F32, n), mem.empty(snug.BF16, n), amp.Draw{}
				return func() error {
					draw.Seed++
					return amp.CastWith(to, from, amp.CastOptions{Stochastic: true, Draw: draw})
				}, nil, nil
			},
		})
	}
	return all
}

// gradients are the passes over gradients between backward and the optimizer.
func gradients(s sizes) (all []work) {
	for _, n := range s.lens {
		all = append(all, work{
			kernel: "unscale+check+norm", dtype: "f32", shape: lenShape(n),
			reads: size(snug.F32, n), writes: size(snug.F32, n), ops: 3 * float64(n), inPlace: true, peers: []string{torch},
			prepare: func(mem *memory) (run, done func() error, err error) { return unscale(mem.operand(snug.F32, n)) },
		})
	}
	for _, dt := range both {
		for _, n := range s.lens {
			all = append(all, work{
				kernel: "check+norm", dtype: dt.String(), shape: lenShape(n),
				reads: size(dt, n), ops: 2 * float64(n), peers: []string{torch},
				prepare: func(mem *memory) (run, done func() error, err error) {
					grads := one(mem.operand(dt, n))
					return func() error { _, err := amp.Measure(grads); return err }, nil, nil
				},
			})
		}
	}
	var sums []work // sorted below
	for _, dt := range both {
		for _, n := range s.lens {
			sums = append(sums, work{
				kernel: "accumulate", dtype: dt.String(), shape: lenShape(n),
				reads: size(dt, n) + size(snug.F32, n), writes: size(snug.F32, n), ops: 3 * float64(n), inPlace: true, peers: []string{torch},
				prepare: func(mem *memory) (run, done func() error, err error) {
					return accumulate(mem.operand(dt, n), mem.empty(snug.F32, n), accum.Options{})
				},
			}, work{
				kernel: "accumulate+measure", dtype: dt.String(), shape: lenShape(n),
				reads: size(dt, n) + size(snug.F32, n), writes: size(snug.F32, n), ops: 5 * float64(n), inPlace: true, peers: []string{torch},
				prepare: func(mem *memory) (run, done func() error, err error) {
					return accumulate(mem.operand(dt, n), mem.empty(snug.F32, n), accum.Options{Measure: true})
				},
			}, work{
				kernel: "accumulate in bf16", dtype: dt.String(), shape: lenShape(n),
				reads: size(dt, n) + size(snug.BF16, n), writes: size(snug.BF16, n), ops: 3 * float64(n), inPlace: true, peers: []string{torch},
				prepare: func(mem *memory) (run, done func() error, err error) {
					return accumulate(mem.operand(dt, n), mem.empty(snug.BF16, n), accum.Options{DType: snug.BF16})
				},
			})
		}
	}
	return append(all, byKernel(sums)...)
}

// checksums are those of the pages of package offload and of saved state.
func checksums(s sizes) (all []work) {
	for _, n := range s.lens {
		all = append(all, work{
			kernel: "checksum", dtype: "u8", shape: lenShape(n), reads: float64(n), ops: float64(n), host: true,
			prepare: func(*memory) (run, done func() error, err error) {
				b, sum := make([]byte, n), uint32(0)
				for i := range b {
					b[i] = byte(i * i >> 3)
				}
				return func() error { sum = crc32c.Update(sum, b); return nil }, nil, nil
			},
		})
	}
	return all
}

// one walks over a single gradient.
func one(g snug.View) iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield("w", g) }
}

// unscale multiplies by 1/2 and 2 in turn: a factor of 1 would write nothing,
// and any other would end in zeros or infinities.
func unscale(g snug.View) (run, done func() error, err error) {
	grads := one(g)
	var scalers [2]*amp.Scaler
	for i, scale := range []float32{2, 0.5} {
		// Its scale must stay: the interval is longer than any measurement.
		if scalers[i], err = amp.NewScaler(amp.ScalerOptions{Init: scale, Interval: 1 << 30}); err != nil {
			return nil, nil, err
		}
		scalers[i].Scale() // a scaler that has scaled no loss does not unscale
	}
	turn := 0
	return func() error {
		turn = 1 - turn
		if _, err := scalers[turn].Unscale("adamw", grads); err != nil {
			return err
		}
		return scalers[turn].Update()
	}, nil, nil
}

// accumulate adds micro-batch after micro-batch to one window of o, whose mean is
// acc.
func accumulate(g, acc snug.View, o accum.Options) (run, done func() error, err error) {
	o.Schedule, o.Buffer = accum.Constant(1<<30), acc
	w, err := accum.New([]accum.Param{{Name: "w", Len: g.Len()}}, o)
	if err != nil {
		return nil, nil, err
	}
	return func() error {
		if err := w.Begin(1); err != nil {
			return err
		}
		if err := w.Add("w", g); err != nil {
			return err
		}
		_, err := w.End()
		return err
	}, nil, nil
}
