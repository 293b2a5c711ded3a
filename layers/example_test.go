package layers_test

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

// A layer that snug lacks, y = x + snake(rms(x)·Wᵀ)·Vᵀ with snake(x) = x + sin²(x) (Ziyin et al. 2020, arXiv:2006.08195), six deep,
// trains with 8-bit AdamW in half the memory of its activations.
//
//check:not race
func Example() {
	const rows, width, hidden, depth, steps = 64, 64, 256, 6, 150
	sin := func(x float32) float32 { return float32(math.Sin(float64(x))) }
	snake := layers.Elementwise(func(x float32) float32 { return x + sin(x)*sin(x) }, func(x float32) float32 { return 1 + sin(2*x) })
	var list []layers.Layer
	for i := range depth {
		list = append(list, layers.NewMLP(fmt.Sprint(i), width, hidden, snake, false))
	}
	m, err := layers.NewModel(width, layers.MSE{}, layers.Options{Seed: 1}, list...)
	check(err)
	costs, err := m.Costs(1, rows)
	check(err)
	all, err := remat.KeepAll(costs)
	check(err)
	kept, err := all.Simulate(costs)
	check(err)
	plan, predicted, err := remat.Planner{}.Plan(costs, kept.Peak/2)
	check(err)
	check(m.SetPlan(plan))
	t, err := train.New(m, train.Options{StateBits: 8, Clip: 1, Schedule: train.Cosine(3e-3, 10, steps)})
	check(err)
	defer func() { check(t.Close()) }()
	for t.Step() < steps {
		report, err := t.Train(context.Background(), []layers.Sample{neighbours(2*t.Step(), rows, width), neighbours(2*t.Step()+1, rows, width)})
		check(err)
		if report.Step == 1 || report.Step == steps {
			fmt.Printf("step %d, loss below 1: %t, memory as predicted: %t\n", report.Step, report.Loss < 1, m.Report.Peak == predicted.Peak && m.Report.Mismatches == nil)
		}
	}
	// Output:
	// step 1, loss below 1: false, memory as predicted: true
	// step 150, loss below 1: true, memory as predicted: true
}

// A causal language model of one block, with rotary positions and a head that is its embedding, learns to count.
func ExampleNewAttention() {
	const tokens, width, steps = 10, 32, 40
	table, a := layers.NewEmbedding("embedding", tokens, width), layers.NewAttention("attention", width, 4, 2)
	a.Rope = layers.NewAngles(layers.Rope{Kind: layers.RopeDefault, Theta: 10000, Dim: width / 4}, nil)
	m, err := layers.NewModel(0, &layers.CrossEntropy{Head: table.Table}, layers.Options{Seed: 1}, table, a,
		layers.NewMLP("mlp", width, 64, layers.SiLU, true), layers.NewRMSNorm("norm", width))
	check(err)
	t, err := train.New(m, train.Options{StateBits: 8, Clip: 1, Schedule: train.Constant(1e-2)})
	check(err)
	defer func() { check(t.Close()) }()
	s := layers.Sample{Sequences: 2}
	for i := range int32(16) {
		s.Tokens, s.Labels = append(s.Tokens, i%tokens), append(s.Labels, (i+1)%tokens)
	}
	for t.Step() < steps {
		_, err := t.Train(context.Background(), []layers.Sample{s})
		check(err)
	}
	loss, err := m.Evaluate(context.Background(), s)
	check(err)
	fmt.Println(loss.Targets, loss.Mean() < 0.1)
	// Output: 16 true
}

// A small U-Net learns where an image is bright: a skip connection goes around what lies below, at half the size.
func ExampleConcat() {
	const side, steps = 8, 60
	kernel := func(name string, in, out, side int) layers.Layer {
		return layers.NewConv(name, conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{3, 3}}.Same(), true)
	}
	below := layers.Sequential{
		layers.MaxPool{Shape: conv.PoolShape{Channels: 8, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{2, 2}}},
		kernel("below", 8, 16, side/2), layers.NewGroupNorm("below.norm", 4, 16, side*side/4), layers.ReLU,
		layers.Resize{Shape: conv.ResizeShape{Channels: 16, Dims: 2, Size: [3]int{side / 2, side / 2}, Out: [3]int{side, side}}},
	}
	m, err := layers.NewModel(side*side, layers.MSE{}, layers.Options{Seed: 1},
		kernel("in", 1, 8, side), layers.ReLU, layers.Concat{Layer: below}, kernel("out", 24, 1, side))
	check(err)
	t, err := train.New(m, train.Options{Schedule: train.Constant(1e-2)})
	check(err)
	defer func() { check(t.Close()) }()
	rng, loss := rand.New(rand.NewPCG(1, 1)), 0.0
	for t.Step() < steps {
		s := layers.Sample{X: make([]float32, 4*side*side), Y: make([]float32, 4*side*side)}
		for i := range s.X {
			if s.X[i] = rng.Float32(); s.X[i] > 0.5 {
				s.Y[i] = 1
			}
		}
		report, err := t.Train(context.Background(), []layers.Sample{s})
		check(err)
		loss = report.Loss
	}
	fmt.Println(loss < 0.1)
	// Output: true
}

// neighbours has rows of x, and the products of neighbours in a row as y.
func neighbours(step, rows, width int) (s layers.Sample) {
	rng := rand.New(rand.NewPCG(2, uint64(step)))
	for range rows * width {
		s.X = append(s.X, float32(rng.NormFloat64()))
	}
	for i := range s.X {
		s.Y = append(s.Y, s.X[i]*s.X[i/width*width+(i+1)%width])
	}
	return s
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// The blocks of a residual network (He et al. 2016, arXiv:1512.03385), with averages that a plan of recomputation updates once.
func ExampleBatchNorm() {
	kernel := func(name string, in, out, side, stride, k int) layers.Layer {
		return layers.NewConv(name, conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{k, k}, Stride: [3]int{stride, stride},
			PadBefore: [3]int{k / 2, k / 2}, PadAfter: [3]int{k / 2, k / 2}}, false)
	}
	norm := layers.NewBatchNorm("1.norm1", 16, 8*8)
	m, err := layers.NewModel(3*16*16, layers.NewCrossEntropy("head", 10, 16), layers.Options{Seed: 1},
		layers.Residual{Layer: layers.Sequential{kernel("0.conv1", 3, 3, 16, 1, 3), layers.NewBatchNorm("0.norm1", 3, 16*16)}},
		layers.Sequential{layers.Sum{
			layers.Sequential{kernel("1.conv1", 3, 16, 16, 2, 3), norm, layers.ReLU, kernel("1.conv2", 16, 16, 8, 1, 3), layers.NewBatchNorm("1.norm2", 16, 8*8)},
			layers.Sequential{kernel("1.short", 3, 16, 16, 2, 1), layers.NewBatchNorm("1.norm3", 16, 8*8)},
		}, layers.ReLU},
		layers.AvgPool{Shape: conv.PoolShape{Channels: 16, Dims: 2, Size: [3]int{8, 8}, Adaptive: [3]int{1, 1}}})
	check(err)
	costs, err := m.Costs(2, 1)
	check(err)
	plan, err := remat.RecomputeAll(costs)
	check(err)
	check(m.SetPlan(plan))
	t, err := train.New(m, train.Options{Schedule: train.Constant(1e-2)})
	check(err)
	before := norm.Mean.Value.Float32s()[0]
	_, err = t.Train(context.Background(), []layers.Sample{{X: make([]float32, 2*3*16*16), Labels: []int32{3, 7}}})
	check(err)
	fmt.Println(before, norm.Var.Value.Float32s()[0], m.Report.Extra > 0)
	// Output: 0 0.9 true
}

// Words that see the output of a network for vectors, and train it with theirs.
func ExampleDecoder() {
	src := &layers.Source{Each: 4} // rows for each sequence
	cross := layers.NewAttention("cross", 16, 2, 2)
	cross.Source = src
	cross.QKV[1], cross.QKV[2] = *layers.NewLinear("cross.key", 8, 16, false), *layers.NewLinear("cross.value", 8, 16, false)
	words, err := layers.NewModel(0, layers.NewCrossEntropy("head", 5, 16), layers.Options{Seed: 1},
		layers.NewEmbedding("table", 5, 16), layers.NewAttention("self", 16, 2, 2), cross)
	check(err)
	m, err := layers.NewModel(3, layers.Decoder{Model: words, Source: src}, layers.Options{Seed: 2}, layers.NewLinear("in", 3, 4*8, true), layers.GELU)
	check(err)
	t, err := train.New(m, train.Options{Schedule: train.Constant(1e-2)})
	check(err)
	s := layers.Sample{X: []float32{1, 0, 0, 0, 1, 0}, Sequences: 2, // a vector for each of two sequences of two words
		Decoder: &layers.Sample{Tokens: []int32{0, 1, 0, 1}, Labels: []int32{2, 3, 3, 2}, Sequences: 2}}
	for range 60 {
		_, err = t.Train(context.Background(), []layers.Sample{s})
		check(err)
	}
	loss, err := m.Evaluate(context.Background(), s)
	check(err)
	fmt.Println(loss.Mean() < 0.1)
	// Output: true
}
