package snug_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// readme has what the README's samples use and do not show. Its method program, in
// readme_program_test.go, is all samples of the README in their order, joined.
type readme struct {
	steps int
	ctx   context.Context

	backward  func(scale float32) error
	gradients func() accumGradients
	step      func(clip float32) error

	batches []batch
	chain   *remat.Chain[[]float32, []float32]
	x       []float32
	loss    func([]float32) ([]float32, error)

	weights, gradient []float32
	first             func(lo int, w []float32) error
	dir               string

	layer, out, dout, qkv, dqkv []snug.BFloat16
	hidden, table, dhidden      []snug.BFloat16
	targets                     []int32

	model  plan.Model
	device plan.Device
	name   string
}

type accumGradients = func(yield func(string, snug.View) bool)

type batch struct {
	targets  int
	gradient []float32
}

// doubler is a stage that doubles its input.
type doubler struct{}

func (doubler) Forward(_ context.Context, x []float32) ([]float32, error) {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = 2 * x[i]
	}
	return y, nil
}

func (d doubler) ForwardSave(ctx context.Context, x []float32) (y, s []float32, err error) {
	y, err = d.Forward(ctx, x)
	return y, y, err
}

func (d doubler) Backward(ctx context.Context, _, _, dy []float32) ([]float32, error) {
	return d.Forward(ctx, dy)
}

// TestReadmeProgram runs the samples of the README, joined into one program, for several
// steps on every device that there is.
func TestReadmeProgram(t *testing.T) {
	const steps = 3
	four := []float32{1, 2, 3, 4}
	bytesOf := func(x []float32) int64 { return 4 * int64(len(x)) }
	b := func(n int) []snug.BFloat16 { return make([]snug.BFloat16, n) }
	for _, p := range kerneltest.Places(t)[1:] {
		window, err := accum.New([]accum.Param{{Name: "w", Len: 4}}, accum.Options{})
		require.NoError(t, err)
		model, err := plan.ModelNamed("gpt2", 0)
		require.NoError(t, err)
		backwards, stepped := 0, 0
		r := readme{
			steps: steps, ctx: context.Background(), name: p.Name, dir: filepath.Join(t.TempDir(), "store"),
			backward: func(scale float32) error {
				require.Equal(t, float32(65536), scale)
				window.Reset()
				require.NoError(t, window.Begin(1))
				require.NoError(t, window.Add("w", snug.ViewOf(four)))
				_, err = window.End()
				backwards++
				return err
			},
			gradients: func() accumGradients { return accumGradients(window.Gradients()) },
			step: func(clip float32) error {
				require.Equal(t, float32(1), clip)
				stepped++
				return nil
			},
			batches: []batch{{3, four}, {5, four}},
			chain: &remat.Chain[[]float32, []float32]{
				Stages: []remat.Stage[[]float32, []float32]{doubler{}, doubler{}}, Bytes: bytesOf, SavedBytes: bytesOf,
			},
			x:       four,
			loss:    func(y []float32) ([]float32, error) { return append([]float32(nil), y...), nil },
			weights: make([]float32, 5000), gradient: make([]float32, 5000),
			layer: b(64 * 64), out: b(64 * 64), dout: b(64 * 64), qkv: b(3 * 64 * 64), dqkv: b(3 * 64 * 64),
			hidden: b(40 * 32), table: b(512 * 32), dhidden: b(40 * 32), targets: make([]int32, 40),
			model: model, device: plan.Devices()[0],
		}
		r.gradient[7] = 1
		require.NoError(t, r.program())
		require.Equal(t, steps, backwards)
		require.Equal(t, steps, stepped)
		require.Negative(t, r.weights[7], "the optimizers have stepped")
	}
}

// readmeHead begins the joined program: the README's names for what readme has.
const readmeHead = `// Code generated from README.md by "UPDATE=1 go test -run TestReadmeProgramIsTheReadmes ."; DO NOT EDIT.

package snug_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

func (r *readme) program() error {
	steps, ctx, backward, gradients, step := r.steps, r.ctx, r.backward, r.gradients, r.step
	batches, chain, x, loss := r.batches, r.chain, r.x, r.loss
	weights, gradient, first, dir := r.weights, r.gradient, r.first, r.dir
	layer, out, dout, qkv, dqkv := r.layer, r.out, r.dout, r.qkv, r.dqkv
	hidden, table, dhidden, targets := r.hidden, r.table, r.dhidden, r.targets
	model, device, name := r.model, r.device, r.name
`

// readmeTail ends it: the results that the samples leave to the reader.
const readmeTail = `
	if measured.Peak != predicted.Peak || len(dx) != len(x) {
		return fmt.Errorf("a peak of %d bytes, %d are predicted", measured.Peak, predicted.Peak)
	}
	return nil
}
`

// TestReadmeProgramIsTheReadmes: readme_program_test.go is what the README shows.
func TestReadmeProgramIsTheReadmes(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := strings.Split(string(text), "\n```go\n")[1:]
	require.Len(t, blocks, 10)
	var b strings.Builder
	b.WriteString(readmeHead)
	for _, block := range blocks {
		code, _, found := strings.Cut(block, "```")
		require.True(t, found)
		fmt.Fprintf(&b, "\n\t// ---\n\n")
		for line := range strings.Lines(code) {
			if line != "\n" {
				line = "\t" + line
			}
			b.WriteString(line)
		}
	}
	b.WriteString(readmeTail)
	const file = "readme_program_test.go"
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o666))
	}
	program, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(program), "README.md has changed: UPDATE=1 go test -run TestReadmeProgramIsTheReadmes .")
}
