//go:build cuda || hip || metal || emu

package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gpu"
)

// This file launches the layers of mixtures of experts.

var (
	routeNames           = gpu.ForFloats("fused_route")
	routeBackwardNames   = gpu.ForFloats("fused_route_backward")
	addScoresNames       = gpu.ForFloats("fused_add_scores")
	addRowsNames         = gpu.ForFloats("fused_add_rows")
	addRowsBackwardNames = gpu.ForFloats("fused_add_rows_backward")
	clampedNames         = gpu.ForFloats("fused_clamped_swiglu")
	clampedBackwardNames = gpu.ForFloats("fused_clamped_swiglu_backward")
)

// routeParams is RouteParams of route.h.
type routeParams struct {
	rows                                uint64
	experts, chosen, sigmoid, normalize uint32
	scale                               float32
	some                                uint32
}

// What a routeParams has, ROUTE_ of route.h.
const routeBias, routeDWeights, routeAux = 1, 2, 4

func (r *Router) params(rows int) routeParams {
	return routeParams{
		rows: uint64(rows), experts: uint32(r.Experts), chosen: uint32(r.Chosen),
		sigmoid: flag(r.Sigmoid), normalize: flag(r.Normalize), scale: r.Scale,
	}
}

func flag(x bool) uint32 {
	if x {
		return 1
	}
	return 0
}

func (j *routeJob) Grids(q gpu.Launcher) error {
	p := j.router.params(j.rows)
	p.some = routeBias * keeps(&j.bias)
	return grid(q, nameOf(&routeNames, &j.logits), rowGrid(j.rows), threads, p, &j.experts, &j.weights, &j.logits, &j.bias)
}

func (j *routeBackwardJob) Grids(q gpu.Launcher) error {
	p := j.router.params(j.rows)
	p.some = routeDWeights*keeps(&j.dweights) + routeAux*keeps(&j.aux)
	return grid(q, nameOf(&routeBackwardNames, &j.logits), rowGrid(j.rows), threads, p,
		&j.dlogits, &j.dweights, &j.logits, &j.experts, &j.aux)
}

// scoresParams is ScoresParams of route.h.
type scoresParams struct {
	all, partRows, rows uint64
	experts, sigmoid    uint32
}

func (j *scoresJob) Grids(q gpu.Launcher) error {
	n := parts(j.rows)
	p := scoresParams{uint64(j.rows), uint64(partRows(j.rows)), uint64(n), uint32(j.router.Experts), flag(j.router.Sigmoid)}
	if err := grid(q, nameOf(&addScoresNames, &j.logits), rowGrid(n), threads, p, &j.ws, &j.logits); err != nil {
		return err
	}
	return totals(q, j.sums, none, j.ws, n, scoresInto)
}

// addRowsParams is AddRowsParams of route.h.
type addRowsParams struct {
	rows                         uint64
	cols, wide, chosen, weighted uint32
	dots, _                      uint32
}

func (r *rowPairs) params(rows ...*snug.View) addRowsParams {
	return addRowsParams{
		rows: uint64(r.pairs.Len()), cols: uint32(r.cols), wide: wide(r.cols, rows...), chosen: uint32(r.chosen),
		weighted: keeps(&r.weights),
	}
}

func (j *addRowsJob) Grids(q gpu.Launcher) error {
	return grid(q, nameOf(&addRowsNames, &j.y), rowGrid(j.pairs.Len()), threads, j.params(&j.y, &j.x), &j.y, &j.x, &j.weights, &j.pairs)
}

func (j *addRowsBackwardJob) Grids(q gpu.Launcher) error {
	p := j.params(&j.dx, &j.dy)
	if j.dweights.Len() > 0 {
		p = j.params(&j.dx, &j.dy, &j.x)
		p.dots = 1
	}
	return grid(q, nameOf(&addRowsBackwardNames, &j.dy), rowGrid(j.pairs.Len()), threads, p,
		&j.dx, &j.dweights, &j.dy, &j.x, &j.weights, &j.pairs)
}

// clampedParams is ClampedParams of activations.h.
type clampedParams struct {
	n            uint64
	alpha, limit float32
	wide, _      uint32
}

func (j *gatedJob) clamped(q gpu.Launcher) error {
	n := j.out.Len()
	p := clampedParams{n: uint64(n), alpha: j.act.alpha, limit: j.act.limit, wide: wide(n, &j.out, &j.gate, &j.up)}
	return grid(q, nameOf(&clampedNames, &j.out), packs(n, j.out.DType()), threads, p, &j.out, &j.gate, &j.up)
}

func (j *gatedBackwardJob) clamped(q gpu.Launcher) error {
	n := j.dy.Len()
	p := clampedParams{n: uint64(n), alpha: j.act.alpha, limit: j.act.limit, wide: wide(n, &j.dgate, &j.dup, &j.dy, &j.gate, &j.up)}
	return grid(q, nameOf(&clampedBackwardNames, &j.dy), packs(n, j.dy.DType()), threads, p, &j.dgate, &j.dup, &j.dy, &j.gate, &j.up)
}
