package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/plan"
)

// components is how many parts of the memory this program has: all of package plan
// but the allowance of an allocator, since a pool loses nothing.
const components = plan.Allowance

// newMeter returns what counts the bytes that a run holds. limit is that of their sum;
// 0 for none.
func newMeter(limit int64) (*plan.Monitor, error) {
	return plan.NewMonitor(plan.MonitorOptions{Limits: [plan.Tiers]int64{limit}, Samples: 256})
}

// writeTimeline writes what a meter has counted, as CSV or SVG by the file's name.
func writeTimeline(name string, m *plan.Monitor, title string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if filepath.Ext(name) == ".csv" {
		err = m.WriteCSV(f)
	} else {
		if pages := m.Peak(plan.OnDisk); pages > 0 {
			title += fmt.Sprintf("; pages of %s on disk, up to %s in memory", plan.FormatBytes(pages), plan.FormatBytes(m.Peak(plan.OnHost)))
		}
		err = m.WriteSVG(f, plan.OnDevice, title)
	}
	return errors.Join(err, f.Close())
}

// tensor is a vector whose bytes a meter counts.
type tensor struct {
	snug.View
	part plan.Component
}

func bytesOf(t *tensor) int64 { return int64(t.Bytes()) }

// pool makes tensors and uses freed ones again. Its memory counts while it is
// in use.
type pool struct {
	dev   *snug.Device
	meter *plan.Monitor
	free  map[poolKey][]*tensor
	err   error // the first of the device, such as that its memory is full
}

type poolKey struct {
	dt snug.DType
	n  int
}

func newPool(dev *snug.Device, m *plan.Monitor) *pool {
	return &pool{dev: dev, meter: m, free: map[poolKey][]*tensor{}}
}

// get returns a tensor of n elements with arbitrary contents. Where the device
// has no room it keeps the error and returns an empty tensor.
func (p *pool) get(part plan.Component, dt snug.DType, n int) *tensor {
	key := poolKey{dt, n}
	p.meter.Add(plan.OnDevice, part, int64(n*dt.Size()))
	if err := p.meter.Check(); err != nil {
		p.err = cmp.Or(p.err, err)
		p.meter.Add(plan.OnDevice, part, -int64(n*dt.Size()))
		return &tensor{part: part}
	}
	list := p.free[key]
	if len(list) == 0 {
		v, err := newVector(p.dev, dt, n)
		p.err = cmp.Or(p.err, err)
		return &tensor{v, part}
	}
	t := list[len(list)-1]
	t.part = part
	p.free[key] = list[:len(list)-1]
	return t
}

// put gives tensors back. A nil tensor is nothing.
func (p *pool) put(list ...*tensor) {
	for _, t := range list {
		if t == nil {
			continue
		}
		key := poolKey{t.DType(), t.Len()}
		if slices.Contains(p.free[key], t) {
			panic(fmt.Sprintf("a tensor of %d %s was freed twice", t.Len(), t.DType()))
		}
		p.meter.Add(plan.OnDevice, t.part, -bytesOf(t))
		p.free[key] = append(p.free[key], t)
	}
}

// newVector allocates n zeroed elements, which live as long as the device.
func newVector(dev *snug.Device, dt snug.DType, n int) (snug.View, error) {
	v, _, err := snug.MakeView(dev, dt, n)
	return v, err
}

// sub returns n elements of v from lo on. The caller knows that they are there.
func sub(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err) // the layout of the model is wrong
	}
	return s
}
