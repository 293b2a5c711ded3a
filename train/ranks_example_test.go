package train_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/train"
)

// Two ranks in one process train two copies of a model, which stay equal. In processes that mpiexec starts, the
// Reducer is mpi.Open's, and each process has one Trainer.
func ExampleOptions_reducer() {
	reducers, err := accum.Local(context.Background(), 2)
	if err != nil {
		panic(err)
	}
	models, losses := make([]regression, 2), make([]float64, 2)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		wait.Go(func() {
			models[rank] = regression{snug.ViewOf(make([]snug.BFloat16, out*in))}
			t, err := train.New(models[rank], train.Options{Ranks: train.Ranks{Reducer: r}, Schedule: train.Cosine(0.05, 5, 40)})
			if err != nil {
				panic(err)
			}
			for t.Step() < 40 {
				rng := rand.New(rand.NewPCG(uint64(rank), uint64(t.Step()))) // each rank has its own samples
				x := make([]snug.BFloat16, rows*in)
				for i := range x {
					x[i] = snug.ToBFloat16(float32(rng.NormFloat64()))
				}
				report, err := t.Train(context.Background(), []sample{{x, x}})
				if err != nil {
					panic(err)
				}
				losses[rank] = report.Loss
			}
			if err := t.Close(); err != nil {
				panic(err)
			}
		})
	}
	wait.Wait()
	same := true
	for i, w := range models[0].w.BFloat16s() {
		same = same && w == models[1].w.BFloat16s()[i]
	}
	fmt.Println("the same loss:", losses[0] == losses[1], "and weights:", same)
	fmt.Println("it falls below 0.1:", losses[0] < 0.1)
	// Output:
	// the same loss: true and weights: true
	// it falls below 0.1: true
}
