package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// TestSchedule: the schedule has the predicted peak to the byte, under limits that recompute, with pages of checkpoints on
// devices and in unified memory, a teacher, and without gradients.
func TestSchedule(t *testing.T) {
	m, err := GPT{Vocab: 512, Dim: 64, Layers: 6, Heads: 4, Context: 128, Gated: true, RMSNorm: true, Rotary: true}.Model()
	require.NoError(t, err)
	device := Device{Name: "a device", Memory: 1 << 40, Host: 1 << 40, Disk: 1 << 40, F32: 1e12, F16: 1e12, Bandwidth: 1e11, HostF32: 1e11, HostBandwidth: 1e10, Link: 1e10, DiskRate: 1e9}
	unified := device
	unified.Unified, unified.Host = true, 0
	again, paged := false, false
	for _, task := range []Task{
		{Model: m, Device: device, Batch: 4}, {Model: m, Device: unified, Batch: 4, Micro: 4}, {Model: m, Device: device, Batch: 4, Micro: 4},
		{Model: m, Device: device, Batch: 4, Rank: 8}, {Model: m, Device: unified, Batch: 4, Optimizer: "mezo"},
		{Model: m, Device: unified, Batch: 4, Teacher: &Teacher{Model: m, Both: true}},
	} {
		_, err := Best(task.Fit(1))
		var miss *MissError
		require.ErrorAs(t, err, &miss)
		for _, limit := range []int64{miss.Minimum, miss.Minimum * 5 / 4, miss.Minimum * 2, 0} {
			p, err := Best(task.Fit(limit))
			require.NoError(t, err)
			list, err := p.Task.Schedule(p.Run)
			require.NoError(t, err)
			most, backward, losses := int64(0), 0, 0
			steps := p.Run.Remat
			c, err := p.Task.Costs(p.Run)
			require.NoError(t, err)
			if len(steps.Ops) == 0 {
				steps, err = remat.KeepAll(c)
				require.NoError(t, err)
			}
			simulated, err := steps.Simulate(c)
			require.NoError(t, err)
			beside := list[0].Device - simulated.Timeline[0].Peak // all the time
			if task.Optimizer != "mezo" && task.Teacher == nil && p.Peak[meter.OnDisk][meter.Activations] == 0 {
				require.Zero(t, beside)
			}
			for i, op := range list {
				if op.Kind == 0 {
					loss := 4 * m.Head.Stats * int64(p.Run.Micro)
					if task.Teacher != nil {
						loss += c.Stages[op.Stage-1].Output
					}
					require.Equal(t, simulated.Timeline[i-1].Held+loss+beside, op.Device)
				}
				most = max(most, op.Device)
				again = again || op.Again
				paged = paged || op.Kind == remat.PageDisk
				if op.Kind == remat.Backward {
					require.Equal(t, 1, losses, "the loss is first")
					backward++
				}
				if op.Kind == 0 {
					losses++
					require.Equal(t, "loss", op.Name)
				}
			}
			require.Equal(t, p.Peak[meter.OnDevice][meter.Activations], most)
			if task.Optimizer == "mezo" {
				require.Equal(t, 0, backward)
				require.Len(t, list, 2*m.stages())
				continue
			}
			require.Equal(t, m.stages(), backward)
		}
	}
	require.True(t, again)
	require.True(t, paged)
	_, err = Task{Model: m, Device: device, Batch: 4}.Schedule(Run{})
	require.ErrorIs(t, err, snug.ErrConfig)
}
