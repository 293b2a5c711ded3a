package fused

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Buffers of kerneltest start at element 7; with this many elements before them
// operands start at element 16, a multiple of 16 bytes.
const toAligned = 9

// shifted puts operands at p, lead elements behind the start of a buffer.
type shifted struct {
	t    *testing.T
	p    kerneltest.Backend
	lead int
	get  map[string]func() []float32
}

// put copies vals, rounded to dt. With a name they are a result.
func (s *shifted) put(name string, dt snug.DType, vals []float32) snug.View {
	s.t.Helper()
	b := kerneltest.PutFloats(s.t, s.p, dt, append(make([]float32, s.lead), vals...))
	v, err := b.Slice(s.lead, s.lead+len(vals))
	require.NoError(s.t, err)
	if name != "" {
		s.get[name] = func() []float32 { return b.Get()[s.lead:] }
	}
	return v
}

// resultsAt returns what every layer but cross-entropy gives for rows of cols
// elements.
func resultsAt(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols, lead int) map[string][]float32 {
	s := &shifted{t, p, lead, map[string]func() []float32{}}
	rng := newRand(uint64(cols))
	in := func(n int) snug.View { return s.put("", dt, normals(rng, dt, n, 1, 2)) }
	out := func(name string, n int) snug.View { return s.put(name, dt, fill(n, 3)) }
	f32 := func(name string, n int) snug.View { return s.put(name, snug.F32, fill(n, 0.5)) }
	n, none, ids := rows*cols, snug.View{}, tokens(newRand(2), rows, 5)
	x, dy, table, gamma, beta := in(n), in(n), in(5*cols), in(cols), in(cols)
	mean, rstd, rms, ws := f32("mean", rows), f32("rstd", rows), f32("rms", rows), f32("", LayerNormWorkspaceLen(rows, cols))
	add := GradsInto{Input: snug.Into{Beta: 1}, Params: snug.Into{Beta: 1}}
	mask, turn := DropoutMask{P: 0.3, Seed: 1}, RotaryOptions{Heads: 1, Dim: cols, Turned: cols &^ 1}
	for i, err := range []error{
		Add(out("add", n), x, dy),
		BiasGELU(out("gelu", n), x, beta),
		BiasGELUBackward(out("dgelu", n), f32("dbias", cols), dy, x, beta, snug.Into{}, ws),
		BiasGELUErf(out("gelu erf", n), x, beta),
		BiasGELUErfBackward(out("dgelu erf", n), f32("dbias erf", cols), dy, x, beta, snug.Into{}, ws),
		BiasAdd(out("bias add", n), x, beta),
		BiasAddBackward(f32("dbias add", cols), dy, snug.Into{}, ws),
		SwiGLU(out("swiglu", n), x, dy),
		SwiGLUBackward(out("dgate", n), out("dup", n), dy, x, dy),
		GeGLU(out("geglu", n), x, dy),
		GeGLUBackward(out("geglu dgate", n), out("geglu dup", n), dy, x, dy),
		LayerNorm(out("layernorm", n), mean, rstd, x, gamma, beta, testEps),
		LayerNormBackward(out("dlayernorm", n), f32("dgamma", cols), f32("dbeta", cols), dy, x, mean, rstd, gamma, add, ws),
		RMSNorm(out("rmsnorm", n), rms, x, gamma, testEps),
		RMSNormBackward(out("drmsnorm", n), f32("dscale", cols), dy, x, rms, gamma, add, ws),
		Dropout(out("dropout", n), x, mask),
		Embedding(out("embedding", n), table, ids, none, nil, cols),
		Embedding(out("positions", n), table, ids, table, ids, cols),
		EmbeddingBackward(f32("dtable", 5*cols), dy, ids, cols, snug.Into{Alpha: 0.3, Beta: 1}),
		Rotary(out("rotary", n), s.put("", snug.F32, normals(rng, snug.F32, 5*turn.Turned, 0, 1)), ids, turn),
	} {
		require.NoError(t, err, "call %d", i)
	}
	results := make(map[string][]float32, len(s.get))
	for name, get := range s.get {
		results[name] = get()
	}
	return results
}

// Results do not depend on where operands start: kernels that move 16 bytes at a
// time give the bits of those that move single elements.
func TestResultsDoNotDependOnAlignment(t *testing.T) {
	for _, dt := range floatTypes {
		t.Run(dt.String(), func(t *testing.T) {
			kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
				// Rows of whole packs, more than a warp has lanes, and a row with a rest.
				for _, c := range []struct{ rows, cols int }{{20, 264}, {1, 269}} {
					want, got := resultsAt(t, p, dt, c.rows, c.cols, 0), resultsAt(t, p, dt, c.rows, c.cols, toAligned)
					for name, w := range want {
						requireBits(t, fmt.Sprintf("%s, %d rows of %d", name, c.rows, c.cols), w, got[name])
					}
				}
			})
		})
	}
}
