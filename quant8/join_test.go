package quant8

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/stretchr/testify/require"
)

// TestJoinedSteps: steps that are one launch give the same bits as one launch for each parameter.
func TestJoinedSteps(t *testing.T) {
	types := []snug.DType{snug.F32, snug.BF16, snug.F16}
	const count = 60
	size := func(i int) int { return []int{1, 300, 64, 5000, 1029}[i%5] }
	for _, p := range kerneltest.Backends(t)[2:] {
		for _, o := range []Options{{Bits: 8, MinSize: 1000}, {Bits: 8, MinSize: 1, Block: 64, Chunk: 1 << 12}, {Bits: 32, Chunk: 1 << 12}} {
			t.Run(fmt.Sprint(p.Name, " ", o.Bits, " ", o.MinSize), func(t *testing.T) {
				var states [2][]byte
				var params, grads [2][]*kerneltest.Floats
				var launches [2]int64
				for side := range states {
					a, err := New(AdamW{WeightDecay: 0.01}, o)
					require.NoError(t, err)
					for i := range count {
						require.NoError(t, a.Add(fmt.Sprint(i), size(i)))
						params[side] = append(params[side], kerneltest.PutFloats(t, p, types[i%3], kerneltest.Uniform(uint64(i), size(i))))
						grads[side] = append(grads[side], kerneltest.PutFloats(t, p, types[i/2%3], kerneltest.Uniform(uint64(i+count), size(i))))
					}
					for range 2 {
						before := device.Launches(p.Dev)
						if side == 1 {
							device.Hold(p.Dev)
						}
						a.Advance(1e-3)
						a.Within(100)
						for i := range count {
							require.NoError(t, a.Step(fmt.Sprint(i), params[side][i].View, grads[side][i].View, 0.5))
						}
						if side == 1 {
							require.NoError(t, device.Release(p.Dev))
						}
						launches[side] = device.Launches(p.Dev) - before
					}
					var state bytes.Buffer
					_, err = a.WriteTo(&state)
					require.NoError(t, err)
					states[side] = state.Bytes()
					require.NoError(t, a.Close())
				}
				for i := range count {
					require.Equal(t, kerneltest.Bits(params[0][i].Get()), kerneltest.Bits(params[1][i].Get()), "parameter %d", i)
				}
				require.Equal(t, states[0], states[1])
				if p.Name == "emu:0" {
					require.EqualValues(t, count, launches[0])
					require.LessOrEqual(t, launches[1], map[int]int64{0: 1, 1: 6, 1000: 4}[o.MinSize])
				}
			})
		}
	}
}

// TestJoinedNot: steps with options or factors of their own, and the jobs that have a step within, do not join.
func TestJoinedNot(t *testing.T) {
	p := kerneltest.Backends(t)[2]
	a, err := New(AdamW{}, Options{Bits: 32})
	require.NoError(t, err)
	at := uintptr(1) << 20
	job := func(h optim.Hyper) *stepJob {
		v := func(bytes int, dt snug.DType, n int) snug.View {
			at += 1 << 12
			return device.View(p.Dev, driver.Mem{Addr: at, Size: bytes}, dt, n)
		}
		j := &stepJob{p: v(40, snug.F32, 10), g: v(40, snug.F32, 10), state: v(80, snug.U8, 80), layout: layout{states: 2, bits: 32, block: 256}, chunk: a.o.Chunk}
		j.prepare(h)
		return j
	}
	h := a.o.hyper
	h.LR, h.Step, h.GradScale = 1e-3, 1, 1
	require.True(t, job(h).Join(job(h)))
	other := h
	other.LR = 2e-3
	require.False(t, job(h).Join(job(other)))
	for name, change := range map[string]func(*stepJob){
		"sums": func(j *stepJob) { j.sums = new(squares) }, "random": func(j *stepJob) { j.random = true },
		"skip": func(j *stepJob) { j.skip = true }, "lost": func(j *stepJob) { j.lost = new(lostCounts) },
		"bits": func(j *stepJob) { j.bits = 16 }, "chunk": func(j *stepJob) { j.chunk *= 2 },
		"maps": func(j *stepJob) { j.m = signed() },
	} {
		t.Run(name, func(t *testing.T) {
			changed := job(h)
			change(changed)
			require.False(t, job(h).Join(changed), name)
			require.False(t, changed.Join(job(h)), name)
		})
	}
	require.False(t, (&measureJob{stepJob: *job(h)}).Join(job(h)))
	require.False(t, (&applyJob{stepJob: *job(h)}).Join(job(h)))
	first := job(h)
	same := job(h)
	same.g = first.g
	require.False(t, first.Join(same), "one gradient for two parameters is two launches")
}
