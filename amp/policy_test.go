package amp

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParsePolicy(t *testing.T) {
	tests := []struct {
		in   string
		want Policy
	}{
		{"params=f32,compute=bf16,output=f32", Policy{snug.F32, snug.BF16, snug.F32}},
		{"output=f32, params=float32 ,compute=half", Policy{snug.F32, snug.F16, snug.F32}},
		{"p=bf16,c=f32,o=f16", Policy{snug.BF16, snug.F32, snug.F16}},
		{"compute=f16", Policy{snug.F32, snug.F16, snug.F16}},
		{"params=bf16", Policy{snug.BF16, snug.BF16, snug.BF16}},
		{"output=f16", Policy{snug.F32, snug.F32, snug.F16}},
		{"bfloat16", Policy{snug.BF16, snug.BF16, snug.BF16}},
	}
	for _, test := range tests {
		t.Run(test.in, func(t *testing.T) {
			p, err := ParsePolicy(test.in)
			require.NoError(t, err)
			require.Equal(t, test.want, p)
			again, err := ParsePolicy(p.String())
			require.NoError(t, err)
			require.Equal(t, p, again)
		})
	}
}

func TestParsePolicyErrors(t *testing.T) {
	tests := []struct {
		in   string
		want error
	}{
		{"", snug.ErrDType},
		{"f8", snug.ErrDType},
		{"u8", snug.ErrDType},
		{"params=", snug.ErrDType},
		{"params=i32", snug.ErrDType},
		{"compute=fp16", snug.ErrDType},
		{"params=f32=f16", snug.ErrDType},
		{"params=f32,", snug.ErrConfig},
		{"=f32", snug.ErrConfig},
		{"weights=f32", snug.ErrConfig},
		{"params=f32,compute", snug.ErrConfig},
		{"params=f32,p=f32", snug.ErrConfig},
	}
	for _, test := range tests {
		t.Run(test.in, func(t *testing.T) {
			p, err := ParsePolicy(test.in)
			require.ErrorIs(t, err, test.want)
			require.Zero(t, p)
		})
	}
}

func policyProperty(t *rapid.T) {
	p, err := ParsePolicy(rapid.OneOf(
		rapid.StringMatching(`((params|compute|output|p|c|o)=(f32|f16|bf16),?){1,3}`), rapid.String()).Draw(t, "policy"))
	if err != nil {
		require.Zero(t, p)
		return
	}
	again, err := ParsePolicy(p.String())
	require.NoError(t, err)
	require.Equal(t, p, again)
}

//check:in tiers
func TestPolicyProperty(t *testing.T) { rapid.Check(t, policyProperty) }
func FuzzPolicy(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(policyProperty)) }
