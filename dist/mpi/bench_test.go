package mpi

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/snug-ml/snug"
)

// peerVariable names a Python with mpi4py, to measure its Allreduce in the same run.
const peerVariable = "SNUG_MPI4PY"

const benchBytes = 256 << 20

func init() { jobs["rate"] = rate }

// rate prints the time of the fastest of several sums of 256 MiB over all ranks.
func rate(w *World) error {
	v := make([]float32, benchBytes/4)
	for i := range v {
		v[i] = float32(w.Rank())
	}
	best := time.Hour
	for range 5 {
		if err := w.Sum([]float64{1}); err != nil {
			return err
		}
		began := time.Now()
		if err := w.AllReduce(snug.ViewOf(v)); err != nil {
			return err
		}
		best = min(best, time.Since(began))
	}
	if w.Rank() == 0 {
		fmt.Println("seconds", best.Seconds())
	}
	return nil
}

const peerProgram = `
import numpy, time
from mpi4py import MPI
c = MPI.COMM_WORLD
v, out = numpy.full(%d, c.rank, dtype=numpy.float32), numpy.empty(%d, dtype=numpy.float32)
best = 1e9
for _ in range(5):
    c.Barrier()
    t = time.perf_counter()
    c.Allreduce(v, out)
    best = min(best, time.perf_counter() - t)
if c.rank == 0:
    print("seconds", best)
`

// BenchmarkAllReduce reports the rate of a sum of 256 MiB of float32, in bytes of the vector per second, and that of
// mpi4py's Allreduce divided into it, if SNUG_MPI4PY names a Python that has it for the same launcher.
func BenchmarkAllReduce(b *testing.B) {
	python := os.Getenv(peerVariable)
	seconds := func(launcher string, n int, program ...string) (s float64) {
		c := exec.Command(launcher, append([]string{"-n", fmt.Sprint(n)}, program...)...)
		c.Env = append(os.Environ(), jobVariable+"=rate")
		out, err := c.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		_, text, _ := strings.Cut(string(out), "seconds ")
		if _, err := fmt.Sscan(text, &s); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return s
	}
	for _, launcher := range launchers(b) {
		for _, n := range []int{2, 4} {
			b.Run(fmt.Sprintf("%d-ranks", n), func(b *testing.B) {
				own, peer := 1e9, 1e9
				for b.Loop() {
					own = min(own, seconds(launcher, n, os.Args[0]))
					if python != "" {
						peer = min(peer, seconds(launcher, n, python, "-c", fmt.Sprintf(peerProgram, benchBytes/4, benchBytes/4)))
					}
				}
				b.ReportMetric(benchBytes/own/1e9, "GB/s")
				if python != "" {
					b.ReportMetric(peer/own, "of-mpi4py")
				}
			})
		}
	}
}
