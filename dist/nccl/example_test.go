package nccl_test

import (
	"fmt"
	"log"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dist/mpi"
	"github.com/snug-ml/snug/dist/nccl"
)

// Processes that mpiexec has started, each with a GPU, join. MPI sends the unique id, and NCCL all that comes after.
func ExampleOpen() {
	hosts, err := mpi.Open(mpi.Options{})
	if err != nil {
		log.Fatal(err)
	}
	dev, err := snug.Open(fmt.Sprintf("cuda:%d", hosts.Rank())) // on one machine
	if err != nil {
		hosts.Abort(err)
	}
	world, err := nccl.Open(nccl.Options{Device: dev, Exchange: hosts})
	if err != nil {
		hosts.Abort(err)
	}
	gradients, err := snug.Make[float32](dev, 1<<20)
	if err != nil {
		hosts.Abort(err)
	}
	if err := world.AllReduce(gradients.View()); err != nil {
		hosts.Abort(err) // ends all ranks
	}
	if err := world.Close(); err != nil {
		hosts.Abort(err)
	}
	if err := hosts.Close(); err != nil {
		hosts.Abort(err)
	}
}

// Without MPI a file carries the unique id. The scheduler says which rank this is and names the run.
func ExampleOpen_file() {
	dev, err := snug.Open("cuda:0")
	if err != nil {
		log.Fatal(err)
	}
	var rank, size int
	if _, err := fmt.Sscan(os.Getenv("SLURM_PROCID")+" "+os.Getenv("SLURM_NTASKS"), &rank, &size); err != nil {
		log.Fatal(err)
	}
	run := os.Getenv("SLURM_JOB_ID") + "." + os.Getenv("SLURM_RESTART_COUNT")
	world, err := nccl.Open(nccl.Options{Device: dev, Rank: rank, Size: size, File: "nccl-id", Run: run})
	if err != nil {
		log.Fatal(err)
	}
	loss := []float64{0.5}
	if err := world.Sum(loss); err != nil {
		world.Abort(err)
	}
	if err := world.Close(); err != nil {
		world.Abort(err)
	}
}
