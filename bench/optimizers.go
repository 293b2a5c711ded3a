package main

import (
	"errors"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

// block is the block of 8-bit state and quantized vectors, in elements.
const block = 256

// optimizers are one step of one parameter. "adamw" has its float32 state in an offload
// store with all pages in memory, "adamw32" and "adamw8" have 32 and 8 bits of state of their
// own. All look for non-finite gradients first.
func optimizers(s sizes) (all []work) {
	for _, n := range s.lens {
		all = append(all, work{
			kernel: "adamw", dtype: "f32", shape: lenShape(n),
			reads: 16 * float64(n), writes: 12 * float64(n), ops: 14 * float64(n), inPlace: true, peers: []string{torch, deepspeed},
			host:    true,
			prepare: func(mem *memory) (run, done func() error, err error) { return pagedAdamW(mem, n) },
		})
	}
	for _, n := range s.lens {
		all = append(all, work{
			kernel: "adamw32", dtype: "f32", shape: lenShape(n),
			reads: 16 * float64(n), writes: 12 * float64(n), ops: 14 * float64(n), inPlace: true, peers: []string{torch},
			prepare: func(mem *memory) (run, done func() error, err error) { return adamW(mem, snug.F32, n, 32) },
		})
	}
	for _, dt := range both {
		for _, n := range s.lens {
			state := 2*float64(n) + 8*float64(quant8.Blocks(n, block))
			all = append(all, work{
				kernel: "adamw8", dtype: dt.String(), shape: lenShape(n),
				reads: 2*size(dt, n) + state, writes: size(dt, n) + state, ops: 20 * float64(n), inPlace: true, peers: []string{bitsandbytes},
				prepare: func(mem *memory) (run, done func() error, err error) { return adamW(mem, dt, n, 8) },
			})
		}
	}
	return all
}

const learningRate = 1e-4

func adamW(mem *memory, dt snug.DType, n, bits int) (run, done func() error, err error) {
	opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.01}, quant8.Options{Bits: bits, Block: block})
	if err != nil {
		return nil, nil, err
	}
	if err := opt.Add("w", n); err != nil {
		return nil, nil, err
	}
	p, g := mem.operand(dt, n), mem.operand(dt, n)
	return func() error {
		opt.Advance(learningRate)
		return opt.Step("w", p, g, 1)
	}, opt.Close, nil
}

func pagedAdamW(mem *memory, n int) (run, done func() error, err error) {
	dir, err := os.MkdirTemp("", "snug-bench-")
	if err != nil {
		return nil, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	store, err := offload.Open(dir, offload.Options{})
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	done = func() error { return errors.Join(store.Close(), remove()) }
	opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.01}, quant8.Options{Bits: 32, Storage: store})
	if err == nil {
		err = opt.Add("w", n)
	}
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	p, g := mem.operand(snug.F32, n), mem.operand(snug.F32, n)
	return func() error {
		opt.Advance(learningRate)
		return opt.Step("w", p, g, 1)
	}, done, nil
}

// quantizers are blockwise quantization and back.
func quantizers(s sizes) (all []work) {
	for _, kernel := range []string{"quantize", "dequantize"} {
		for _, dt := range both {
			for _, n := range s.lens {
				wide, narrow := size(dt, n), float64(n)+4*float64(quant8.Blocks(n, block))
				w := work{
					kernel: kernel, dtype: dt.String(), shape: lenShape(n), reads: wide, writes: narrow, ops: 2 * float64(n),
					peers:   []string{bitsandbytes},
					prepare: func(mem *memory) (run, done func() error, err error) { return prepareQuantizer(mem, kernel, dt, n) },
				}
				if kernel == "dequantize" {
					w.reads, w.writes = narrow, wide
				}
				all = append(all, w)
			}
		}
	}
	return all
}

func prepareQuantizer(mem *memory, kernel string, dt snug.DType, n int) (run, done func() error, err error) {
	v, codes, absmax := mem.operand(dt, n), mem.empty(snug.U8, n), mem.empty(snug.F32, quant8.Blocks(n, block))
	m := quant8.DynamicMap(true)
	quantize := func() error { return quant8.Quantize(codes, absmax, v, m, block) }
	if kernel == "quantize" {
		return quantize, nil, nil
	}
	return func() error { return quant8.Dequantize(v, codes, absmax, m, block) }, nil, quantize()
}
