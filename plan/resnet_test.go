package plan_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

// network is a residual network of package layers, with the names of torchvision. A stage is the stem, a block or the mean.
type network struct{ side, channels int }

// conv returns a convolution and its norm, and goes on with its output.
func (n *network) conv(name, norm string, out, kernel, stride int) layers.Sequential {
	s := conv.Shape{In: n.channels, Out: out, Dims: 2, Size: [3]int{n.side, n.side}, Kernel: [3]int{kernel, kernel}, Stride: [3]int{stride, stride},
		PadBefore: [3]int{kernel / 2, kernel / 2}, PadAfter: [3]int{kernel / 2, kernel / 2}}
	n.side, n.channels = (n.side-1)/stride+1, out
	return layers.Sequential{layers.NewConv(name, s, false), layers.NewBatchNorm(norm, out, n.side*n.side)}
}

// block returns a residual block.
func (n *network) block(name string, width, stride int, bottleneck bool) layers.Layer {
	short, kernels, outs := *n, []int{3, 3}, []int{width, width}
	if bottleneck {
		kernels, outs = []int{1, 3, 1}, []int{width, width, 4 * width}
	}
	var f layers.Sequential
	for i, k := range kernels {
		by := 1
		if k == 3 && (i == 0 || bottleneck) {
			by = stride
		}
		if f = append(f, n.conv(fmt.Sprint(name, ".conv", i+1), fmt.Sprint(name, ".bn", i+1), outs[i], k, by)...); i < len(kernels)-1 {
			f = append(f, layers.ReLU)
		}
	}
	if short == *n {
		return layers.Sequential{layers.Residual{Layer: f}, layers.ReLU}
	}
	return layers.Sequential{layers.Sum{f, short.conv(name+".downsample.0", name+".downsample.1", n.channels, 1, stride)}, layers.ReLU}
}

// resnet returns the layers and the loss of a CNN.
func resnet(c plan.CNN) (list []layers.Layer, loss *layers.CrossEntropy) {
	n := &network{c.Image, 3}
	stem := append(n.conv("conv1", "bn1", 64, 7, 2), layers.ReLU, layers.MaxPool{Shape: conv.PoolShape{Channels: 64, Dims: 2, Size: [3]int{n.side, n.side},
		Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}}})
	n.side = (n.side-1)/2 + 1
	list = append(list, stem)
	for group, blocks := range c.Blocks {
		for i := range blocks {
			stride := 1
			if group > 0 && i == 0 {
				stride = 2
			}
			list = append(list, n.block(fmt.Sprint("layer", group+1, ".", i), 64<<group, stride, c.Bottleneck))
		}
	}
	loss = layers.NewCrossEntropy("fc", c.Classes, n.channels)
	loss.Bias = &layers.Param{Name: "fc.bias", Shape: []int{c.Classes}, Trains: true}
	return append(list, layers.AvgPool{Shape: conv.PoolShape{Channels: n.channels, Dims: 2, Size: [3]int{n.side, n.side}, Adaptive: [3]int{1, 1}}}), loss
}

// TestResNetCosts: what package plan says of a residual network is what its layers hold and keep, to the byte, for any batch.
func TestResNetCosts(t *testing.T) {
	device, err := plan.DeviceNamed("16GB-unified")
	require.NoError(t, err)
	for _, c := range []plan.CNN{
		{Image: 224, Classes: 1000, Blocks: []int{2, 2, 2, 2}}, {Image: 224, Classes: 1000, Blocks: []int{3, 4, 6, 3}, Bottleneck: true},
		{Image: 57, Classes: 10, Blocks: []int{1, 2, 1}}, {Image: 32, Classes: 10, Blocks: []int{1, 1, 1, 1}, Bottleneck: true},
	} {
		model, err := c.Model()
		require.NoError(t, err)
		list, loss := resnet(c)
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			p, err := layers.NewPass(layers.Options{DType: dt})
			require.NoError(t, err)
			for _, n := range []int{1, 2, 8, 33} {
				said, err := plan.Task{Model: model, Device: device, Batch: n}.Costs(plan.Run{Micro: n, Window: 1, Compute: dt})
				require.NoError(t, err)
				require.Len(t, said.Stages, len(list))
				width := 3 * c.Image * c.Image
				require.EqualValues(t, dt.Size()*n*width, said.Input)
				for i, l := range list {
					want, is := p.Cost(l, width, layers.Batch{Rows: n, Sequences: n, Longest: 1}), said.Stages[i]
					width, err = l.Width(width)
					require.NoError(t, err)
					require.Equal(t, []int64{want.Output, want.Saved, want.ForwardExtra, want.BackwardExtra}, []int64{is.Output, is.Saved, is.ForwardExtra, is.BackwardExtra},
						"%+v, %s, %d of %d: %s", c, dt, n, i, is.Name)
				}
			}
		}
		params, averages := int64(0), int64(0)
		count := func(w *layers.Param) bool {
			if w.Buffer {
				averages += int64(w.Len())
			} else {
				params += int64(w.Len())
			}
			return true
		}
		layers.Sequential(list).Params(count)
		loss.Params(count)
		require.Equal(t, params, model.Parameters())
		require.Equal(t, averages, model.Tables)
	}
}

// TestResNetRuns: a Monitor counts in a run what the plan says, component by component, with and without recomputation.
func TestResNetRuns(t *testing.T) {
	const n = 2
	device, err := plan.DeviceNamed("16GB-unified")
	require.NoError(t, err)
	c := plan.CNN{Image: 64, Classes: 10, Blocks: []int{2, 2, 2, 2}}
	model, err := c.Model()
	require.NoError(t, err)
	for _, of := range []struct {
		dt        snug.DType
		optimizer string // of which Adafactor keeps rows and columns of a matrix
	}{{snug.F32, "adamw"}, {snug.BF16, "adamw"}, {snug.F32, "adafactor"}} {
		dt := of.dt
		task := plan.Task{Model: model, Device: device, Batch: n, Optimizer: of.optimizer}
		r := plan.Run{Micro: n, Window: 1, Compute: dt, StateBits: 8}
		rule, err := quant8.RuleNamed(of.optimizer)
		require.NoError(t, err)
		costs, err := task.Costs(r)
		require.NoError(t, err)
		chen, err := remat.Chen(costs)
		require.NoError(t, err)
		for _, r.Remat = range []remat.Plan{{}, chen} {
			predicted, err := task.Predict(r)
			require.NoError(t, err)
			said := predicted.Peak[meter.OnDevice]
			m, err := meter.New(meter.Options{})
			require.NoError(t, err)
			list, loss := resnet(c)
			net, err := layers.NewModel(3*c.Image*c.Image, loss, layers.Options{DType: dt, Seed: 1, Monitor: m}, list...)
			require.NoError(t, err)
			require.NoError(t, net.SetPlan(r.Remat))
			rows, cols := net.Matrix("layer2.0.conv1.weight")
			require.Equal(t, model.Layers[3].Params[0], []int{rows, cols})
			tr, err := train.New(net, train.Options{Optimizer: rule, StateBits: 8, Schedule: train.Constant(1e-3), Monitor: m})
			require.NoError(t, err)
			_, err = tr.Train(context.Background(), []layers.Sample{{X: make([]float32, n*3*c.Image*c.Image), Labels: []int32{1, 2}}})
			require.NoError(t, err)
			require.Empty(t, net.Report.Mismatches)
			require.Equal(t, said[meter.Activations], net.Report.Peak)
			_, peak := m.Held()
			for _, component := range []meter.Component{meter.Weights, meter.Masters, meter.Gradients, meter.State, meter.Activations, meter.Workspace} {
				require.Equal(t, said[component], peak[meter.OnDevice][component], "%s of %v", component, of)
			}
			require.NoError(t, tr.Close())
			require.NoError(t, net.Close())
		}
	}
}

// goldenNumbers are those that make.py draws.
func goldenNumbers(number, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		at := uint32(i + number*97531)
		x[i] = float32(float64(at*at*2654435761+at*40503)/(1<<31) - 1)
	}
	return x
}

// window takes gradients.
type window map[string][]float32

func (w window) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(w[name]), snug.Into{Beta: 1}, nil
}

// TestResNetGolden: the loss, all gradients and the running averages of ResNet-18 are PyTorch's, within 1e-5 of the norm.
func TestResNetGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/resnet/golden.json")
	require.NoError(t, err)
	var golden struct {
		Loss      float64
		Gradients map[string][2]float64
		Averages  map[string]float64
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	const side, n = 64, 2
	list, loss := resnet(plan.CNN{Image: side, Classes: 10, Blocks: []int{2, 2, 2, 2}})
	m, err := layers.NewModel(3*side*side, loss, layers.Options{}, list...)
	require.NoError(t, err)
	w := window{}
	for name, v := range m.Trainable() {
		w[name] = make([]float32, v.Len())
	}
	names := slices.Sorted(maps.Keys(w))
	for _, p := range m.Params() {
		number, trains := slices.BinarySearch(names, p.Name)
		if !trains {
			continue
		}
		scale, shift := 0.25, 1.0
		if len(p.Shape) > 1 {
			scale, shift = math.Sqrt(8/float64(p.Len()/p.Shape[0])), 0
		} else if strings.HasSuffix(p.Name, "bias") {
			shift = 0
		}
		for i, x := range goldenNumbers(number, p.Len()) {
			p.Value.Float32s()[i] = float32(float64(x)*scale + shift)
		}
	}
	found, err := m.Backprop(context.Background(), layers.Sample{X: goldenNumbers(1000, n*3*side*side), Labels: []int32{3, 7}}, 1, w)
	require.NoError(t, err)
	require.InEpsilon(t, golden.Loss, found.Mean(), 1e-5)
	require.Len(t, golden.Gradients, len(names))
	for number, name := range names {
		square, dot := 0.0, 0.0
		for i, v := range goldenNumbers(2000+number, len(w[name])) {
			g := float64(w[name][i])
			square, dot = square+g*g, dot+g*float64(v)
		}
		want := golden.Gradients[name]
		require.InEpsilon(t, want[0], math.Sqrt(square), 1e-5, name)
		require.InDelta(t, want[1], dot, 1e-5*want[0], name)
	}
	for name, v := range m.Buffers() {
		square := 0.0
		for _, x := range v.Float32s() {
			square += float64(x) * float64(x)
		}
		require.InEpsilon(t, golden.Averages[name], math.Sqrt(square), 1e-5, name)
	}
}
