package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Add computes the residual addition out[i] = a[i] + b[i], in float32 and
// rounded once. Its backward pass hands the gradient of out to both a and b.
//
// All have one length. out may be a or b. Each worker holds 16 KiB.
func Add[V snug.Vector](out, a, b V) error {
	return add(snug.ViewOf(out), snug.ViewOf(a), snug.ViewOf(b))
}

func add(out, a, b snug.View) error {
	check := &checks{op: "Add"}
	check.floats(operand{"out", out}, operand{"a", a}, operand{"b", b})
	check.len(out.Len(), operand{"a", a}, operand{"b", b})
	return run(check, addJob{out, a, b}, out, a, b)
}

type addJob struct{ out, a, b snug.View }

func (*addJob) Kernel() string { return "fused.add" }

func (j *addJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.out, &j.a, &j.b) }

func (j addJob) Run() { addTask.Run(cpu.Chunks(j.out.Len(), itemLen), j) }

var addTask = cpu.NewTask(func(j *addJob, item int) {
	lo, hi := cpu.Chunk(j.out.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(2 * block)
	defer finish(buf)
	if k := direct(j.out); k != nil {
		k.Add(bits(j.out, lo, hi), bits(j.a, lo, hi), bits(j.b, lo, hi), streams(j.out, j.a, j.b))
		return
	}
	stream := streams32(j.out, j.a, j.b)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		a := load(cut(buf, 0, n), j.a, lo)
		b := load(cut(buf, 1, n), j.b, lo)
		out := target(cut(buf, 0, n), j.out, lo)
		rowwise.F32.Best().Add(out, a, b, stream)
		store(j.out, lo, out)
	}
})
