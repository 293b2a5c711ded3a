package transformer

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
)

// This file has the matrices in floats that lie in Options.Pages. An operation acquires the matrix that it multiplies by,
// and releases it when it has ended.

// checkPages returns an error for pages that do not go with the other options.
func (m *Model) checkPages(held qlora.Type) error {
	o := m.options
	switch {
	case o.Pages == nil && o.PageFloats:
		return fmt.Errorf("the option PageFloats wants Pages: %w", snug.ErrConfig)
	case o.Pages == nil:
		return nil
	}
	run := plan.Run{Compute: m.dtype, WeightsOn: meter.OnDisk, Frozen: plan.BitsOf(held)}
	if o.PageFloats {
		run.WeightsOn, run.Shard = meter.OnDevice, plan.ShardWeights
	}
	return run.CheckWeights(m.dev.IsCPU())
}

// Paged returns the key in Options.Pages, the type and the number of elements of a parameter in floats that lies there, and
// an empty key for others. Package train asks for it.
func (m *Model) Paged(name string) (key string, dt snug.DType, elements int) {
	p := m.index[name]
	if p == nil {
		return "", 0, 0
	}
	if _, is := p.Pages.(page); !is {
		return "", 0, 0
	}
	return pageKey(p), m.dtype, p.Len()
}

// page is a parameter in Options.Pages. It implements [layers.Pages].
type page struct {
	storage qlora.Storage
	param   *Param
	dt      snug.DType
}

// Acquire implements [layers.Pages].
func (p page) Acquire() (snug.View, error) {
	size := p.param.Len() * p.dt.Size()
	blob, err := p.storage.Acquire(pageKey(p.param), size)
	if err != nil {
		return snug.View{}, err
	}
	if len(blob) != size {
		err := fmt.Errorf("the Storage gives %d bytes of %s, want %d: %w", len(blob), p.param.Name, size, snug.ErrCorrupt)
		return snug.View{}, errors.Join(err, p.Release(false))
	}
	return device.As(snug.SliceView(blob), p.dt), nil
}

// Release implements [layers.Pages].
func (p page) Release(dirty bool) error { return p.storage.Release(pageKey(p.param), dirty) }
