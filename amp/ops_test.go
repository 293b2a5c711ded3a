package amp

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestTorchOps compares the lists with what testdata/torch/ops.py found in
// torch.
//
//check:in tiers arm64 arm64-go
func TestTorchOps(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/ops.json")
	require.NoError(t, err)
	var golden struct {
		CUDA      struct{ Low, F32, Widest []string }
		CUDANames []string `json:"cuda_names"`
		CPUNames  []string `json:"cpu_names"`
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	ops := CUDAOps()
	for rule, names := range map[Rule][]string{Low: golden.CUDA.Low, Full: golden.CUDA.F32, Widest: golden.CUDA.Widest} {
		require.NotEmpty(t, names)
		for _, name := range names {
			require.Equal(t, rule, ops[name], name)
		}
	}
	for _, list := range []struct {
		ops   Ops
		names []string
	}{{ops, golden.CUDANames}, {CPUOps(), golden.CPUNames}} {
		require.Len(t, list.ops, len(list.names))
		for _, name := range list.names {
			require.Contains(t, list.ops, name)
		}
	}
}

func TestOpsType(t *testing.T) {
	const f32, f16, bf16 = snug.F32, snug.F16, snug.BF16
	ops := CUDAOps()
	ops["mine"], ops["gelu"] = Full, Low
	delete(ops, "sum")
	tests := []struct {
		op     string
		low    snug.DType
		inputs []snug.DType
		want   snug.DType
	}{
		{"linear", bf16, []snug.DType{f32, f32}, bf16},
		{"linear", f16, []snug.DType{bf16, f32}, f16},
		{"linear", f32, []snug.DType{bf16, bf16}, f32},
		{"softmax", bf16, []snug.DType{bf16}, f32},
		{"addcmul", f16, []snug.DType{f16, f32, f16}, f32},
		{"addcmul", f16, []snug.DType{f16, f16, f16}, f16},
		{"addcmul", f16, []snug.DType{f16, bf16, f16}, f32},
		{"relu", bf16, []snug.DType{f16}, f16},
		{"relu", bf16, []snug.DType{f16, f32}, f32},
		{"sum", bf16, []snug.DType{bf16}, bf16},
		{"mine", bf16, []snug.DType{bf16}, f32},
		{"gelu", bf16, []snug.DType{f32}, bf16},
		{"index_put", bf16, []snug.DType{bf16, snug.I32, bf16}, bf16},
		{"cumsum", bf16, []snug.DType{snug.I32}, snug.I32},
	}
	for _, test := range tests {
		got, err := ops.Type(test.op, test.low, test.inputs...)
		require.NoError(t, err)
		require.Equal(t, test.want, got, "%v", test)
	}
	require.Equal(t, Full, CUDAOps()["sum"], "a copy was changed")
	ops["odd"] = Forbidden + 1
	for _, bad := range []struct {
		op     string
		low    snug.DType
		inputs []snug.DType
		want   error
	}{
		{"binary_cross_entropy", f16, []snug.DType{f16}, snug.ErrConfig},
		{"odd", f16, []snug.DType{f16}, snug.ErrConfig},
		{"linear", f16, nil, snug.ErrConfig},
		{"linear", snug.U8, []snug.DType{f16}, snug.ErrDType},
	} {
		_, err := ops.Type(bad.op, bad.low, bad.inputs...)
		require.ErrorIs(t, err, bad.want, bad.op)
	}
	got, err := CPUOps().Type("binary_cross_entropy", bf16, bf16)
	require.NoError(t, err, "torch allows it on the CPU")
	require.Equal(t, f32, got)
}
