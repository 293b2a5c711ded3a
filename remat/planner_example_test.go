package remat_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/remat/pack"
)

// blocks are the costs of 16 layers of a transformer that save 17 times their output.
func blocks() remat.Costs {
	c := remat.Costs{Input: 2 << 20, Host: remat.Rates{Write: 12 << 30, Read: 12 << 30}}
	for range 16 {
		c.Stages = append(c.Stages, remat.Cost{
			Output: 2 << 20, Saved: 34 << 20, ForwardExtra: 4 << 20, BackwardExtra: 8 << 20,
			ForwardTime: 0.003, BackwardTime: 0.006, // seconds, as the rates are bytes a second
			Packed: 9 << 20, PackTime: 0.0002, UnpackTime: 0.0002,
		})
	}
	return c
}

// All methods under a half of what all activations take.
//
//check:in race
func ExamplePlanner() {
	c := blocks()
	keep, _ := remat.KeepAll(c)
	all, _ := keep.Simulate(c)
	for _, p := range []remat.Planner{
		{Method: remat.MethodEvery},
		{Method: remat.MethodRotor},
		{Method: remat.MethodExact},
		{Tiers: remat.Tiers{Host: 1 << 30}},
		{Tiers: remat.Tiers{Lossy: true}},
	} {
		_, r, err := p.Plan(c, all.Peak/2)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%-6v %3d MiB, %4.1f %% slower, %d extra steps, waits %.1f %%, %d MiB on the host, %d packed; at most %.1f %% from the best\n",
			p.Method, r.Peak>>20, 100*(r.Time/all.Time-1), r.Extra, 100*r.Waited/r.Time, r.Host>>20, r.Packed, 100*r.Gap())
	}
	// Output:
	// every  250 MiB, 20.8 % slower, 10 extra steps, waits 0.0 %, 0 MiB on the host, 0 packed; at most 1.8 % from the best
	// rotor  268 MiB, 18.8 % slower, 9 extra steps, waits 0.0 %, 0 MiB on the host, 0 packed; at most 0.0 % from the best
	// exact  268 MiB, 18.8 % slower, 9 extra steps, waits 0.0 %, 0 MiB on the host, 0 packed; at most 0.0 % from the best
	// fit    250 MiB,  0.0 % slower, 0 extra steps, waits 0.0 %, 340 MiB on the host, 0 packed; at most 0.0 % from the best
	// fit    265 MiB,  3.6 % slower, 0 extra steps, waits 0.0 %, 0 MiB on the host, 13 packed; at most 3.6 % from the best
}

// hostCopy is a copy in other memory, made in the background.
type hostCopy struct {
	values []float64
	stored chan struct{}
}

func (h *hostCopy) Bytes() int64                 { return int64(8 * len(h.values)) }
func (h *hostCopy) Stored(context.Context) error { <-h.stored; return nil }
func (h *hostCopy) Loaded(context.Context) error { return nil }
func (h *hostCopy) Release()                     { <-h.stored }
func (h *hostCopy) Load(context.Context) ([]float64, error) {
	<-h.stored
	return append([]float64(nil), h.values...), nil
}

// A chain that pages saved sets: it says how a value is copied. Load may return
// before the values are there; Loaded then waits for them.
//
//check:in race
func ExampleCopy() {
	c := chain(10)
	c.Output = func(saved []float64) []float64 { return saved }
	c.StoreSaved = func(_ context.Context, _ remat.Tier, saved []float64) (remat.Copy[[]float64], error) {
		h := &hostCopy{make([]float64, len(saved)), make(chan struct{})}
		go func() {
			copy(h.values, saved)
			close(h.stored)
		}()
		return h, nil
	}
	c.Store = c.StoreSaved // both are slices here
	loss := func(y []float64) ([]float64, error) { return append([]float64(nil), y...), nil }

	budget := costs(10)
	budget.Host = remat.Rates{Write: 64, Read: 64}
	plan, _, err := remat.Planner{Tiers: remat.Tiers{Host: 1024}}.Plan(budget, 80)
	if err != nil {
		fmt.Println(err)
		return
	}
	dx, rep, err := c.Run(context.Background(), plan, []float64{0.25, -0.125}, loss)
	if err != nil {
		fmt.Println(err)
		return
	}
	keep, _ := remat.KeepAll(costs(10))
	want, _, _ := c.Run(context.Background(), keep, []float64{0.25, -0.125}, loss)
	fmt.Printf("%d bytes, %d on the host, %d extra steps, same bits: %t\n", rep.Peak, rep.Host, rep.Extra, dx[0] == want[0] && dx[1] == want[1])
	// Output:
	// 80 bytes, 128 on the host, 0 extra steps, same bits: true
}

// gelu is the stage y = x·Φ(x), which saves a copy of x and y.
type gelu struct{}

type inputAndOutput struct{ x, y []float32 }

func phi(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

func (g gelu) Forward(ctx context.Context, x []float32) ([]float32, error) {
	y, _, err := g.ForwardSave(ctx, x)
	return y, err
}

func (gelu) ForwardSave(_ context.Context, x []float32) ([]float32, inputAndOutput, error) {
	s := inputAndOutput{slices.Clone(x), make([]float32, len(x))}
	for i, v := range x {
		s.y[i] = float32(float64(v) * phi(float64(v)))
	}
	return s.y, s, nil
}

func (gelu) Backward(_ context.Context, _ []float32, s inputAndOutput, dy []float32) ([]float32, error) {
	for i, v := range s.x {
		x := float64(v)
		dy[i] *= float32(phi(x) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi))
	}
	return dy, nil
}

// inInt8 is a saved set in blocks of 8 bits.
type inInt8 struct{ codes, scales [2][]uint8 }

func (p *inInt8) Bytes() int64 {
	return int64(2*len(p.codes[0]) + 2*len(p.scales[0]))
}
func (p *inInt8) Stored(context.Context) error { return nil }
func (p *inInt8) Loaded(context.Context) error { return nil }
func (p *inInt8) Release()                     {}
func (p *inInt8) Load(context.Context) (inputAndOutput, error) {
	n := len(p.codes[0])
	s := inputAndOutput{make([]float32, n), make([]float32, n)}
	return s, errors.Join(pack.UnpackInt8(s.x, p.codes[0], p.scales[0]), pack.UnpackInt8(s.y, p.codes[1], p.scales[1]))
}

// Saved sets in 8 bits: a plan of 6 tenths of the memory that computes nothing again,
// and what it does to the gradient.
//
//check:in race
func ExampleTiers() {
	const n, stages = 1024, 8
	size := func(x []float32) int64 { return int64(4 * len(x)) }
	c := remat.Chain[[]float32, inputAndOutput]{
		Bytes: size, SavedBytes: func(s inputAndOutput) int64 { return size(s.x) + size(s.y) },
		Output: func(s inputAndOutput) []float32 { return s.y },
		StoreSaved: func(_ context.Context, _ remat.Tier, s inputAndOutput) (remat.Copy[inputAndOutput], error) {
			var p inInt8
			for i, x := range [][]float32{s.x, s.y} {
				p.codes[i], p.scales[i] = make([]uint8, n), make([]uint8, pack.Int8Scales(n))
				if err := pack.Int8(p.codes[i], p.scales[i], x); err != nil {
					return nil, err
				}
			}
			return &p, nil
		},
	}
	costs := remat.Costs{Input: 4 * n}
	for range stages {
		c.Stages = append(c.Stages, gelu{})
		costs.Stages = append(costs.Stages, remat.Cost{
			Output: 4 * n, Saved: 8 * n, ForwardTime: 1, BackwardTime: 1,
			Packed: int64(2 * (n + pack.Int8Scales(n))), PackTime: 0.01, UnpackTime: 0.01,
		})
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = 4*float32(i)/n - 1
	}
	loss := func(y []float32) ([]float32, error) { return slices.Clone(y), nil } // of ½|y|²
	var dx [2][]float32
	for i, planner := range []remat.Planner{{}, {Tiers: remat.Tiers{Lossy: true}}} {
		budget := []int64{1 << 20, 45 << 10}[i]
		plan, _, err := planner.Plan(costs, budget)
		if err != nil {
			fmt.Println(err)
			return
		}
		var rep remat.Report
		if dx[i], rep, err = c.Run(context.Background(), plan, x, loss); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d bytes, %d extra steps, %d packed\n", rep.Peak, rep.Extra, rep.Packed)
	}
	var norm, difference float64
	for i, v := range dx[0] {
		norm += float64(v * v)
		difference += float64((v - dx[1][i]) * (v - dx[1][i]))
	}
	fmt.Printf("the gradient differs by %.1f %%\n", 100*math.Sqrt(difference/norm))
	// Output:
	// 73728 bytes, 0 extra steps, 0 packed
	// 45440 bytes, 0 extra steps, 6 packed
	// the gradient differs by 0.1 %
}

// The MLPs of a model are computed again, and everything else is kept.
func ExampleOnly() {
	c := remat.Costs{Input: 16}
	for layer := range 4 {
		for _, half := range []string{"attention", "mlp"} {
			name := fmt.Sprintf("layers.%d.%s", layer, half)
			c.Stages = append(c.Stages, remat.Cost{Name: name, Output: 16, Saved: 80, ForwardTime: 1, BackwardTime: 2})
		}
	}
	all, err := remat.Plan{}.Simulate(c)
	if err != nil {
		panic(err)
	}
	plan, err := remat.Only(c, "mlp")
	if err != nil {
		panic(err)
	}
	less, err := plan.Simulate(c)
	if err != nil {
		panic(err)
	}
	fmt.Println("everything kept:", all.Peak, "bytes")
	fmt.Println(plan.Name, less.Peak, "bytes,", less.Extra, "forward steps more")
	_, err = remat.Only(c, "layers.3.mpl")
	fmt.Println(err)
	// Output:
	// everything kept: 672 bytes
	// only(mlp) 480 bytes, 3 forward steps more
	// remat: plan only: no stage is called "layers.3.mpl"; the nearest name is "layers.3.mlp": snug: invalid configuration
}
