package main

import (
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/dist/mpi"
)

// networkReport is the network between the ranks, by the two constants of plan.Device.
type networkReport struct {
	Ranks   int     `json:"ranks"`
	Rate    float64 `json:"bytes_per_second"` // that a rank sends
	Seconds float64 `json:"message_seconds"`
}

func (n *networkReport) latency() time.Duration {
	return time.Duration(n.Seconds * 1e9).Round(100 * time.Nanosecond)
}

// measureRanks measures the network between the ranks that a launcher of MPI has started, if there are any. follows says
// that rank 0 prints.
func measureRanks() (n *networkReport, follows bool, err error) {
	if !mpi.Launched() {
		return nil, false, nil
	}
	world, err := mpi.Open(mpi.Options{})
	if err != nil {
		return nil, false, err
	}
	if world.Size() > 1 {
		if n, err = measureNetwork(world); err != nil {
			world.Abort(err)
		}
	}
	return n, world.Rank() > 0, world.Close()
}

// measureNetwork measures sums of little and of 64 MiB, as training makes them: the ranks agree on each call, and send
// each other their parts at once. The best of several counts.
func measureNetwork(r accum.Reducer) (*networkReport, error) {
	const many, times = 16 << 20, 5
	others := float64(r.Size() - 1)
	best := func(elements, calls int) (float64, error) {
		v, least := snug.ViewOf(make([]float32, elements)), 0.0
		for i := range times {
			start := time.Now()
			for range calls {
				if err := r.ReduceScatter(v); err != nil {
					return 0, err
				}
			}
			if s := time.Since(start).Seconds() / float64(calls); i == 0 || s < least {
				least = s
			}
		}
		return least, nil
	}
	little, err := best(r.Size(), 200)
	if err != nil {
		return nil, err
	}
	much, err := best(many, 1)
	if err != nil {
		return nil, err
	}
	return &networkReport{r.Size(), 4 * many * others / float64(r.Size()) / max(much-little, 1e-9), little / others}, nil
}
