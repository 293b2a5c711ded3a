package recurrent

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

const gateHeads = 8 // of an item

// GatesForward computes the decays and the step sizes of [Delta] from logits a and b of each row and head, as Qwen3-Next has them:
//
//	g = −exp(aLog)·softplus(a + bias)    beta = σ(b)
//
// a, b, g and beta have rows of heads elements, aLog and bias heads elements. Each worker holds 128 bytes.
func GatesForward[V snug.Vector, L snug.Vector32](g, beta L, a, b, aLog, bias V, heads int) error {
	j := gatesJob{a: snug.ViewOf(a), b: snug.ViewOf(b), aLog: snug.ViewOf(aLog), bias: snug.ViewOf(bias), g: snug.ViewOf(g), beta: snug.ViewOf(beta), heads: heads}
	if err := j.check("GatesForward"); err != nil {
		return err
	}
	gatesForward.Run(cpu.Chunks(heads, gateHeads), j)
	return nil
}

// GatesBackward computes the gradients of [GatesForward] from dg and dbeta: da and db are overwritten, and the sums over rows daLog and
// dbias enter float32 accumulators as into says. daLog or dbias may be empty, which leaves it out. da may be a, and db may be b.
func GatesBackward[V snug.Vector, L snug.Vector32](da, db V, daLog, dbias, dg, dbeta L, a, b, aLog, bias V, heads int, into snug.Into) error {
	alpha, keep, err := into.Factors()
	if err != nil {
		return fmt.Errorf("recurrent: GatesBackward: %w", err)
	}
	j := gatesJob{a: snug.ViewOf(a), b: snug.ViewOf(b), aLog: snug.ViewOf(aLog), bias: snug.ViewOf(bias), g: snug.ViewOf(dg), beta: snug.ViewOf(dbeta), heads: heads,
		back: true, da: snug.ViewOf(da), db: snug.ViewOf(db), daLog: snug.ViewOf(daLog), dbias: snug.ViewOf(dbias), into: snug.Into{Alpha: alpha, Beta: keep}}
	if err := j.check("GatesBackward"); err != nil {
		return err
	}
	gatesBackward.Run(cpu.Chunks(heads, gateHeads), j)
	return nil
}

type gatesJob struct {
	a, b, aLog, bias snug.View
	g, beta          snug.View // their gradients in the backward pass
	heads            int
	back             bool
	da, db           snug.View
	daLog, dbias     snug.View
	into             snug.Into
}

func (j *gatesJob) check(op string) error {
	n := j.a.Len()
	if j.heads < 1 || n == 0 || n%j.heads != 0 {
		return fmt.Errorf("recurrent: %s: %d heads, and a has %d elements, want rows of 1 head or more: %w", op, j.heads, n, snug.ErrShape)
	}
	list := [6]operand{{name: "a", view: j.a, want: n}, {name: "b", view: j.b, want: n}, {name: "aLog", view: j.aLog, want: j.heads}, {name: "bias", view: j.bias, want: j.heads}}
	singles := [4]operand{{name: "g", view: j.g, want: n}, {name: "beta", view: j.beta, want: n}}
	if !j.back {
		return check(op, list[:4], singles[:2])
	}
	singles[0].name, singles[1].name = "dg", "dbeta"
	list[4], list[5] = operand{name: "da", view: j.da, want: n}, operand{name: "db", view: j.db, want: n}
	singles[2], singles[3] = operand{name: "daLog", view: j.daLog, want: j.heads, optional: true}, operand{name: "dbias", view: j.dbias, want: j.heads, optional: true}
	return check(op, list[:], singles[:])
}

var gateScratch cpu.Scratch

// decay returns softplus(z) and its derivative.
func decay(z float32) (plus, slope float64) {
	e := math.Exp(-math.Abs(float64(z)))
	if slope = 1 / (1 + e); z < 0 {
		slope = e / (1 + e)
	}
	return max(float64(z), 0) + math.Log1p(e), slope
}

func sigmoid(z float32) float64 { return 1 / (1 + math.Exp(-float64(z))) }

// parameters loads exp(aLog) and the bias of heads lo to hi-1.
func (j *gatesJob) parameters(r *tiles, lo, hi int) (factor, bias []float32) {
	factor, bias = r.take(hi-lo), r.take(hi-lo)
	half.Load(factor, j.aLog, lo)
	half.Load(bias, j.bias, lo)
	for i, x := range factor {
		factor[i] = float32(math.Exp(float64(x)))
	}
	return factor, bias
}

var gatesForward = cpu.NewTask(func(j *gatesJob, item int) {
	buf := gateScratch.Get(4 * gateHeads)
	defer gateScratch.Put(buf)
	r := tiles(*buf)
	lo, hi := cpu.Chunk(j.heads, gateHeads, item)
	factor, bias := j.parameters(&r, lo, hi)
	a, b := r.take(hi-lo), r.take(hi-lo)
	for at := lo; at < j.a.Len(); at += j.heads {
		half.Load(a, j.a, at)
		half.Load(b, j.b, at)
		g, beta := floats(j.g, at, hi-lo), floats(j.beta, at, hi-lo)
		for i := range a {
			plus, _ := decay(a[i] + bias[i])
			g[i], beta[i] = -factor[i]*float32(plus), float32(sigmoid(b[i]))
		}
	}
})

// The gradients are da = −dg·exp(aLog)·σ(a + bias), db = dbeta·beta·(1 − beta), daLog = Σ dg·g and dbias = Σ da.
var gatesBackward = cpu.NewTask(func(j *gatesJob, item int) {
	buf := gateScratch.Get(4 * gateHeads)
	defer gateScratch.Put(buf)
	r := tiles(*buf)
	var sums [2][gateHeads]float64
	lo, hi := cpu.Chunk(j.heads, gateHeads, item)
	factor, bias := j.parameters(&r, lo, hi)
	a, b := r.take(hi-lo), r.take(hi-lo)
	for at := lo; at < j.a.Len(); at += j.heads {
		half.Load(a, j.a, at)
		half.Load(b, j.b, at)
		dg, dbeta := floats(j.g, at, hi-lo), floats(j.beta, at, hi-lo)
		for i := range a {
			plus, slope := decay(a[i] + bias[i])
			step := -float64(dg[i]) * float64(factor[i])
			s := sigmoid(b[i])
			a[i], b[i] = float32(step*slope), float32(float64(dbeta[i])*s*(1-s))
			sums[0][i] += step * plus
			sums[1][i] += step * slope
		}
		half.Store(j.da, at, a)
		half.Store(j.db, at, b)
	}
	for i, v := range [...]snug.View{j.daLog, j.dbias} {
		if v.Len() == 0 {
			continue
		}
		acc := floats(v, lo, hi-lo)
		for h := range acc {
			sum := j.into.Alpha * float32(sums[i][h])
			if j.into.Beta != 0 {
				sum += float32(j.into.Beta * acc[h])
			}
			acc[h] = sum
		}
	}
})
