package plan

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// TestResident: a process has its base, the bytes that are counted on the device and on the host,
// scratch for each core, and buffers of one kind of layer that wait for it. examples of package
// transformer measure it.
func TestResident(t *testing.T) {
	m, err := ModelNamed("gpt-34m", 0)
	require.NoError(t, err)
	d := oneMemory()
	d.Host, d.Disk, d.Fragmentation = 1<<40, 1<<40, 0.25
	task := Task{Model: m, Device: d, Batch: 8}
	resident := func(r Run, p Process) int64 {
		task := task
		task.Process = &p
		n, err := task.Resident(r)
		require.NoError(t, err)
		return n
	}
	keep := Run{Micro: 4, Window: 2, Compute: snug.BF16, Tiled: true}
	one := resident(keep, Process{Base: 1, Cores: 1})
	require.Equal(t, one+9, resident(keep, Process{Base: 10, Cores: 1}))
	require.Equal(t, one-1+baseBytes, resident(keep, Process{Cores: 1}))
	core := resident(keep, Process{Base: 1, Cores: 2}) - one
	require.GreaterOrEqual(t, core, int64(amp.MatMulScratch))
	require.Equal(t, one+6*core, resident(keep, Process{Base: 1, Cores: 7}))

	costs, err := task.Costs(keep)
	require.NoError(t, err)
	again := keep
	again.Remat, err = remat.RecomputeAll(costs)
	require.NoError(t, err)
	for _, r := range []Run{keep, again} {
		p, err := task.Predict(r)
		require.NoError(t, err)
		counted := p.Peak[meter.OnDevice].Total() - p.Peak[meter.OnDevice][meter.Allowance]
		gaps := resident(r, Process{Base: 1, Cores: 1}) - 1 - core - counted - amp.MatMulShared - codeBytes
		require.Equal(t, p.Peak[meter.OnDevice][meter.Activations]/32+1<<16, gaps)
		host := r
		host.StateOn = meter.OnHost
		require.Equal(t, resident(r, Process{}), resident(host, Process{}), "the host's memory is the same process")
	}
	task.Rank = 4
	frozen := Run{Micro: 1, Window: 8, Compute: snug.BF16, Frozen: 4, Tiled: true}
	require.Less(t, resident(frozen, Process{Base: 1}), one/2)
	for _, p := range []Process{{Base: -1}, {Cores: -1}} {
		task.Process = &p
		_, err := task.Resident(frozen)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	task.Process = nil
	_, err = task.Resident(Run{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestFitProcess: the run is the fastest whose process stays within the limit, of every limit.
func TestFitProcess(t *testing.T) {
	m, err := ModelNamed("gpt-34m", 0)
	require.NoError(t, err)
	d := oneMemory()
	d.Host, d.Disk = 0, 0
	task := Task{Model: m, Device: d, Batch: 8, Process: &Process{Base: 20 << 20, Cores: 2}}
	last := 0.0
	for _, limit := range []int64{4 << 30, 2 << 30, 1 << 30, 700 << 20, 500 << 20} {
		fit, err := Best(task.Fit(limit))
		require.NoError(t, err)
		resident, err := task.Resident(fit.Run)
		require.NoError(t, err)
		require.LessOrEqual(t, resident, limit)
		require.Greater(t, fit.Limit, limit/2, "not less than it could take")
		require.GreaterOrEqual(t, fit.Seconds, last, "less memory is not faster")
		last = fit.Seconds
	}
	for limit, text := range map[int64]string{
		30 << 20: "plan: nothing fits in 30.00 MiB: ",
		20 << 20: "; the process itself takes 20.00 MiB",
		1:        "plan: nothing fits in 1 B: ",
	} {
		_, err := Best(task.Fit(limit))
		require.ErrorIs(t, err, snug.ErrNoMemory)
		require.ErrorContains(t, err, text)
		var miss *MissError
		require.ErrorAs(t, err, &miss)
		_, err = Best(task.Fit(miss.Minimum))
		require.NoError(t, err, "the error names what is enough")
	}
	for _, limit := range []int64{-1, 1<<60 + 1} {
		_, err := Best(task.Fit(limit))
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	task.Process = &Process{Cores: -1}
	_, err = Best(task.Fit(1 << 30))
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Best(Task{Process: &Process{}}.Fit(1 << 30))
	require.ErrorIs(t, err, snug.ErrShape)
}

// TestFitProcessOfDeepModel: more memory is not slower where buffers that wait are most of what a run takes.
func TestFitProcessOfDeepModel(t *testing.T) {
	m, err := GPT{Vocab: 260, Dim: 128, Layers: 24, Heads: 2, KVHeads: 1, Hidden: 384, Context: 6145, Gated: true, Rotary: true, RMSNorm: true, SplitQKV: true}.Model()
	require.NoError(t, err)
	d := oneMemory()
	d.Host, d.Disk = 0, 0
	task := Task{Model: m, Device: d, Batch: 1, Rank: 16, Compute: []snug.DType{snug.F32}, Process: &Process{Base: 15 << 20, Cores: 2}}
	last := math.Inf(1)
	for _, limit := range []int64{112 << 20, 120 << 20, 128 << 20, 136 << 20} {
		fit, err := Best(task.Fit(limit))
		require.NoError(t, err)
		require.LessOrEqual(t, fit.Seconds, last)
		last = fit.Seconds
	}
}

// TestThisProcess: free memory of the heap, which the next values take, is not counted.
func TestThisProcess(t *testing.T) {
	p := ThisProcess()
	if now, peak := meter.Resident(); peak == 0 {
		require.Zero(t, p.Base)
	} else if now > 0 {
		large := make([]byte, 64<<20)
		for i := range large {
			large[i] = 1
		}
		held := ThisProcess()
		require.Greater(t, held.Base, p.Base+56<<20)
		require.NotZero(t, large[0])
	}
	require.Equal(t, runtime.GOMAXPROCS(0), p.Cores)
}
