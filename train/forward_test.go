package train

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/transformer"
	"github.com/stretchr/testify/require"
)

// TestMeZO: a model without a backward pass learns, nothing is held, and a run that is resumed has the bits of one that
// was not.
func TestMeZO(t *testing.T) {
	ctx := context.Background()
	for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
		run := func(dir string, ends ...int) (*toy, []float64) {
			var m *toy
			var losses []float64
			for _, end := range ends {
				m = newToy(t, dt, snug.F32)
				monitor, err := meter.New(meter.Options{})
				require.NoError(t, err)
				tr, err := New(ForwardOnly[[]int](m), Options{Optimizer: quant8.MeZO{Epsilon: 0x1p-6}, Schedule: Constant(2e-3), Checkpoints: Checkpoints{Dir: dir, SaveEvery: 20}, Seed: 2, Monitor: monitor})
				require.NoError(t, err)
				for tr.Step() < end {
					r, err := tr.Train(ctx, [][]int{{1, 2, 3}, {}, {4}})
					require.NoError(t, err)
					require.Equal(t, 4, r.Targets)
					require.Empty(t, r.Skipped)
					losses = append(losses, r.Loss)
				}
				require.Zero(t, tr.Bytes().Total())
				require.Zero(t, monitor.Peak(meter.OnDevice))
				require.NoError(t, tr.Save(ctx))
				require.NoError(t, tr.Close())
				require.NoError(t, tr.Close())
			}
			return m, losses
		}
		whole, losses := run(t.TempDir(), 120)
		require.Less(t, losses[len(losses)-1], 0.98*losses[0], "%v", dt)
		parts, _ := run(t.TempDir(), 7, 20, 120)
		require.Equal(t, whole.bits(), parts.bits(), "%v", dt)
	}
}

// spoiled is a toy whose losses are not finite.
type spoiled struct{ *toy }

func (s spoiled) Evaluate(context.Context, []int) (fused.Loss, error) {
	return fused.Loss{Sum: math.NaN(), Targets: 1}, nil
}

// TestMeZOErrors: what needs gradients is refused, and losses that are not finite are errors or skipped steps.
func TestMeZOErrors(t *testing.T) {
	for want, o := range map[string]Options{
		"InBackward":       {Gradients: plan.InBackward},
		"Clip":             {Clip: 1},
		"Measure":          {Measure: true},
		"a loss scale":     {Scaler: &amp.ScalerOptions{}},
		"StateBits":        {StateBits: 8},
		"Masters, because": {Masters: amp.SplitMaster},
		"Fill":             {Fill: func(string) FirstValue { return nil }},
	} {
		t.Run(want, func(t *testing.T) {
			o.Optimizer = quant8.MeZO{}
			_, err := New(Model[[]int](newToy(t, snug.F32, snug.F32)), o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
	_, err := New(ForwardOnly[[]int](nil), Options{Optimizer: quant8.MeZO{}})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = New(Model[[]int](newToy(t, snug.F32, snug.F32)), Options{Optimizer: quant8.MeZO{Epsilon: -1}})
	require.ErrorIs(t, err, snug.ErrConfig)
	tr := newTrainer(t, newToy(t, snug.F32, snug.F32), Options{})
	plain, err := New(ForwardOnly[[]int](newToy(t, snug.F32, snug.F32)), Options{})
	require.NoError(t, err)
	_, err = plain.Train(context.Background(), steps(1))
	require.ErrorContains(t, err, "no backward pass")
	require.NoError(t, tr.Close())
	for _, skip := range []bool{false, true} {
		m := newToy(t, snug.F32, snug.F32)
		tr, err := New(ForwardOnly[[]int](spoiled{m}), Options{Optimizer: quant8.MeZO{}, SkipNonFinite: skip})
		require.NoError(t, err)
		r, err := tr.Train(context.Background(), steps(1))
		if skip {
			require.NoError(t, err)
			require.Contains(t, r.Skipped, "the loss is NaN")
		} else {
			require.ErrorIs(t, err, snug.ErrNonFinite)
		}
	}
}

// TestMeZOMemory: a run of MeZO has the peak of an evaluation, by what the monitor counts of both, and the process
// allocates less than 4 KiB a step.
func TestMeZOMemory(t *testing.T) {
	ctx := context.Background()
	for _, adapter := range []*qlora.AdapterOptions{nil, {Rank: 2, Alpha: 4}} {
		peak := func(steps int) int64 {
			monitor, err := meter.New(meter.Options{})
			require.NoError(t, err)
			m, err := transformer.New(tinyConfig("llama", false), transformer.Options{Seed: 3, Monitor: monitor, Adapter: adapter})
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			_, err = m.Evaluate(ctx, tokens(0))
			require.NoError(t, err)
			if steps == 0 {
				return monitor.Peak(meter.OnDevice)
			}
			tr, err := New(ForwardOnly[transformer.Batch](m), Options{Optimizer: quant8.MeZO{}, Schedule: Constant(1e-4), Monitor: monitor})
			require.NoError(t, err)
			batches := []transformer.Batch{tokens(0)}
			least := uint64(math.MaxUint64) // of several steps: goroutines of the runtime allocate too
			var before, after runtime.MemStats
			for range steps {
				runtime.ReadMemStats(&before)
				_, err := tr.Train(ctx, batches)
				require.NoError(t, err)
				runtime.ReadMemStats(&after)
				least = min(least, after.TotalAlloc-before.TotalAlloc)
			}
			require.True(t, kerneltest.Race || least < 4<<10, least) // the race detector makes pools drop memory at random
			require.NoError(t, tr.Close())
			return monitor.Peak(meter.OnDevice)
		}
		require.Equal(t, peak(0), peak(5))
	}
}

// residentVariable names the job of a process that TestMeZOResident starts.
const residentVariable = "SNUG_MEZO_JOB"

// TestMeZOResident: the resident peak of a process that tunes 20 million weights by MeZO is the peak of one that only
// evaluates them, within the 4 MiB by which such peaks differ. Gradients would take another 80 MB.
func TestMeZOResident(t *testing.T) {
	if job := os.Getenv(residentVariable); job != "" {
		mezoResident(t, job)
		return
	}
	if runtime.GOOS != "linux" || kerneltest.Race {
		return // elsewhere the peak of the process counts its parent, and the race detector's shadow counts too
	}
	peak := func(job string) (bytes int64) {
		c := exec.Command(os.Args[0], "-test.run=^TestMeZOResident$")
		c.Env = append(os.Environ(), residentVariable+"="+job)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		_, err = fmt.Sscanf(string(out), "peak %d", &bytes)
		require.NoError(t, err, "%s", out)
		return bytes
	}
	evaluated, tuned := peak("evaluate"), peak("tune")
	t.Logf("evaluation %.1f MB, MeZO %.1f MB", float64(evaluated)/1e6, float64(tuned)/1e6)
	require.Less(t, tuned-evaluated, int64(4<<20))
}

// mezoResident evaluates or tunes, and prints the resident peak of the process.
func mezoResident(t *testing.T, job string) {
	ctx, c := context.Background(), tinyConfig("llama", true)
	c.Vocab, c.Dim, c.Hidden, c.Layers, c.HeadDim, c.Windows, c.Rope.Dim = 40000, 256, 1024, 10, 64, make([]int, 10), 64
	m, err := transformer.New(c, transformer.Options{Seed: 3})
	require.NoError(t, err)
	batches := []transformer.Batch{tokens(0)}
	tr, err := New(ForwardOnly[transformer.Batch](m), Options{Optimizer: quant8.MeZO{}, Schedule: Constant(1e-6)})
	require.NoError(t, err)
	for range 4 {
		if job == "evaluate" {
			_, err = m.Evaluate(ctx, batches[0])
		} else {
			_, err = tr.Train(ctx, batches)
		}
		require.NoError(t, err)
	}
	_, peak := meter.Resident()
	fmt.Printf("peak %d\n", peak)
}
