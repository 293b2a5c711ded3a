package amp

import (
	"fmt"
	"maps"
	"strings"

	"github.com/snug-ml/snug"
)

// Rule says in which element type an operation computes under autocast.
type Rule int

const (
	// Neutral operations compute in the widest type of their inputs and are in
	// no list: both types are as good.
	Neutral Rule = iota
	// Low operations, the matrix products above all, compute in the policy's
	// Compute type.
	Low
	// Full operations, such as exponentials, norms, sums and losses, compute in
	// float32.
	Full
	// Widest operations compute in the widest type of their inputs, which have to
	// agree.
	Widest
	// Forbidden operations are errors: they are not safe in 16 bits, and float32
	// inputs come too late.
	Forbidden
)

// Ops are the rules of operations by name. Operations without a rule are Neutral. The
// caller may add, change and delete rules.
type Ops map[string]Rule

// CUDAOps returns torch's rules for CUDA, by the names of torch's operations
// (torch 2.15).
func CUDAOps() Ops { return maps.Clone(cudaOps) }

// CPUOps returns torch's rules for the CPU (torch 2.15).
func CPUOps() Ops { return maps.Clone(cpuOps) }

// Type returns the element type in which an operation computes: what its
// floating-point inputs are cast to. low is the type of Low operations, a
// policy's Compute. Other inputs, such as indices, do not count. Where there is
// no other, and for a Neutral or Widest operation of one type, that is the type
// of the inputs. The widest type of float16 and bfloat16 is float32, which holds
// both.
//
// Errors: [snug.ErrConfig] for a Forbidden operation, an unknown Rule or no
// inputs, [snug.ErrDType] when low is not floating-point.
func (o Ops) Type(op string, low snug.DType, inputs ...snug.DType) (snug.DType, error) {
	rule := o[op]
	switch {
	case rule == Forbidden:
		return 0, fmt.Errorf("amp: %s is not safe under autocast; take its form on logits: %w", op, snug.ErrConfig)
	case rule < Neutral || rule > Forbidden:
		return 0, fmt.Errorf("amp: %s has rule %d, want Neutral to Forbidden: %w", op, rule, snug.ErrConfig)
	case !low.IsFloat():
		return 0, fmt.Errorf("amp: %s: the low type is %s, want a floating-point one: %w", op, low, snug.ErrDType)
	case len(inputs) == 0:
		return 0, fmt.Errorf("amp: %s has no inputs: %w", op, snug.ErrConfig)
	}
	widest := snug.DType(0)
	for _, t := range inputs {
		switch {
		case !t.IsFloat() || t == widest:
		case widest == 0:
			widest = t
		default:
			widest = snug.F32
		}
	}
	switch {
	case widest == 0:
		return inputs[0], nil
	case rule == Low:
		return low, nil
	case rule == Full:
		return snug.F32, nil
	}
	return widest, nil
}

var cudaOps, cpuOps = rules(cudaLow, cudaFull, cudaWidest), rules(cpuLow, cpuFull, cpuWidest)

func init() { cudaOps["binary_cross_entropy"] = Forbidden }

// rules returns the Ops of three lists of names.
func rules(low, full, widest string) Ops {
	o := Ops{}
	for i, list := range []string{low, full, widest} {
		for name := range strings.FieldsSeq(list) {
			o[name] = Low + Rule(i)
		}
	}
	return o
}

const (
	cudaLow = `_convolution _cudnn_rnn _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm
addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d convolution cudnn_convolution cudnn_convolution_transpose einsum gru_cell linalg_multi_dot
linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention`
	cudaFull = `_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss
cosine_similarity cumprod cumsum dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss
huber_loss kl_div l1_loss layer_norm linalg_matrix_norm linalg_matrix_sqrth linalg_vector_norm log log10 log1p
log2 log_softmax logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
native_layer_norm nll_loss nll_loss2d norm nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm
rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softmax softplus sum tan triplet_margin_loss
upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
upsample_nearest3d upsample_trilinear3d`
	cudaWidest = `addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot`

	cpuLow = `_addmm_activation _convolution _native_multi_head_attention addbmm addmm baddbmm bmm conv1d conv2d conv3d
conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d linalg_vecdot linear matmul mkldnn_rnn_layer mm
prelu scaled_dot_product_attention`
	cpuFull = `_grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d
binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky_inverse cholesky_solve
cosine_embedding_loss cross_entropy_loss ctc_loss fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn
fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler grid_sampler_2d grid_sampler_3d
hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky linalg_cholesky_ex linalg_cond
linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex
linalg_lstsq linalg_matrix_rank linalg_matrix_sqrth linalg_qr linalg_solve linalg_svd linalg_svdvals
linalg_tensorinv linalg_tensorsolve lu_solve margin_ranking_loss max_pool3d max_unpool2d max_unpool3d mse_loss
multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nanquantile nll_loss nll_loss2d orgqr
ormqr pinverse poisson_nll_loss polar prod quantile reflection_pad1d reflection_pad2d replication_pad1d
replication_pad2d replication_pad3d smooth_l1_loss soft_margin_loss stft svd trace triangular_solve
triplet_margin_loss view_as_complex`
	cpuWidest = `cat index_copy stack`
)
