package fused

import (
	"errors"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// Router says how a mixture of experts chooses experts for each row. A row has logits z, one for each expert:
//
//	score[e]  = exp(z[e]) / Σ exp(z[j])          or, with Sigmoid, 1/(1 + exp(−z[e]))
//	experts   = the Chosen experts with the greatest score[e] + bias[e], in descending order
//	weight[k] = Scale·score[experts[k]]          or, with Normalize, Scale·score[experts[k]] / Σ score[experts[j]]
//
// The bias takes part in the choice and not in the weights. Without a bias, experts are ordered by their logits, because
// different logits may round to equal scores. Of equal values the lower index comes first; torch.topk does not define
// that order.
//
//	Mixtral          softmax, Normalize
//	Qwen3-MoE        softmax, Normalize if norm_topk_prob
//	gpt-oss          softmax, Normalize: the softmax over the chosen logits is the same
//	DeepSeek-V2      softmax, Scale = routed_scaling_factor; with topk_method group_limited_greedy Groups and ChosenGroups
//	DeepSeek-V3      Sigmoid, Normalize, Scale, a bias, Groups, ChosenGroups = topk_group, GroupTop 2
//
// Sources: Shazeer et al., "Outrageously Large Neural Networks" (2017); Jiang et al., "Mixtral of Experts" (2024);
// Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts" (2024), for the bias.
type Router struct {
	// Experts is the number of experts, and Chosen how many of them a row gets: 1 ≤ Chosen ≤ Experts.
	Experts, Chosen int
	// Sigmoid takes the sigmoid of each logit as its score, in place of the softmax over all logits.
	Sigmoid bool
	// Normalize divides the weights of a row by their sum.
	Normalize bool
	// Scale multiplies the weights. 0 means 1.
	Scale float32

	// Groups is how many groups of neighbors the experts are divided into; 0 and 1 mean none. A row gets experts of its best ChosenGroups
	// groups alone. The score of a group is the sum of what its GroupTop best experts are ordered by, scores plus bias: 0 means 1.
	// They hold Chosen experts or more. On the CPU alone.
	Groups, ChosenGroups, GroupTop int
}

// Route chooses experts for each row of logits and computes the weights of the chosen experts, as the [Router] says.
//
// Shapes: logits [rows, Experts]; weights [rows, Chosen] of float32; experts rows·Chosen indices in host memory, where
// [Group] and the caller's products of the experts need them; bias Experts elements in host memory, or empty for no
// bias. A wrong length gives [snug.ErrShape]; a bias that is not finite gives [snug.ErrConfig].
//
// Accuracy: with Normalize, the exponentials are taken relative to the greatest among the chosen logits, so that the
// weights are right even where all scores underflow. The sum of the weights of a row then differs from Scale by at most
// (Chosen+2)·2^-24 of Scale. Experts and weights have the same bits on every CPU, and on GPUs whose warps have 32
// lanes.
//
// Non-finite logits: NaN counts as greater than all numbers, as in torch.topk. The indices are in range and distinct
// in any case. With softmax scores, all weights of a row are NaN if one of its logits is NaN or +Inf, or if all are
// −Inf. With normalized sigmoid scores, all weights of a row are NaN if a chosen logit is NaN, or if all logits are
// −Inf. In all other rows an expert whose logit is −Inf has the weight 0.
//
// No operand may overlap another. On a device other than the CPU the call waits until the experts are in host memory,
// and takes 4·(rows·Chosen + len(bias)) bytes of device memory until then. Each worker holds up to 24·Experts bytes.
func Route[V snug.Vector, L snug.Vector32](r Router, experts []int32, weights L, logits V, bias []float32) error {
	check := &checks{op: "Route"}
	j := routeJob{router: r, weights: snug.ViewOf(weights), logits: snug.ViewOf(logits)}
	j.router.resolve(check)
	check.allFinite("bias", bias)
	check.floats(operand{"logits", j.logits})
	check.f32(operand{"weights", j.weights})
	rows := check.rows(operand{"logits", j.logits}, r.Experts)
	r.checkExperts(check, experts, rows, false)
	check.matrix(rows, r.Chosen, operand{"weights", j.weights})
	r.checkEach(check, "bias", bias)
	dev := check.device(j.weights, j.logits)
	if check.err == nil && r.grouped() && !dev.IsCPU() {
		check.failf(snug.ErrDevice, "Groups is %d on %s, want the CPU", r.Groups, dev.Name())
	}
	if check.err != nil {
		return check.err
	}
	j.rows = rows
	if dev.IsCPU() {
		j.experts, j.bias = snug.SliceView(experts), snug.SliceView(bias)
		j.Run()
		return nil
	}
	queued := j
	return queued.launch(dev, experts, bias)
}

// launch runs the job on a device and copies the experts to the host.
func (j *routeJob) launch(dev *snug.Device, experts []int32, bias []float32) (err error) {
	chosen, err := device.Lend(dev, snug.I32, len(experts))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Return(chosen)) }()
	j.experts = chosen
	if err := launchWith(dev, j, someUpload(nil, bias, &j.bias)); err != nil {
		return err
	}
	return snug.Copy(snug.SliceView(experts), chosen)
}

// someUpload appends the upload of host unless host is empty.
func someUpload(uploads []upload, host []float32, view *snug.View) []upload {
	if len(host) == 0 {
		return uploads
	}
	return append(uploads, upload{snug.SliceView(host), view})
}

// RouteBackward computes the gradient dlogits of the logits of [Route]. dweights is the gradient of the weights. aux is
// the gradient of a further loss, such as [AuxLoss], with respect to the score of each expert; it is the same for all
// rows:
//
//	dlogits[i][e] = Σ dweights[i][k]·∂weight[k]/∂z[e] + Σ aux[j]·∂score[j]/∂z[e]
//
// The choice has no gradient. Scores are computed again from the logits.
//
// Shapes: dlogits and logits [rows, Experts]; dweights [rows, Chosen] of float32, or empty for zeros; experts
// rows·Chosen indices in host memory, as Route wrote them; aux Experts elements in host memory, or empty for zeros. aux
// is finite (else [snug.ErrConfig]). An expert out of range gives an error that wraps [snug.ErrShape] and names its
// index.
//
// dlogits may be logits. Results have the same bits on every CPU, and on GPUs whose warps have 32 lanes. On a device
// other than the CPU the call takes 4·(rows·Chosen + len(aux)) bytes there. Each worker holds 8·Experts bytes.
func RouteBackward[V snug.Vector, L snug.Vector32](r Router, dlogits V, dweights L, logits V, experts []int32, aux []float32) error {
	check := &checks{op: "RouteBackward"}
	j := routeBackwardJob{router: r, dlogits: snug.ViewOf(dlogits), dweights: snug.ViewOf(dweights), logits: snug.ViewOf(logits)}
	j.router.resolve(check)
	check.allFinite("aux", aux)
	check.floats(operand{"dlogits", j.dlogits}, operand{"logits", j.logits})
	check.f32(operand{"dweights", j.dweights})
	rows := check.rows(operand{"logits", j.logits}, r.Experts)
	check.matrix(rows, r.Experts, operand{"dlogits", j.dlogits})
	check.matrixIfAny(rows, r.Chosen, operand{"dweights", j.dweights})
	r.checkExperts(check, experts, rows, true)
	r.checkEach(check, "aux", aux)
	dev := check.device(j.dlogits, j.dweights, j.logits)
	if check.err != nil {
		return check.err
	}
	j.rows = rows
	if dev.IsCPU() {
		j.experts, j.aux = snug.SliceView(experts), snug.SliceView(aux)
		j.Run()
		return nil
	}
	queued := j
	return launchWith(dev, &queued, someUpload([]upload{indices(experts, &queued.experts)}, aux, &queued.aux))
}

// resolve checks the router and puts the default in place of a Scale of 0.
func (r *Router) resolve(check *checks) {
	if r.Experts < 1 || r.Experts > math.MaxInt32 {
		check.failf(snug.ErrConfig, "Experts is %d, want 1 to %d", r.Experts, math.MaxInt32)
	}
	if r.Chosen < 1 || r.Chosen > r.Experts {
		check.failf(snug.ErrConfig, "Chosen is %d, want 1 to the %d Experts", r.Chosen, r.Experts)
	}
	check.finite("Scale", r.Scale)
	if r.Scale == 0 {
		r.Scale = 1
	}
	r.resolveGroups(check)
}

// grouped reports whether a row gets experts of some groups alone.
func (r *Router) grouped() bool { return r.Groups > 1 && r.ChosenGroups < r.Groups }

func (r *Router) resolveGroups(check *checks) {
	if r.Groups == 0 && r.ChosenGroups == 0 && r.GroupTop == 0 {
		return
	}
	if r.GroupTop == 0 {
		r.GroupTop = 1
	}
	switch {
	case r.Groups < 1 || r.Experts%r.Groups != 0:
		check.failf(snug.ErrConfig, "Groups is %d, want a divisor of the %d Experts", r.Groups, r.Experts)
	case r.ChosenGroups < 1 || r.ChosenGroups > r.Groups || r.Chosen > r.ChosenGroups*(r.Experts/r.Groups):
		check.failf(snug.ErrConfig, "ChosenGroups is %d, want 1 to the %d Groups, with %d experts or more", r.ChosenGroups, r.Groups, r.Chosen)
	case r.GroupTop < 1 || r.GroupTop > r.Experts/r.Groups:
		check.failf(snug.ErrConfig, "GroupTop is %d, want 1 to the %d experts of a group", r.GroupTop, r.Experts/r.Groups)
	}
}

// checkExperts checks that there are Chosen experts for each row and, where the call reads them, that each index is
// below Experts.
func (r *Router) checkExperts(check *checks, experts []int32, rows int, read bool) {
	if len(experts) != product(rows, r.Chosen) {
		check.failf(snug.ErrShape, "experts has %d elements, want %d for each of %d rows", len(experts), r.Chosen, rows)
	}
	if read {
		check.indices("experts", experts, "the router", r.Experts, false)
	}
}

// checkEach checks that a vector is empty or has one element for each expert.
func (r *Router) checkEach(check *checks, name string, x []float32) {
	if len(x) != 0 && len(x) != r.Experts {
		check.failf(snug.ErrShape, "%s has %d elements, want one for each of %d experts", name, len(x), r.Experts)
	}
}
