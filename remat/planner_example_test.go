package remat_test

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug/remat"
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
	// fit    114 MiB,  0.0 % slower, 0 extra steps, waits 0.0 %, 510 MiB on the host, 0 packed; at most 0.0 % from the best
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
