package fused

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// call is the operands of one call of any function, valid until a case spoils
// it.
type call struct {
	v         map[string]snug.View
	ids, pos  []int32
	cols      int
	eps       float32
	rotary    RotaryOptions
	mask      DropoutMask
	into      snug.Into
	config    CrossEntropy
	teacher   CrossEntropy
	gradScale float32
	act       Activation
	image     Image
	element   Elementwise
	dice      Dice
	groups    int
	count     int
	momentum  float32
	router    Router
	experts   []int32
	perExpert []float32
}

const (
	errRows, errCols, errVocab = 3, 4, 5
	untouched                  = 42
)

var (
	rowsByCols  = []string{"x", "teacherX", "dx", "dy", "out", "a", "b", "gate", "up", "dgate", "dup", "logits", "dlogits", "y", "kept", "targets"}
	vocabByCols = []string{"table", "dtable", "w", "dw", "teacherW"}
	// what comes before a point tells operands of one name apart
	perChannelOperands = []string{"channel.mean", "channel.rstd", "channel.m2", "channel.otherMean", "channel.otherM2", "channel.runningMean", "channel.runningVar"}
	perColumn          = []string{"gamma", "beta", "dgamma", "dbeta", "bias", "dbias"}
)

// newCall returns a valid call with every operand filled with untouched.
func newCall() *call {
	c := &call{
		v: map[string]snug.View{}, cols: errCols, gradScale: 1,
		ids: []int32{0, 2, 4}, pos: []int32{0, 1, 1},
		config: CrossEntropy{Vocab: errVocab, Cols: errCols}, teacher: CrossEntropy{Vocab: errVocab, Cols: errCols},
		rotary: RotaryOptions{Heads: 2, Dim: errCols / 2},
		act:    SiLU, image: Image{errRows, errCols, 1, false}, groups: 1, count: 2,
		element: Elementwise{Form: BCE}, dice: Dice{Cols: errCols},
		router: Router{Experts: errCols, Chosen: 2}, experts: []int32{0, 1, 2, 3, 1, 0}, perExpert: make([]float32, errCols),
	}
	put := func(n int, names ...string) {
		for _, name := range names {
			c.v[name] = snug.SliceView(fill(n, untouched))
		}
	}
	put(errRows*errCols, rowsByCols...)
	put(errVocab*errCols, vocabByCols...)
	put(errCols, perColumn...)
	put(errCols, "sums")
	put(errCols, perChannelOperands...)
	put(2*errCols, "double.sums")
	put(2*errRows, "weights", "dweights")
	put(errRows, "mean", "rstd", "logp", "lse", "dlse")
	put(errVocab, "Bias", "DBias")
	put(2*errCols, "pos", "angles")
	put(100, "ws")
	return c
}

var functions = map[string]func(c *call) error{
	"LayerNorm": func(c *call) error {
		return LayerNorm(c.v["out"], c.v["mean"], c.v["rstd"], c.v["x"], c.v["gamma"], c.v["beta"], c.eps)
	},
	"LayerNormBackward": func(c *call) error {
		return LayerNormBackward(c.v["dx"], c.v["dgamma"], c.v["dbeta"], c.v["dy"], c.v["x"], c.v["mean"], c.v["rstd"],
			c.v["gamma"], GradsInto{Input: c.into}, c.v["ws"])
	},
	"LayerNormBackward params": func(c *call) error {
		return LayerNormBackward(c.v["dx"], c.v["dgamma"], c.v["dbeta"], c.v["dy"], c.v["x"], c.v["mean"], c.v["rstd"],
			c.v["gamma"], GradsInto{Params: c.into}, c.v["ws"])
	},
	"RMSNorm": func(c *call) error { return RMSNorm(c.v["out"], c.v["rstd"], c.v["x"], c.v["gamma"], c.eps) },
	"RMSNormBackward": func(c *call) error {
		return RMSNormBackward(c.v["dx"], c.v["dgamma"], c.v["dy"], c.v["x"], c.v["rstd"], c.v["gamma"], GradsInto{Params: c.into}, c.v["ws"])
	},
	"GroupNorm": func(c *call) error {
		return GroupNorm(c.v["out"], c.v["mean"], c.v["rstd"], c.v["x"], c.v["gamma"], c.v["beta"], c.image, c.groups, c.eps, c.v["ws"])
	},
	"GroupNormBackward": func(c *call) error {
		return GroupNormBackward(c.v["dx"], c.v["dgamma"], c.v["dbeta"], c.v["dy"], c.v["x"], c.v["mean"], c.v["rstd"], c.v["gamma"], c.image, c.groups,
			GradsInto{Params: c.into}, c.v["ws"])
	},
	"ChannelNorm": func(c *call) error {
		return ChannelNorm(c.v["out"], c.v["mean"], c.v["rstd"], c.v["x"], c.v["gamma"], c.v["beta"], c.image, c.eps)
	},
	"ChannelNormBackward": func(c *call) error {
		return ChannelNormBackward(c.v["dx"], c.v["dgamma"], c.v["dbeta"], c.v["dy"], c.v["x"], c.v["mean"], c.v["rstd"], c.v["gamma"], c.image,
			GradsInto{Input: c.into}, c.v["ws"])
	},
	"BatchMoments": func(c *call) error {
		return BatchMoments(c.v["channel.mean"], c.v["channel.m2"], c.v["x"], c.image, c.v["ws"])
	},
	"MergeMoments": func(c *call) error {
		_, err := MergeMoments(c.v["channel.mean"], c.v["channel.m2"], c.count, c.v["channel.otherMean"], c.v["channel.otherM2"], c.count)
		return err
	},
	"BatchRstd": func(c *call) error { return BatchRstd(c.v["channel.rstd"], c.v["channel.m2"], c.count, c.eps) },
	"UpdateRunning": func(c *call) error {
		return UpdateRunning(c.v["channel.runningMean"], c.v["channel.runningVar"], c.v["channel.mean"], c.v["channel.m2"], c.count, c.momentum)
	},
	"BatchNorm": func(c *call) error {
		return BatchNorm(c.v["out"], c.v["x"], c.v["channel.mean"], c.v["channel.rstd"], c.v["gamma"], c.v["beta"], c.image)
	},
	"BatchNormSums": func(c *call) error {
		return BatchNormSums(c.v["double.sums"], c.v["dgamma"], c.v["dbeta"], c.v["dy"], c.v["x"], c.v["channel.mean"], c.v["channel.rstd"], c.image, c.into, c.v["ws"])
	},
	"BatchNormBackward": func(c *call) error {
		return BatchNormBackward(c.v["dx"], c.v["dy"], c.v["x"], c.v["channel.mean"], c.v["channel.rstd"], c.v["double.sums"], c.v["gamma"], c.image, c.count, c.into)
	},
	"ElementwiseLoss": func(c *call) error {
		_, err := ElementwiseLoss(c.element, c.v["x"], c.v["targets"])
		return err
	},
	"ElementwiseBackward": func(c *call) error {
		_, err := ElementwiseBackward(c.element, c.v["dx"], c.v["x"], c.v["targets"], c.gradScale)
		return err
	},
	"DiceLoss": func(c *call) error {
		_, err := DiceLoss(c.dice, c.v["x"], c.v["targets"])
		return err
	},
	"DiceBackward": func(c *call) error {
		_, err := DiceBackward(c.dice, c.v["dx"], c.v["x"], c.v["targets"], c.gradScale)
		return err
	},
	"Activate":         func(c *call) error { return Activate(c.v["out"], c.v["x"], c.act) },
	"ActivateBackward": func(c *call) error { return ActivateBackward(c.v["dx"], c.v["dy"], c.v["kept"], c.act) },
	"SwiGLU":           func(c *call) error { return SwiGLU(c.v["out"], c.v["gate"], c.v["up"]) },
	"SwiGLUBackward": func(c *call) error {
		return SwiGLUBackward(c.v["dgate"], c.v["dup"], c.v["dy"], c.v["gate"], c.v["up"])
	},
	"GeGLU": func(c *call) error { return GeGLU(c.v["out"], c.v["gate"], c.v["up"]) },
	"GeGLUBackward": func(c *call) error {
		return GeGLUBackward(c.v["dgate"], c.v["dup"], c.v["dy"], c.v["gate"], c.v["up"])
	},
	"GLU":         func(c *call) error { return GLU(c.v["out"], c.v["gate"], c.v["up"]) },
	"GLUBackward": func(c *call) error { return GLUBackward(c.v["dgate"], c.v["dup"], c.v["dy"], c.v["gate"], c.v["up"]) },
	"ClampedSwiGLU": func(c *call) error {
		return ClampedSwiGLU(c.v["out"], c.v["gate"], c.v["up"], c.gradScale, c.gradScale)
	},
	"ClampedSwiGLUBackward": func(c *call) error {
		return ClampedSwiGLUBackward(c.v["dgate"], c.v["dup"], c.v["dy"], c.v["gate"], c.v["up"], c.gradScale, c.gradScale)
	},
	"Route": func(c *call) error { return Route(c.router, c.experts, c.v["weights"], c.v["logits"], c.perExpert) },
	"RouteBackward": func(c *call) error {
		return RouteBackward(c.router, c.v["dlogits"], c.v["dweights"], c.v["logits"], c.experts, c.perExpert)
	},
	"AddScores": func(c *call) error { return AddScores(c.router, c.v["sums"], c.v["logits"], c.v["ws"]) },
	"AddRows": func(c *call) error {
		return AddRows(c.v["y"], c.v["x"], c.v["weights"], c.ids, c.router.Chosen, c.cols)
	},
	"AddRowsBackward": func(c *call) error {
		return AddRowsBackward(c.v["dx"], c.v["dweights"], c.v["dy"], c.v["x"], c.v["weights"], c.ids, c.router.Chosen, c.cols)
	},
	"Rotary":          func(c *call) error { return Rotary(c.v["x"], c.v["angles"], c.pos, c.rotary) },
	"RotaryBackward":  func(c *call) error { return RotaryBackward(c.v["dx"], c.v["angles"], c.pos, c.rotary) },
	"Dropout":         func(c *call) error { return Dropout(c.v["out"], c.v["x"], c.mask) },
	"DropoutBackward": func(c *call) error { return DropoutBackward(c.v["dx"], c.v["dy"], c.mask) },
	"BiasGELU":        func(c *call) error { return BiasGELU(c.v["out"], c.v["x"], c.v["bias"]) },
	"BiasGELUBackward": func(c *call) error {
		return BiasGELUBackward(c.v["dx"], c.v["dbias"], c.v["dy"], c.v["x"], c.v["bias"], c.into, c.v["ws"])
	},
	"BiasGELUErf": func(c *call) error { return BiasGELUErf(c.v["out"], c.v["x"], c.v["bias"]) },
	"BiasGELUErfBackward": func(c *call) error {
		return BiasGELUErfBackward(c.v["dx"], c.v["dbias"], c.v["dy"], c.v["x"], c.v["bias"], c.into, c.v["ws"])
	},
	"BiasAdd":         func(c *call) error { return BiasAdd(c.v["out"], c.v["x"], c.v["bias"]) },
	"BiasAddBackward": func(c *call) error { return BiasAddBackward(c.v["dbias"], c.v["dy"], c.into, c.v["ws"]) },
	"Add":             func(c *call) error { return Add(c.v["out"], c.v["a"], c.v["b"]) },
	"Embedding": func(c *call) error {
		return Embedding(c.v["out"], c.v["table"], c.ids, c.v["pos"], c.pos, c.cols)
	},
	"EmbeddingBackward": func(c *call) error {
		return EmbeddingBackward(c.v["dtable"], c.v["dy"], c.ids, c.cols, snug.Into{Alpha: c.gradScale, Beta: 1})
	},
	"CrossEntropyLoss": func(c *call) error {
		_, err := CrossEntropyLoss(c.withBias(), c.v["x"], c.v["w"], c.ids, c.v["ws"])
		return err
	},
	"CrossEntropyBackward": func(c *call) error {
		_, err := CrossEntropyBackward(c.withBias(), c.v["dx"], c.v["dw"], c.v["x"], c.v["w"], c.ids, c.gradScale, c.into, c.v["ws"])
		return err
	},
	"LogProbs": func(c *call) error {
		return LogProbs(c.withBias(), c.v["logp"], c.v["lse"], c.v["x"], c.v["w"], c.ids, c.v["ws"])
	},
	"LogProbsBackward": func(c *call) error {
		return LogProbsBackward(c.withBias(), c.v["dx"], c.v["dw"], c.v["logp"], c.v["dlse"], c.v["lse"], c.v["x"], c.v["w"], c.ids, c.into, c.v["ws"])
	},
	"Distill": func(c *call) error {
		_, err := Distill(c.withBias(), c.teacher, c.v["x"], c.v["w"], c.v["teacherX"], c.v["teacherW"], c.v["ws"])
		return err
	},
	"DistillBackward": func(c *call) error {
		_, err := DistillBackward(c.withBias(), c.teacher, c.v["dx"], c.v["dw"], c.v["x"], c.v["w"], c.v["teacherX"], c.v["teacherW"], c.gradScale, c.into, c.v["ws"])
		return err
	},
}

// operands lists the vectors of each function; the ones in f32 always hold
// float32, the optional ones may be empty.
var operands = map[string]struct{ floats, f32, optional []string }{
	"LayerNorm":             {[]string{"out", "x", "gamma", "beta"}, []string{"mean", "rstd"}, nil},
	"LayerNormBackward":     {[]string{"dx", "dy", "x", "gamma"}, []string{"dgamma", "dbeta", "mean", "rstd", "ws"}, nil},
	"RMSNorm":               {[]string{"out", "x", "gamma"}, []string{"rstd"}, []string{"rstd"}},
	"RMSNormBackward":       {[]string{"dx", "dy", "x", "gamma"}, []string{"dgamma", "rstd", "ws"}, []string{"dgamma"}},
	"ElementwiseLoss":       {[]string{"x", "targets"}, nil, nil},
	"ElementwiseBackward":   {[]string{"dx", "x", "targets"}, nil, nil},
	"DiceLoss":              {[]string{"x", "targets"}, nil, nil},
	"DiceBackward":          {[]string{"dx", "x", "targets"}, nil, nil},
	"Activate":              {[]string{"out", "x"}, nil, nil},
	"ActivateBackward":      {[]string{"dx", "dy", "kept"}, nil, nil},
	"GroupNorm":             {[]string{"out", "x", "gamma", "beta"}, []string{"mean", "rstd", "ws"}, nil},
	"GroupNormBackward":     {[]string{"dx", "dy", "x", "gamma"}, []string{"dgamma", "dbeta", "mean", "rstd", "ws"}, nil},
	"ChannelNorm":           {[]string{"out", "x", "gamma", "beta"}, []string{"mean", "rstd"}, nil},
	"ChannelNormBackward":   {[]string{"dx", "dy", "x", "gamma"}, []string{"dgamma", "dbeta", "mean", "rstd", "ws"}, nil},
	"BatchMoments":          {[]string{"x"}, []string{"channel.mean", "channel.m2", "ws"}, nil},
	"MergeMoments":          {nil, []string{"channel.mean", "channel.m2", "channel.otherMean", "channel.otherM2"}, nil},
	"BatchRstd":             {nil, []string{"channel.rstd", "channel.m2"}, nil},
	"UpdateRunning":         {nil, []string{"channel.runningMean", "channel.runningVar", "channel.mean", "channel.m2"}, nil},
	"BatchNorm":             {[]string{"out", "x", "gamma", "beta"}, []string{"channel.mean", "channel.rstd"}, nil},
	"BatchNormSums":         {[]string{"dy", "x"}, []string{"double.sums", "dgamma", "dbeta", "channel.mean", "channel.rstd", "ws"}, nil},
	"BatchNormBackward":     {[]string{"dx", "dy", "x", "gamma"}, []string{"channel.mean", "channel.rstd", "double.sums"}, []string{"double.sums"}},
	"SwiGLU":                {[]string{"out", "gate", "up"}, nil, nil},
	"SwiGLUBackward":        {[]string{"dgate", "dup", "dy", "gate", "up"}, nil, nil},
	"GeGLU":                 {[]string{"out", "gate", "up"}, nil, nil},
	"GeGLUBackward":         {[]string{"dgate", "dup", "dy", "gate", "up"}, nil, nil},
	"GLU":                   {[]string{"out", "gate", "up"}, nil, nil},
	"GLUBackward":           {[]string{"dgate", "dup", "dy", "gate", "up"}, nil, nil},
	"ClampedSwiGLU":         {[]string{"out", "gate", "up"}, nil, nil},
	"ClampedSwiGLUBackward": {[]string{"dgate", "dup", "dy", "gate", "up"}, nil, nil},
	"Route":                 {[]string{"logits"}, []string{"weights"}, nil},
	"RouteBackward":         {[]string{"dlogits", "logits"}, []string{"dweights"}, []string{"dweights"}},
	"AddScores":             {[]string{"logits"}, []string{"sums", "ws"}, []string{"logits"}},
	"AddRows":               {[]string{"y", "x"}, []string{"weights"}, []string{"weights"}},
	"AddRowsBackward":       {[]string{"dx", "dy", "x"}, []string{"weights", "dweights"}, []string{"weights", "dweights"}},
	"Rotary":                {[]string{"x"}, []string{"angles"}, nil},
	"RotaryBackward":        {[]string{"dx"}, []string{"angles"}, nil},
	"Dropout":               {[]string{"out", "x"}, nil, nil},
	"DropoutBackward":       {[]string{"dx", "dy"}, nil, nil},
	"BiasGELU":              {[]string{"out", "x", "bias"}, nil, nil},
	"BiasGELUBackward":      {[]string{"dx", "dy", "x", "bias"}, []string{"dbias", "ws"}, []string{"dbias"}},
	"BiasGELUErf":           {[]string{"out", "x", "bias"}, nil, nil},
	"BiasGELUErfBackward":   {[]string{"dx", "dy", "x", "bias"}, []string{"dbias", "ws"}, []string{"dbias"}},
	"BiasAdd":               {[]string{"out", "x", "bias"}, nil, nil},
	"BiasAddBackward":       {[]string{"dy"}, []string{"dbias", "ws"}, []string{"dy"}},
	"Add":                   {[]string{"out", "a", "b"}, nil, nil},
	"Embedding":             {[]string{"out", "table", "pos"}, nil, nil},
	"EmbeddingBackward":     {[]string{"dy"}, []string{"dtable"}, nil},
	"CrossEntropyLoss":      {[]string{"x", "w", "Bias"}, []string{"ws"}, []string{"Bias"}},
	"CrossEntropyBackward":  {[]string{"dx", "x", "w", "Bias"}, []string{"dw", "DBias", "ws"}, []string{"dx", "dw", "Bias", "DBias"}},
	"LogProbs":              {[]string{"x", "w", "Bias"}, []string{"logp", "lse", "ws"}, []string{"Bias"}},
	"LogProbsBackward": {
		[]string{"dx", "x", "w", "Bias"}, []string{"dw", "DBias", "logp", "dlse", "lse", "ws"}, []string{"dx", "dw", "Bias", "DBias", "dlse"},
	},
	"Distill": {[]string{"x", "w", "Bias"}, []string{"ws"}, []string{"Bias"}},
	"DistillBackward": {
		[]string{"dx", "x", "w", "Bias"}, []string{"dw", "DBias", "ws"}, []string{"dx", "dw", "Bias", "DBias"},
	},
}

// withBias returns the configuration with the vectors that it names.
func (c *call) withBias() CrossEntropy {
	c.config.Bias, c.config.DBias = c.v["Bias"], c.v["DBias"]
	return c.config
}

// requireRefused calls the function and checks the error, and that nothing was
// written.
func requireRefused(t *testing.T, name string, c *call, want error, words ...string) {
	t.Helper()
	err := functions[name](c)
	require.ErrorIs(t, err, want, name)
	require.ErrorContains(t, err, "fused: ")
	for _, w := range words {
		require.ErrorContains(t, err, w, name)
	}
	for operand, v := range c.v {
		for _, x := range v.Float32s() {
			require.Equal(t, float32(untouched), x, "%s wrote %s", name, operand)
		}
	}
}

func TestValidCallsSucceed(t *testing.T) {
	for name, f := range functions {
		require.NoError(t, f(newCall()), name)
	}
}

//check:in tiers
func TestWrongTypes(t *testing.T) {
	for name, o := range operands {
		for _, operand := range o.floats {
			if len(o.floats) > 1 { // a single one is free
				c := newCall()
				c.v[operand] = snug.SliceView(make([]snug.BFloat16, c.v[operand].Len()))
				requireRefused(t, name, c, snug.ErrDType, name, "bf16")
			}
			c := newCall()
			c.v[operand] = snug.SliceView(make([]int32, c.v[operand].Len()))
			requireRefused(t, name, c, snug.ErrDType, name, operandName(operand), "i32")
		}
		for _, operand := range o.f32 {
			c := newCall()
			c.v[operand] = snug.SliceView(make([]snug.Float16, c.v[operand].Len()))
			requireRefused(t, name, c, snug.ErrDType, name, operandName(operand), "f16")
		}
	}
}

func TestWrongLengths(t *testing.T) {
	for name, o := range operands {
		for _, operand := range slices.Concat(o.floats, o.f32) {
			c := newCall()
			c.v[operand] = snug.SliceView(fill(wrongLen(operand), untouched))
			requireRefused(t, name, c, snug.ErrShape, name)
			c = newCall()
			c.v[operand] = snug.View{}
			if slices.Contains(o.optional, operand) {
				require.NoError(t, functions[name](c))
				continue
			}
			requireRefused(t, name, c, snug.ErrShape, name)
		}
	}
}

// operandName returns an operand's name in errors.
func operandName(operand string) string { return operand[strings.LastIndex(operand, ".")+1:] }

// wrongLen returns a length that fits none of the functions.
func wrongLen(operand string) int {
	if operand == "ws" {
		return 3
	}
	return 7
}

func TestWrongDevices(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	for name, o := range operands {
		for _, operand := range slices.Concat(o.floats, o.f32) {
			c := newCall()
			a, err := snug.Make[float32](dev, c.v[operand].Len())
			require.NoError(t, err)
			c.v[operand] = a.View()
			requireRefused(t, name, c, snug.ErrDevice, name)
			require.NoError(t, a.Close())
		}
	}
}

func TestWrongConfiguration(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, bad := range []float32{nan, inf, -inf} {
		for name, set := range map[string]func(c *call){
			"LayerNorm":            func(c *call) { c.eps = bad },
			"RMSNorm":              func(c *call) { c.eps = bad },
			"GroupNorm":            func(c *call) { c.eps = bad },
			"ChannelNorm":          func(c *call) { c.eps = bad },
			"BatchRstd":            func(c *call) { c.eps = bad },
			"UpdateRunning":        func(c *call) { c.momentum = bad },
			"Dropout":              func(c *call) { c.mask.P = bad },
			"DropoutBackward":      func(c *call) { c.mask.P = bad },
			"EmbeddingBackward":    func(c *call) { c.gradScale = bad },
			"CrossEntropyBackward": func(c *call) { c.gradScale = bad },
			"DistillBackward":      func(c *call) { c.gradScale = bad },
			"CrossEntropyLoss":     func(c *call) { c.config.Smoothing = bad },
			"LogProbs":             func(c *call) { c.config.Temperature = bad },
			"Distill":              func(c *call) { c.teacher.Cap = bad },
		} {
			t.Run(name, func(t *testing.T) {
				c := newCall()
				set(c)
				requireRefused(t, name, c, snug.ErrConfig, name)
			})
		}
		for _, name := range []string{"LayerNormBackward", "LayerNormBackward params", "RMSNormBackward", "BiasGELUBackward", "BiasGELUErfBackward", "BiasAddBackward", "GroupNormBackward",
			"ChannelNormBackward", "BatchNormSums", "BatchNormBackward", "CrossEntropyBackward", "LogProbsBackward", "DistillBackward"} {
			for _, into := range []snug.Into{{Alpha: bad}, {Beta: bad}} {
				c := newCall()
				c.into = into
				requireRefused(t, name, c, snug.ErrConfig)
			}
		}
	}
	for _, name := range []string{"Activate", "ActivateBackward"} {
		for _, bad := range []Activation{0, leakyReLU + 1, LeakyReLU(nan), LeakyReLU(inf), ReLU | 1<<32} {
			c := newCall()
			c.act = bad
			requireRefused(t, name, c, snug.ErrConfig, name, "there is no ")
		}
	}
	c := newCall()
	c.eps = -1
	requireRefused(t, "LayerNorm", c, snug.ErrConfig, "eps is -1")
	for _, p := range []float32{-0.1, 1, 1.5} {
		c := newCall()
		c.mask.P = p
		requireRefused(t, "Dropout", c, snug.ErrConfig, "P is")
	}
	for _, config := range []RotaryOptions{
		{}, {Heads: 2}, {Dim: 2}, {Heads: -1, Dim: 2}, {Heads: 4, Dim: 1}, {Heads: 2, Dim: 2, Turned: 1}, {Heads: 1, Dim: 3},
		{Heads: 2, Dim: 2, Turned: 4}, {Heads: 2, Dim: 2, Turned: -2}, {Heads: 2, Dim: 2, Stride: 3}, {Heads: 2, Dim: 2, Stride: -4},
		{Heads: math.MaxInt, Dim: 2}, {Heads: math.MaxInt, Dim: 2, Stride: math.MaxInt - 1},
	} {
		c := newCall()
		c.rotary = config
		requireRefused(t, "Rotary", c, snug.ErrConfig)
	}
	for _, config := range []CrossEntropy{{}, {Vocab: 5}, {Cols: 4}, {Vocab: -5, Cols: 4}, {Vocab: 5, Cols: 4, Chunk: -1},
		{Vocab: 5, Cols: 4, Tile: -1}, {Vocab: 5, Cols: 4, Cap: -1}, {Vocab: 5, Cols: 4, Cap: nan}, {Vocab: 5, Cols: 4, Cap: inf}, {Vocab: 5, Cols: 4, Cap: 1e-38},
		{Vocab: 5, Cols: 4, Temperature: 1e31}, {Vocab: 5, Cols: 4, Temperature: -1}, {Vocab: 5, Cols: 4, Smoothing: 1.5}, {Vocab: 5, Cols: 4, ZLoss: -1}} {
		for _, name := range []string{"CrossEntropyLoss", "CrossEntropyBackward", "LogProbs", "LogProbsBackward", "Distill", "DistillBackward"} {
			c := newCall()
			c.config = config
			requireRefused(t, name, c, snug.ErrConfig, " is ")
		}
	}
	for _, spoil := range []func(c *CrossEntropy){
		func(c *CrossEntropy) { c.Smoothing = 0.1 }, func(c *CrossEntropy) { c.ZLoss = 0.1 }, func(c *CrossEntropy) { c.Weights = []float32{1, 1, 1} },
		func(c *CrossEntropy) { c.Losses = &Losses{} },
	} {
		for _, name := range []string{"LogProbs", "LogProbsBackward"} {
			c := newCall()
			spoil(&c.config)
			requireRefused(t, name, c, snug.ErrConfig, " is set, which only CrossEntropyLoss")
		}
		c := newCall()
		spoil(&c.teacher)
		requireRefused(t, "Distill", c, snug.ErrConfig)
	}
	for _, teacher := range []CrossEntropy{{}, {Vocab: 6, Cols: 4}, {Vocab: 5, Cols: 4, Chunk: 1}, {Vocab: 5, Cols: 4, Tile: 1},
		{Vocab: 5, Cols: 4, DBias: snug.ViewOf(make([]float32, 5))}} {
		for _, name := range []string{"Distill", "DistillBackward"} {
			c := newCall()
			c.teacher = teacher
			requireRefused(t, name, c, snug.ErrConfig, "Vocab")
		}
	}
	for _, name := range []string{"CrossEntropyLoss", "CrossEntropyBackward", "Distill"} {
		for _, bad := range []float32{nan, inf, -inf, -1} {
			c := newCall()
			c.config.Weights = []float32{0, 1, bad}
			requireRefused(t, name, c, snug.ErrConfig, "Weights[2] is")
		}
		for _, weights := range [][]float32{{}, {1, 1}, {1, 1, 1, 1}} {
			c := newCall()
			c.config.Weights = weights
			requireRefused(t, name, c, snug.ErrShape, "Weights has", "each of 3 ")
		}
	}
}

func TestWrongLosses(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, bad := range []Elementwise{{}, {Form: 7}, {Form: MSE, Delta: -1}, {Form: Huber, Delta: nan}, {Form: Huber, Delta: inf}, {Form: Focal, Alpha: 2},
		{Form: Focal, Alpha: -inf}, {Form: Focal, Gamma: -1}, {Form: Focal, Gamma: nan}, {Form: BCE, Positions: -1}, {Form: MSE, PosWeight: []float32{1}},
		{Form: BCE, PosWeight: []float32{1, -1}}, {Form: BCE, Weights: []float32{nan}}} {
		for _, name := range []string{"ElementwiseLoss", "ElementwiseBackward"} {
			c := newCall()
			c.element = bad
			requireRefused(t, name, c, snug.ErrConfig, name)
		}
	}
	for _, bad := range []Elementwise{{Form: BCE, PosWeight: []float32{}}, {Form: BCE, PosWeight: make([]float32, 5)}, {Form: BCE, Weights: []float32{}},
		{Form: BCE, PosWeight: make([]float32, 2), Positions: math.MaxInt}, {Form: L1, Weights: make([]float32, 24)}} {
		for _, name := range []string{"ElementwiseLoss", "ElementwiseBackward"} {
			c := newCall()
			c.element = bad
			requireRefused(t, name, c, snug.ErrShape, name)
		}
	}
	for _, name := range []string{"DiceLoss", "DiceBackward"} {
		for _, bad := range []Dice{{Cols: 4, Smooth: -1}, {Cols: 4, Smooth: inf}, {Cols: 4, Weights: []float32{1, 2, inf}}} {
			c := newCall()
			c.dice = bad
			requireRefused(t, name, c, snug.ErrConfig, name)
		}
		for _, bad := range []Dice{{}, {Cols: -1}, {Cols: 5}, {Cols: 4, Weights: []float32{1}}, {Cols: math.MaxInt}} {
			c := newCall()
			c.dice = bad
			requireRefused(t, name, c, snug.ErrShape, name)
		}
	}
	for _, name := range []string{"ElementwiseBackward", "DiceBackward"} {
		c := newCall()
		c.gradScale = nan
		requireRefused(t, name, c, snug.ErrConfig, "gradScale")
	}
}

func TestWrongImages(t *testing.T) {
	shapes := []Image{{}, {-1, errCols, 1, false}, {errRows, 0, 1, false}, {errRows, errCols, 0, false}, {errRows, -errCols, -1, true}, {errRows, errCols, 2, true},
		{math.MaxInt, errCols, 1, false}, {errRows, math.MaxInt, math.MaxInt, true}}
	for _, name := range []string{"GroupNorm", "GroupNormBackward", "ChannelNorm", "ChannelNormBackward", "BatchMoments", "BatchNorm", "BatchNormSums", "BatchNormBackward"} {
		for _, s := range shapes {
			c := newCall()
			c.image = s
			requireRefused(t, name, c, snug.ErrShape, name)
		}
	}
	for _, groups := range []int{0, -1, 3, math.MaxInt, math.MinInt} {
		for _, name := range []string{"GroupNorm", "GroupNormBackward"} {
			c := newCall()
			c.groups = groups
			requireRefused(t, name, c, snug.ErrShape, name, "groups")
		}
	}
	for name, least := range map[string]int{"MergeMoments": 0, "BatchRstd": 1, "BatchNormBackward": 1, "UpdateRunning": 2} {
		for _, count := range []int{least - 1, math.MinInt} {
			c := newCall()
			c.count = count
			requireRefused(t, name, c, snug.ErrShape, name, "count")
		}
	}
	c := newCall()
	c.count = math.MaxInt
	requireRefused(t, "MergeMoments", c, snug.ErrShape, "fewer")
	c.momentum = 1.5
	requireRefused(t, "UpdateRunning", c, snug.ErrConfig, "0 to 1")
}

func TestWrongIndices(t *testing.T) {
	for _, name := range []string{"Embedding", "EmbeddingBackward", "CrossEntropyLoss", "CrossEntropyBackward", "LogProbs", "LogProbsBackward"} {
		c := newCall()
		c.ids[1] = errVocab
		requireRefused(t, name, c, snug.ErrShape, name, "[1] is 5", "5 rows")
		c = newCall()
		c.ids = c.ids[:2]
		requireRefused(t, name, c, snug.ErrShape, name)
	}
	for _, name := range []string{"Embedding", "EmbeddingBackward"} {
		c := newCall()
		c.ids[2] = -1
		requireRefused(t, name, c, snug.ErrShape, name, "tokens[2] is -1")
		for _, cols := range []int{0, -1, 3, math.MaxInt} {
			c = newCall()
			c.cols = cols
			requireRefused(t, name, c, snug.ErrShape, name)
		}
	}
	for _, positions := range [][]int32{nil, {0, 1}, {0, 1, 2}, {0, 1, -1}} {
		c := newCall()
		c.pos = positions
		requireRefused(t, "Embedding", c, snug.ErrShape, "position")
	}
	for _, positions := range [][]int32{nil, {0, 1}, {0, 1, 0, 0}, {0, 1, 4}, {0, 1, -1}} {
		c := newCall()
		c.pos = positions
		requireRefused(t, "Rotary", c, snug.ErrShape)
	}
	c := newCall()
	c.rotary.Stride = math.MaxInt / 2
	requireRefused(t, "Rotary", c, snug.ErrShape, "x has 12 elements")
}

func TestClosedDevice(t *testing.T) {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	a, err := snug.Make[float32](dev, 4)
	require.NoError(t, err)
	view := a.View()
	require.NoError(t, dev.Close())
	require.ErrorIs(t, Add(view, view, view), snug.ErrDevice)
}
