//go:build cuda || hip || metal || emu

package attention

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Matrix units are for 16-bit rows of up to 256 elements from multiples of 16 bytes to
// multiples of 16 bytes.
func TestKernelsFor(t *testing.T) {
	long := Options{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 4, Dim: 64}
	for name, tc := range map[string]struct {
		change func(*Options)
		dt     snug.DType
		start  int
		want   *gpuKernels
	}{
		"64":            {func(*Options) {}, snug.BF16, aligning, gpuUnits[0]},
		"128":           {func(c *Options) { c.Dim = 128 }, snug.F16, aligning, gpuUnits[1]},
		"256":           {func(c *Options) { c.Dim = 256 }, snug.BF16, aligning, gpuUnits[2]},
		"packed":        {func(c *Options) { *c = PackedQKV(*c) }, snug.F16, aligning, gpuUnits[0]},
		"short":         {func(c *Options) { c.Dim = 8 }, snug.F16, aligning, gpuUnits[0]},
		"96":            {func(c *Options) { c.Dim = 96 }, snug.F16, aligning, gpuUnits[1]},
		"values of 128": {func(c *Options) { c.DimV = 128 }, snug.F16, aligning, gpuUnits[1]},
		"keys of 192":   {func(c *Options) { c.Dim, c.DimV = 192, 128 }, snug.F16, aligning, gpuUnits[2]},
		"f32":           {func(*Options) {}, snug.F32, aligning, &gpuPlain},
		"264":           {func(c *Options) { c.Dim = 264 }, snug.F16, aligning, &gpuPlain},
		"values of 264": {func(c *Options) { c.DimV = 264 }, snug.F16, aligning, &gpuPlain},
		"60":            {func(c *Options) { c.Dim = 60 }, snug.F16, aligning, &gpuPlain},
		"values of 60":  {func(c *Options) { c.DimV = 60 }, snug.F16, aligning, &gpuPlain},
		"odd start":     {func(*Options) {}, snug.F16, 0, &gpuPlain},
		"odd rows":      {func(c *Options) { c.K = Strides{Batch: 800, Head: 400, Row: 68} }, snug.F16, aligning, &gpuPlain},
	} {
		t.Run(name, func(t *testing.T) {
			c := long
			tc.change(&c)
			r := resolved(t, c)
			var backend kerneltest.Backend
			for _, p := range kerneltest.Backends(t) {
				if !onHost(p) {
					backend = p
				}
			}
			if backend.Dev == nil {
				t.Skip("no device, whose memory begins at multiples of what kernels want")
			}
			views := [4]snug.View{}
			for i, o := range r.operands() {
				views[i] = put(t, backend, tc.dt, o, tc.start, nil).View
			}
			require.Same(t, tc.want, gpuKernelsFor(&r, &views[0], &views[1], &views[2], &views[3]))
		})
	}
}

// launcher is a device that may have the instructions of compute capability 9.0.
type launcher struct {
	gpu.Launcher
	hopper bool
}

func (l launcher) Hopper(*gpu.Module) bool { return l.hopper }

// Kernels for compute capability 9.0 take what matrix units do, except scales that are
// not positive and sizes that 32 bits do not count.
func TestHopperFor(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		k      *gpuKernels
		has    bool
		want   *hopper
	}{
		"64":              {func(*Options) {}, gpuUnits[0], true, &hoppers[0]},
		"128":             {func(*Options) {}, gpuUnits[1], true, &hoppers[1]},
		"256":             {func(*Options) {}, gpuUnits[2], true, &hoppers[2]},
		"other devices":   {func(*Options) {}, gpuUnits[0], false, nil},
		"plain":           {func(*Options) {}, &gpuPlain, true, nil},
		"negative scale":  {func(c *Options) { c.Scale = -1 }, gpuUnits[0], true, nil},
		"no keys":         {func(c *Options) { c.SeqQ, c.SeqK = 0, 0 }, gpuUnits[0], true, nil},
		"no queries":      {func(c *Options) { c.SeqQ = 0 }, gpuUnits[0], true, nil},
		"no heads":        {func(c *Options) { c.Heads, c.KVHeads = 0, 0 }, gpuUnits[0], true, nil},
		"no batch":        {func(c *Options) { c.Batch = 0 }, gpuUnits[0], true, nil},
		"many keys":       {func(c *Options) { c.SeqK = 1<<31 - 1 }, gpuUnits[0], true, nil},
		"many tiles":      {func(c *Options) { c.Batch = 1 << 26; c.SeqQ = 640 }, gpuUnits[0], true, nil},
		"distant batches": {func(c *Options) { c.K = Strides{Batch: 1 << 39, Head: 64, Row: 128} }, gpuUnits[0], true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := Options{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 4, Dim: 64}
			tc.change(&c)
			r := resolved(t, c)
			require.Same(t, tc.want, hopperFor(launcher{hopper: tc.has}, &r, tc.k))
		})
	}
	r := resolved(t, Options{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 4, Dim: 64})
	require.Nil(t, hopperFor(nil, &r, gpuUnits[0]), "a device that knows nothing of it")
}

// Tensor maps have bytes for strides, and none that the driver refuses where a dimension
// has one member.
func TestTensorMap(t *testing.T) {
	mem := snug.ViewOf(make([]snug.BFloat16, 1))
	c := resolved(t, SequenceMajor(Options{Batch: 3, Heads: 4, KVHeads: 2, SeqQ: 5, SeqK: 7, Dim: 64, DimV: 72}))
	q, v := c.queryMap(&mem, 128), c.valueMap(&mem, 96)
	require.Equal(t, gpu.TensorMap{Mem: *device.Mem(&mem), Dims: [4]int{64, 5, 4, 3}, Strides: [3]int{512, 128, 2560}, Rows: 128}, q)
	require.Equal(t, gpu.TensorMap{Mem: *device.Mem(&mem), Dims: [4]int{72, 7, 2, 3}, Strides: [3]int{288, 144, 2016}, Rows: 96}, v)
	c = resolved(t, Options{Batch: 1, Heads: 1, SeqQ: 1, SeqK: 7, Dim: 72, Q: Strides{Row: 72}})
	require.Equal(t, [3]int{144, 144, 144}, c.queryMap(&mem, 128).Strides)
}

// A block's memory is at most what devices of compute capability 9.0 grant.
func TestHopperShared(t *testing.T) {
	for i := range hoppers {
		h := &hoppers[i]
		for own, p := range map[int]*hopperPass{1: &h.forward, 2: &h.backwardQuery, 3: &h.backwardKey} {
			require.LessOrEqual(t, p.shared(h, min(own, 2)), 227<<10, "%s", p.names[1])
			require.Zero(t, p.rows%64+p.step%16)
		}
	}
}

// A device is asked for every kernel that is launched, with the block memory of its launches.
func TestHopperEntries(t *testing.T) {
	named := map[string]int{}
	for _, e := range hopperKernels.Entries {
		named[e.Name] = e.Shared
	}
	require.Len(t, named, 18)
	h := &hoppers[1]
	require.Equal(t, h.forward.shared(h, 1), named["attention_forward_hopper128_bf16"])
	require.Equal(t, h.backwardQuery.shared(h, 2), named["attention_backward_query_hopper128_f16"])
	require.Equal(t, h.backwardKey.shared(h, 2), named["attention_backward_key_hopper128_f16"])
}

// refuser is a launcher whose driver maps no tensors.
type refuser struct {
	launcher
	names []string
}

func (r *refuser) LaunchGrid(l *gpu.Launch) error {
	if len(l.Maps) > 0 {
		return fmt.Errorf("the driver says no: %w", gpu.ErrTensorMap)
	}
	r.names = append(r.names, l.Func)
	return nil
}

// Tensors that the driver does not map are for the other kernels.
func TestTensorsThatAreNotMapped(t *testing.T) {
	c := resolved(t, Options{Batch: 1, Heads: 1, SeqQ: 3, SeqK: 3, Dim: 64, Causal: true})
	j := forwardJob{c: c}
	for _, v := range []*snug.View{&j.out, &j.q, &j.k, &j.v} {
		*v = snug.SliceView(make([]snug.BFloat16, 3*64))
	}
	q := &refuser{launcher: launcher{hopper: true}}
	require.NoError(t, j.Grids(q))
	require.Equal(t, []string{"attention_forward_unit64_bf16", "attention_mend_forward_bf16"}, q.names)
}
