package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// hostMemory returns the bytes of memory that this process can have: the machine's memory, or the limit of the process's
// control group if that is less, and 0 where the system says neither. root is the file system of the machine.
func hostMemory(root fs.FS) int64 {
	limit := cgroupLimit(root)
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return limit
	}
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) > 1 && string(f[0]) == "MemTotal:" {
			if kib, err := strconv.ParseInt(string(f[1]), 10, 53); err == nil && (limit == 0 || kib<<10 < limit) {
				return kib << 10
			}
		}
	}
	return limit
}

// fitsHost returns an error if the weights of a model alone take more than limit bytes, because the system would end the
// process while it reads them. A limit of 0 stands for no limit.
func fitsHost(command, dir string, c *transformer.Config, o transformer.Options, limit int64) error {
	tensors, err := c.Tensors()
	if err != nil || limit == 0 || o.Device != nil && !o.Device.IsCPU() {
		return err
	}
	bits := int64(8 * cmp.Or(o.DType, c.DType, snug.F32).Size())
	if form := cmp.Or(o.Base, c.Stored); form != qlora.Type(0) {
		bits = int64(formBits(form, c))
	}
	total := int64(0)
	for _, t := range tensors {
		n := int64(1)
		for _, d := range t.Shape {
			n *= int64(d)
		}
		if total += n / 8 * bits; total > limit {
			return fmt.Errorf("%s: %s: its weights take more than the %s of memory that this machine or container has: %w", command, dir, meter.FormatBytes(limit), snug.ErrNoMemory)
		}
	}
	return nil
}

// formBits returns the bits of an element of a matrix in a form.
func formBits(form qlora.Type, c *transformer.Config) float64 {
	if form == c.Stored && c.StoredBits > 0 {
		return c.StoredBits
	}
	return float64(plan.BitsOf(form))
}

// quantizedBytes returns about the bytes of the matrices that a model holds in few bits, 0 for one in floats.
func quantizedBytes(c *transformer.Config, o *transformer.Options) (bytes int64) {
	form := cmp.Or(o.Base, c.Stored)
	m, err := c.Plan(1)
	if form == 0 || err != nil {
		return 0
	}
	for _, l := range m.Layers {
		for i, shape := range l.Params {
			if len(shape) == 2 && !slices.Contains(l.Floats, i) {
				bytes += int64(max(1, l.Repeat)) * int64(float64(shape[0])*float64(shape[1])/8*formBits(form, c))
			}
		}
	}
	return bytes
}
