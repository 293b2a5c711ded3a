package layers

import (
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroLayers calls functions and methods with zero values and nil: none panics.
func TestZeroLayers(t *testing.T) {
	var none *Model
	kerneltest.Zero(t, none, new(Model), new(Linear), Norm{}, Activation{}, new(MLP), new(Attention), new(Parallel), new(Beside), new(AltUp), new(ShortConv), new(DeltaNet), new(Mamba2), new(Latent), new(PerLayer), new(Scaled), new(KeyValues), new(Embedding), Embeddings{}, Embeddings{Rows: []int32{3, 1}}, Dropout{P: 2}, Sequential{},
		Residual{}, Tiled{}, Concat{}, Groups{}, MSE{}, ElementLoss{}, DiceLoss{}, Decoder{}, new(CrossEntropy), Rope{}, RopeKind(""), new(Angles), new(Pass), new(Batch), Param{}, new(Param), new(Tensor),
		new(Balance), new(Conv), ConvLoRA{}, new(GroupNorm), new(BatchNorm), Sum{}, MaxPool{}, AvgPool{}, Resize{}, new(Patches), Pooled{}, NoGrad{}, new(Experts), Source{}, NewModel, NewPass, NewLinear, NewRMSNorm, NewLayerNorm, NewLayerScale, NewMLP, NewAttention, NewShortConv, NewDeltaNet, NewMamba2, NewEmbedding, NewCrossEntropy,
		NewConv, NewConvLoRA, NewGroupNorm, NewBatchNorm, NewPatches, NewAngles, NewExperts, GroupRows, Elementwise, ClampedSwiGLU)
}
