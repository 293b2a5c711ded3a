package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
)

// A teacher adds its weights, the activations of a forward pass, and the workspace of the loss that compares.
func TestTeacher(t *testing.T) {
	model, err := GPT{Vocab: 500, Dim: 64, Layers: 3, Heads: 4, Context: 32}.Model()
	require.NoError(t, err)
	large, err := GPT{Vocab: 500, Dim: 128, Layers: 4, Heads: 4, Context: 32}.Model()
	require.NoError(t, err)
	task, r := Task{Model: model, Device: devices[0], Batch: 4, Process: &Process{Base: 1 << 20, Cores: 2}}, Run{Micro: 2, Window: 2, Compute: snug.BF16, Tiled: true}
	plain, err := task.Predict(r)
	require.NoError(t, err)
	taught := func(p Teacher) (more meter.Bytes, seconds float64) {
		task.Teacher = &p
		got, err := task.Predict(r)
		require.NoError(t, err)
		for i := range more {
			more[i] = got.Peak[meter.OnDevice][i] - plain.Peak[meter.OnDevice][i]
		}
		resident, err := task.Resident(r)
		require.NoError(t, err)
		require.Greater(t, resident, got.Peak[meter.OnDevice].Total()-got.Peak[meter.OnDevice][meter.Allowance])
		return more, got.Seconds - plain.Seconds
	}
	alone, fast := taught(Teacher{Model: large})
	require.Equal(t, 2*large.Parameters(), alone[meter.Weights])
	c := fused.CrossEntropy{Vocab: 500, Cols: 64, Chunk: 128}
	require.GreaterOrEqual(t, alone[meter.Workspace], 4*int64(fused.DistillWorkspaceLen(c, fused.CrossEntropy{Vocab: 500, Cols: 128}, 64)-c.WorkspaceLen(64)))
	stage := 2 * int64(2*32*128) // an output of the teacher, in bfloat16
	require.Greater(t, alone[meter.Activations], 2*stage)
	require.Less(t, alone[meter.Activations], 10*stage, "nothing is kept for a backward pass")
	require.Zero(t, alone[meter.Gradients]+alone[meter.State]+alone[meter.Masters])
	require.Positive(t, fast)
	both, slow := taught(Teacher{Model: large, Both: true})
	require.GreaterOrEqual(t, both[meter.Activations], alone[meter.Activations])
	require.Greater(t, slow, fast)
	low, _ := taught(Teacher{Model: large, Base: qlora.NF4})
	require.Less(t, low[meter.Weights], alone[meter.Weights]/2)
	require.Greater(t, low[meter.Workspace], alone[meter.Workspace], "the tile of decoded weights")

	other, err := GPT{Vocab: 501, Dim: 64, Layers: 3, Heads: 4, Context: 32}.Model()
	require.NoError(t, err)
	longer, err := GPT{Vocab: 500, Dim: 64, Layers: 3, Heads: 4, Context: 33}.Model()
	require.NoError(t, err)
	probs := task
	probs.Model.Head.LogProbs, probs.Teacher = true, &Teacher{Model: large}
	for _, bad := range []Teacher{{}, {Model: other}, {Model: longer}, {Model: large, Base: 99}} {
		task.Teacher = &bad
		_, err := task.Predict(r)
		require.Error(t, err)
	}
	_, err = probs.Predict(r)
	require.ErrorIs(t, err, snug.ErrConfig)
}
