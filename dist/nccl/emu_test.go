//go:build emu && linux

package nccl

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// TestEmulated: the sums of the CUDA text of the kernels, which the emulator runs, have the bits of Local.
func TestEmulated(t *testing.T) {
	emu, err := driver.Lookup("emu")
	require.NoError(t, err)
	list := newCards(3)
	for i := range list {
		list[i].real, err = emu.Open(0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, list[i].real.Close()) })
	}
	driver.Register("emucard", list)
	for size := 1; size <= 3; size++ {
		j := prepareOn(t, "emucard", size)
		for _, err := range j.open(t, nil) {
			require.NoError(t, err)
		}
		for _, n := range []int{1, 7, 1000, 3001} {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				for _, o := range operations(n, dt) {
					if !o.sums {
						continue
					}
					for _, err := range j.each(func(rank int) error {
						w := j.worlds[rank]
						want, err := alone(size, rank, o)
						if err != nil {
							return err
						}
						got := o.vectors(rank, size)
						if err := onDevice(j.devs[rank], got, func(v []snug.View) error { return o.do(w, v) }); err != nil {
							return err
						}
						lo, hi := 0, n
						if o.own {
							lo, hi = accum.Shard(n, rank, size)
						}
						a, _ := got[0].Slice(lo, hi)
						b, _ := want[0].Slice(lo, hi)
						if !sameBits(a, b) {
							return fmt.Errorf("%s of %d %s: rank %d of %d differs from Local", o.name, n, dt, rank, size)
						}
						return nil
					}) {
						require.NoError(t, err)
					}
				}
			}
		}
	}
}
