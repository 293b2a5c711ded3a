package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// tiledModel has a layer of 100 rows of 2 elements a sample that can run in tiles, with 10 elements a row between.
func tiledModel() Model {
	l := Layer{Name: "mlp", Repeat: 2, Params: [][]int{{10, 2}, {2, 10}}, Output: 200, Kept: 1000, Forward: 600, Backward: 800, Stats: 100, Rows: 100, MACs: 4000,
		Tiles:    Tiles{Whole: 40, Forward: 700, Adapters: []Adapter{{In: 200, Out: 1000, Forward: 900, Backward: 1100}}},
		Adapters: []Adapter{{In: 200, Out: 1000, Forward: 800, Backward: 1100, Gradient: 200, Shares: 2}}}
	return Model{Name: "tiled", Input: 200, Layers: []Layer{l, {Name: "whole", Output: 200, Kept: 50}}}
}

// TestTiles: a layer in tiles keeps its output alone, and its steps hold what the largest tile takes.
func TestTiles(t *testing.T) {
	task := Task{Model: tiledModel(), Device: devices[0], Batch: 4, Own: true}
	for _, c := range []struct {
		rank, tiles, micro int
		tile               int64 // rows
		frozen, vera       bool
	}{
		{0, 0, 4, 0, false, false}, {0, 1, 4, 0, false, false}, {0, 2, 4, 200, false, false}, {0, 2, 1, 50, false, false}, {0, 3, 1, 34, false, false},
		{0, 9, 1, 34, false, false}, {0, 9, 4, 45, false, false}, {0, 1 << 20, 4, 40, false, false}, {3, 2, 4, 200, false, false}, {3, 7, 3, 43, false, false},
		{3, 2, 4, 200, true, false}, {3, 7, 3, 43, false, true}, {3, 1, 4, 0, false, true},
	} {
		task.Rank, task.FrozenA, task.VeRA = c.rank, c.frozen, c.vera
		window := ceilDiv(4, c.micro)
		r := Run{Micro: c.micro, Window: window, Compute: snug.BF16, Tiles: c.tiles}
		if c.rank > 0 {
			r.Frozen = 16
		}
		costs, err := task.Costs(r)
		require.NoError(t, err)
		rows, got := int64(100*c.micro), costs.Stages[0]
		forward, backward := int64(6), int64(8) // elements a row
		if c.tile > 0 {
			forward = 7
		}
		if c.rank > 0 {
			if forward, backward = 9+3, 11+2*3; c.tile == 0 {
				forward = 8 + 3
			}
			if c.frozen || c.vera {
				backward = 11 - 2 + 3*3
			}
		}
		want := []int64{rows * 4, rows * (4 + 20 + 4), rows * forward * 2, rows * backward * 2}
		if c.tile > 0 {
			want = []int64{rows * 4, rows * 4, c.tile * forward * 2, c.tile * (20 + 4 + backward*2)}
		}
		require.Equal(t, want, []int64{got.Output, got.Saved, got.ForwardExtra, got.BackwardExtra}, c)
		require.Equal(t, 5*rows, costs.Stages[2].Saved, "the other layer is whole")
	}
	for _, spoil := range []func(l *Layer){
		func(l *Layer) { l.Rows = 0 }, func(l *Layer) { l.Tiles.Whole = -1 }, func(l *Layer) { l.Tiles.Forward = -1 },
		func(l *Layer) { l.Tiles.Adapters = []Adapter{{In: -1}} }, func(l *Layer) { l.Adapters[0].Gradient = -1 }, func(l *Layer) { l.Adapters[0].Shares = -1 }, func(l *Layer) { l.Tiles.Forward = maxCount + 1 },
	} {
		m := tiledModel()
		spoil(&m.Layers[0])
		require.ErrorIs(t, m.Validate(), snug.ErrShape)
	}
}

// TestFitTiles: with several numbers of tiles the plan is the fastest that fits, also of micro-batches, whose tiles have
// rows that are not in proportion to their samples.
func TestFitTiles(t *testing.T) {
	d := devices[0]
	d.Fragmentation = 0
	task := Task{Model: tiledModel(), Device: d, Batch: 4, Compute: []snug.DType{snug.F32}}
	task.Model.Layers[0].Repeat = 1
	seen := map[int]bool{}
	for limit := int64(12 << 10); limit < 80<<10; limit += 512 {
		task.Tiles = []int{1, 2, 4, 8}
		p, err := Best(task.Fit(limit))
		var fastest float64
		for _, tiles := range task.Tiles {
			task.Tiles = []int{tiles}
			if q, err := Best(task.Fit(limit)); err == nil && (fastest == 0 || q.Seconds < fastest) {
				fastest = q.Seconds
			}
		}
		if fastest == 0 {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			continue
		}
		require.NoError(t, err)
		require.InEpsilon(t, fastest, p.Seconds, 1e-9)
		require.LessOrEqual(t, p.Peak[meter.OnDevice].Total(), limit)
		seen[p.Run.Tiles] = true
	}
	require.True(t, seen[1])
	require.Greater(t, len(seen), 1)
}

// TestPagedCheckpoints: a run whose checkpoints are on disk counts them there, and the pages on their way in memory.
func TestPagedCheckpoints(t *testing.T) {
	for _, unified := range []bool{false, true} {
		d := devices[0]
		d.Unified, d.Disk, d.Host = unified, 1<<40, 1<<30
		task := Task{Model: tiledModel(), Device: d, Batch: 4}
		task.Model.Layers[0].Repeat = 30
		r := Run{Micro: 4, Window: 1, Compute: snug.F32}
		costs, err := task.Costs(r)
		require.NoError(t, err)
		costs.Disk = remat.Rates{Write: 1e12, Read: 1e12}
		r.Remat, err = remat.HRevolve(costs, 0, len(costs.Stages), remat.Disk)
		require.NoError(t, err)
		p, err := task.Predict(r)
		require.NoError(t, err)
		report, err := r.Remat.Simulate(costs)
		require.NoError(t, err)
		require.Equal(t, report.Disk, p.Peak[meter.OnDisk].Total())
		host := map[bool]meter.Tier{false: meter.OnHost, true: meter.OnDevice}[unified]
		onHost := p.Peak[host][meter.Activations]
		if unified {
			onHost -= report.Peak
		}
		want := min(int64(CheckpointBytes), report.Disk)
		if !unified {
			want += CheckpointPinned
		}
		require.Equal(t, want, onHost)
	}
}
