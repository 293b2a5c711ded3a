package mpi_test

import (
	"fmt"
	"log"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dist/mpi"
)

// A program that mpiexec has started joins the other ranks.
func ExampleOpen() {
	world, err := mpi.Open(mpi.Options{})
	if err != nil {
		log.Fatal(err)
	}
	gradients := []float32{float32(world.Rank()), 1}
	if err := world.AllReduce(snug.ViewOf(gradients)); err != nil {
		world.Abort(err) // ends all ranks
	}
	if world.Rank() == 0 {
		fmt.Println("the sums over", world.Size(), "ranks are", gradients)
	}
	if err := world.Close(); err != nil {
		world.Abort(err)
	}
}
