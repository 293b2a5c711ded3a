package fused

import (
	"errors"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sentinels are those that an error of a bad argument may wrap.
var sentinels = []error{snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrConfig}

// extremes are numbers at the ends of what an int counts, and around the sizes of parts.
var extremes = []int{
	math.MinInt, math.MinInt + 1, -1, 0, 1, 2, 15, 16, 17, 63, 64, 65, itemLen, itemLen + 1, math.MaxInt32 - 1, math.MaxInt32,
	math.MaxInt / 2, math.MaxInt/2 + 1, math.MaxInt - 63, math.MaxInt - 1, math.MaxInt,
}

// spoil changes some of the arguments of a valid call.
func (c *call) spoil(t *rapid.T) {
	odd := func(name string) bool { return rapid.IntRange(0, 9).Draw(t, name+" is odd") == 0 }
	size := func(name string, n *int) {
		if odd(name) {
			*n = rapid.SampledFrom(extremes).Draw(t, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.v)) {
		if !odd(name) {
			continue
		}
		n := rapid.IntRange(0, 20).Draw(t, name+" length")
		c.v[name] = rapid.SampledFrom([]snug.View{
			{}, snug.SliceView([]float32(nil)), snug.SliceView(fill(n, untouched)), snug.SliceView(make([]snug.Float16, n)),
			snug.SliceView(make([]snug.BFloat16, n)), snug.SliceView(make([]int32, n)), snug.SliceView(make([]uint8, n)),
		}).Draw(t, name)
	}
	for i, indices := range []*[]int32{&c.ids, &c.pos} {
		if odd([]string{"ids", "pos"}[i]) {
			*indices = rapid.SliceOfN(rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 1, 5, math.MaxInt32}), 0, 4).Draw(t, "indices")
		}
	}
	size("cols", &c.cols)
	size("Vocab", &c.config.Vocab)
	size("Cols", &c.config.Cols)
	size("Chunk", &c.config.Chunk)
	size("Tile", &c.config.Tile)
	if odd("Cap") {
		c.config.Cap = rapid.Float32().Draw(t, "Cap")
	}
	for name, x := range map[string]*float32{"Temperature": &c.config.Temperature, "Smoothing": &c.config.Smoothing, "ZLoss": &c.config.ZLoss, "teacher's Cap": &c.teacher.Cap} {
		if odd(name) {
			*x = rapid.Float32Range(0, 2).Draw(t, name)
		}
	}
	size("teacher's Vocab", &c.teacher.Vocab)
	size("teacher's Cols", &c.teacher.Cols)
	if odd("Weights") {
		c.config.Weights = rapid.SliceOfN(rapid.Float32(), 0, 4).Draw(t, "Weights")
	}
	size("Experts", &c.router.Experts)
	size("Chosen", &c.router.Chosen)
	if odd("experts") {
		c.experts = rapid.SliceOfN(rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 3, math.MaxInt32}), 0, 6).Draw(t, "experts")
	}
	if odd("bias of experts") {
		c.perExpert = rapid.SliceOfN(rapid.Float32(), 0, 5).Draw(t, "bias of experts")
	}
	if odd("activation") {
		c.act = rapid.SampledFrom([]Activation{0, ReLU, Tanh, LeakyReLU(1), LeakyReLU(float32(math.NaN())), leakyReLU + 1}).Draw(t, "activation")
	}
	size("Batch", &c.image.Batch)
	size("Channels", &c.image.Channels)
	size("Positions", &c.image.Positions)
	size("groups", &c.groups)
	size("Positions of classes", &c.element.Positions)
	size("Cols of Dice", &c.dice.Cols)
	if odd("Form") {
		c.element = Elementwise{Form: LossForm(rapid.IntRange(0, 7).Draw(t, "Form")), Gamma: rapid.Float32().Draw(t, "Gamma"), Weights: make([]float32, rapid.IntRange(0, 4).Draw(t, "Weights"))}
	}
	size("count", &c.count)
	size("Heads", &c.rotary.Heads)
	size("Dim", &c.rotary.Dim)
	size("Turned", &c.rotary.Turned)
	size("Stride", &c.rotary.Stride)
	if odd("First") {
		c.mask.First = math.MaxUint64 - 1
	}
	if odd("all empty") {
		for name, v := range c.v {
			c.v[name], _ = v.Slice(0, 0)
		}
		c.ids, c.pos, c.experts = nil, nil, nil
	}
}

// limitsProperty calls every function with spoiled arguments: none panics, and an error
// wraps a sentinel and comes before anything is written.
func limitsProperty(t *rapid.T) {
	c := newCall()
	c.spoil(t)
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(functions))).Draw(t, "function")
	before := map[string][]byte{}
	for operand, v := range c.v {
		before[operand] = slices.Clone(device.Mem(&v).Bytes())
	}
	err := functions[name](c)
	if err == nil {
		return
	}
	if !slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) }) {
		t.Fatalf("%v wraps no sentinel", err)
	}
	for operand, v := range c.v {
		require.Equal(t, before[operand], device.Mem(&v).Bytes(), "%v, but %s was written", err, operand)
	}
}

func TestLimits(t *testing.T) {
	for range 30 { // a call takes microseconds
		rapid.Check(t, limitsProperty)
	}
}

func FuzzLimits(f *testing.F) { f.Fuzz(rapid.MakeFuzz(limitsProperty)) }

func TestWorkspaceLimits(t *testing.T) {
	for _, rows := range extremes {
		for _, cols := range extremes {
			for name, n := range map[string]int{
				"LayerNorm": LayerNormWorkspaceLen(rows, cols), "RMSNorm": RMSNormWorkspaceLen(rows, cols),
				"BiasAdd": BiasAddWorkspaceLen(rows, cols), "BiasGELU": BiasGELUWorkspaceLen(rows, cols), "CrossEntropy": CrossEntropy{Vocab: cols, Cols: 1, Tile: cols}.WorkspaceLen(rows),
				"CrossEntropy of chunks": CrossEntropy{Vocab: cols, Cols: cols, Chunk: rows}.WorkspaceLen(rows),
				"CrossEntropy of tiles":  CrossEntropy{Vocab: cols, Cols: cols, Tile: max(rows, 0)}.WorkspaceLen(rows),
				"Distill":                DistillWorkspaceLen(CrossEntropy{Vocab: cols, Cols: cols, Chunk: rows}, CrossEntropy{Vocab: cols, Cols: cols}, rows),
			} {
				if rows < 1 || cols < 1 {
					require.Zero(t, n, "%s of %d rows of %d", name, rows, cols)
					continue
				}
				require.GreaterOrEqual(t, n, cols, "%s of %d rows of %d", name, rows, cols)
			}
		}
	}
}

// Numbers that once were counted up to, or allocated.
func TestLargeNumbers(t *testing.T) {
	for _, turned := range []int{1 << 20, math.MaxInt32 - 1, math.MaxInt - 1} {
		require.NoError(t, RotaryAngles(nil, turned, 10000), "no rows of %d", turned)
		require.ErrorIs(t, RotaryAngles(make([]float32, 2), turned, 10000), snug.ErrShape)
	}
	for _, cols := range []int{math.MaxInt32, math.MaxInt} {
		require.NoError(t, EmbeddingBackward([]float32{}, []float32{}, nil, cols, snug.Into{Beta: 1}))
		require.NoError(t, EmbeddingBackward([]float32{}, []snug.Float16{}, nil, cols, snug.Into{Beta: 1}))
		require.NoError(t, Embedding([]snug.Float16{}, []snug.Float16{}, nil, []snug.Float16{}, nil, cols))
	}
}

// Zero values of every exported type, and zero Views and Arrays.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		CrossEntropy{}, CrossEntropyLoss[snug.View, snug.View], CrossEntropyBackward[snug.View, snug.View, snug.View], RotaryAngles,
		LogProbs[snug.View, snug.View], LogProbsBackward[snug.View, snug.View, snug.View], Distill[snug.View, snug.View, snug.View],
		DistillBackward[snug.View, snug.View, snug.View, snug.View], DistillWorkspaceLen,
		Add[[]float32], Add[snug.View], BiasAdd[snug.View], BiasAddBackward[snug.View, snug.View, snug.View],
		BiasGELU[[]float32], BiasGELU[snug.View], BiasGELUErf[snug.View], BiasGELUBackward[snug.View, snug.View, snug.View], BiasGELUErfBackward[snug.View, snug.View, snug.View],
		Dropout[snug.View], DropoutBackward[snug.View], Embedding[[]float32], Embedding[snug.View], EmbeddingBackward[snug.View, snug.View],
		LayerNorm[[]float32, []float32], LayerNorm[snug.View, snug.View], LayerNormBackward[snug.View, snug.View, snug.View],
		RMSNorm[snug.View, snug.View], RMSNormBackward[snug.View, snug.View, snug.View], Rotary[snug.View, snug.View], RotaryBackward[snug.View, snug.View],
		Router{}, Route[snug.View, snug.View], RouteBackward[snug.View, snug.View], AddScores[snug.View, snug.View], AuxLoss, UpdateBias, Group,
		AddRows[snug.View, snug.View], AddRowsBackward[snug.View, snug.View], ClampedSwiGLU[snug.View], ClampedSwiGLUBackward[snug.View],
		Elementwise{}, LossForm(0), LossForm(200), ElementwiseLoss[snug.View], ElementwiseBackward[snug.View], Dice{}, DiceLoss[snug.View], DiceBackward[snug.View],
		Image{}, GroupNorm[snug.View, snug.View], GroupNormBackward[snug.View, snug.View, snug.View], GroupNormWorkspaceLen, ChannelNorm[snug.View, snug.View],
		ChannelNormBackward[snug.View, snug.View, snug.View], ChannelNormWorkspaceLen, BatchNorm[snug.View, snug.View], BatchMoments[snug.View, snug.View],
		MergeMoments[snug.View], BatchRstd[snug.View], UpdateRunning[snug.View], BatchNormSums[snug.View, snug.View, snug.View],
		BatchNormBackward[snug.View, snug.View], BatchNormWorkspaceLen,
		Activation(0), ReLU, LeakyReLU, Activate[[]float32], Activate[snug.View], ActivateBackward[snug.View],
		SwiGLU[snug.View], SwiGLUBackward[snug.View], GeGLU[snug.View], GeGLUBackward[snug.View],
	)
	c := newCall()
	c.rotary, c.config = RotaryOptions{}, CrossEntropy{}
	for _, name := range []string{"Rotary", "RotaryBackward", "CrossEntropyLoss", "CrossEntropyBackward", "LogProbs", "LogProbsBackward", "Distill", "DistillBackward"} {
		requireRefused(t, name, c, snug.ErrConfig)
	}
	require.Zero(t, CrossEntropy{}.WorkspaceLen(3))
	x := []float32{1, 2}
	require.NoError(t, Dropout(x, x, DropoutMask{}), "P 0 keeps all")
	require.Equal(t, []float32{1, 2}, x)
	for name, f := range functions {
		c := newCall()
		for operand := range c.v {
			c.v[operand] = snug.View{}
		}
		c.ids, c.pos, c.experts = nil, nil, nil
		if err := f(c); err != nil {
			require.True(t, errors.Is(err, snug.ErrShape) || errors.Is(err, snug.ErrDType), "%s: %v", name, err)
		}
	}
	none := snug.Array[float32]{}
	require.NoError(t, Add(none, none, none))
	require.ErrorIs(t, BiasGELU(none, none, none), snug.ErrShape)
	require.ErrorIs(t, RMSNorm(none, none, none, none, 0), snug.ErrShape)
}
