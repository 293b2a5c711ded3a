package qlora

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// started is what PEFT made of a matrix, see testdata/peft/start.py.
type started struct {
	Init                  string
	Out, In, Rank         int
	Alpha                 float32
	RSLoRA                bool
	Iterations            int
	Weight, Product, Left encoded
}

func startCases(t *testing.T) (cases []started) {
	text, err := os.ReadFile(filepath.Join("testdata", "peft", "start.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &cases))
	require.Len(t, cases, 7)
	return cases
}

func (c started) options() AdapterOptions {
	return AdapterOptions{Rank: c.Rank, Alpha: c.Alpha, RSLoRA: c.RSLoRA, Init: c.Init}
}

// adapter returns an adapter without values on a device.
func (c started) adapter(t *testing.T, dev *snug.Device) *LoRA {
	rank, scale, err := c.options().RankOf("up")
	require.NoError(t, err)
	l := &LoRA{In: c.In, Out: c.Out, Rank: rank, Scale: scale}
	l.A, l.B = on(t, dev, snug.F32, make([]float32, rank*c.In)), on(t, dev, snug.F32, make([]float32, c.Out*rank))
	return l
}

// start returns the adapter of a case, and the elements of what is left of the matrix.
func (c started) start(t *testing.T, dev *snug.Device) (*LoRA, []float32) {
	l, w := c.adapter(t, dev), on(t, dev, snug.F32, c.Weight.floats(t, snug.F32))
	if c.Init != "loftq" {
		require.NoError(t, l.Start(w, c.Init))
		return l, values(t, w)
	}
	q, err := l.StartLoftQ(w, Options{Single: true}, c.Iterations)
	require.NoError(t, err)
	require.Equal(t, c.Weight.floats(t, snug.F32), values(t, w), "StartLoftQ does not change the matrix")
	left := values(t, dequantized(t, q))
	require.NoError(t, q.Close())
	return l, left
}

// product returns B·A.
func (l *LoRA) product(t *testing.T) []float32 {
	a, b, p := values(t, l.A), values(t, l.B), make([]float32, l.Out*l.In)
	for i := range l.Out {
		for j := range l.In {
			sum := 0.0
			for k := range l.Rank {
				sum += float64(b[i*l.Rank+k]) * float64(a[k*l.In+j])
			}
			p[i*l.In+j] = float32(sum)
		}
	}
	return p
}

// TestStartAgainstPEFT: B·A and what is left of the matrix are PEFT's.
func TestStartAgainstPEFT(t *testing.T) {
	for _, backend := range backends(t) {
		for i, c := range startCases(t) {
			l, left := c.start(t, backend.Dev)
			name := fmt.Sprint(backend.Name, " ", i, " ", c.Init)
			require.InDeltaSlice(t, c.Product.floats(t, snug.F32), l.product(t), 1e-5, name)
			require.InDeltaSlice(t, c.Left.floats(t, snug.F32), left, 1e-5, name)
		}
	}
}

// TestStartOfTypes: of a matrix in 16 bits the adapter is that of its values, and the rest is rounded.
//
//check:in tiers
func TestStartOfTypes(t *testing.T) {
	for _, dt := range []snug.DType{snug.F16, snug.BF16} {
		for _, c := range startCases(t)[:5] {
			l := c.adapter(t, snug.CPU())
			w := on(t, snug.CPU(), dt, c.Weight.floats(t, snug.F32))
			rounded := values(t, w)
			require.NoError(t, l.Start(w, c.Init))
			product := l.product(t)
			for i, x := range values(t, w) {
				want := rounded[i] - l.Scale*product[i]
				require.InDelta(t, want, x, float64(0x1p-8*max(want, -want))+1e-5, "%s %s", dt, c.Init)
			}
		}
	}
}

// TestStartLoftQOfRows: what is quantized by rows is taken from the matrix as whole rows.
func TestStartLoftQOfRows(t *testing.T) {
	const out, in, rank = 70, 1000, 3
	rng := rand.New(rand.NewPCG(1, 2))
	matrix := make([]float32, out*in)
	for i := range matrix {
		matrix[i] = rng.Float32() - 0.5
	}
	adapter := func() *LoRA {
		return &LoRA{In: in, Out: out, Rank: rank, Scale: 1, A: snug.ViewOf(make([]float32, rank*in)), B: snug.ViewOf(make([]float32, out*rank))}
	}
	for _, form := range []Type{INT8, FP8, MXFP4} {
		if form == MXFP4 {
			matrix = matrix[:out*992] // rows of whole blocks
		}
		l, want := adapter(), adapter()
		l.In, want.In = len(matrix)/out, len(matrix)/out
		l.A, want.A = part(l.A, 0, rank*l.In), part(want.A, 0, rank*l.In)
		q, err := l.StartLoftQ(snug.ViewOf(matrix), Options{Type: form}, 1)
		require.NoError(t, err)
		rest := values(t, dequantized(t, q))
		for i, x := range rest {
			rest[i] = matrix[i] - x
		}
		require.NoError(t, want.Start(snug.ViewOf(rest), "pissa"))
		require.InDeltaSlice(t, want.product(t), l.product(t), 1e-6, form)
		require.NoError(t, q.Close())
	}
}

// TestStartByIterations: iterations of a subspace come close to the whole decomposition, and take no part of a matrix
// away beyond s·B·A.
func TestStartByIterations(t *testing.T) {
	for _, c := range startCases(t)[:3] {
		c.Init = "pissa_niter_30"
		l, left := c.start(t, snug.CPU())
		require.InDeltaSlice(t, c.Product.floats(t, snug.F32), l.product(t), 1e-5)
		require.InDeltaSlice(t, c.Left.floats(t, snug.F32), left, 1e-5)
		again, _ := c.start(t, snug.CPU())
		require.Equal(t, l.A.Float32s(), again.A.Float32s())
		require.Equal(t, l.B.Float32s(), again.B.Float32s())
		c.Init = "pissa_niter_1"
		l, left = c.start(t, snug.CPU())
		w := c.Weight.floats(t, snug.F32)
		for i, p := range l.product(t) {
			require.InDelta(t, w[i], left[i]+l.Scale*p, 1e-6)
		}
	}
}

// TestLargeStart: a matrix that is too large for the whole decomposition has nearly the same adapter.
func TestLargeStart(t *testing.T) {
	const out, in, rank = exactSide + 8, exactSide + 40, 5
	rng := rand.New(rand.NewPCG(5, 6))
	u, v, w := make([]float32, out*20), make([]float32, in*20), make([]float32, out*in)
	for i := range u {
		u[i] = float32(rng.NormFloat64()*math.Pow(0.8, float64(i%20))) / out
	}
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	for i := range w {
		w[i] = float32(rng.NormFloat64()) / (100 * out)
	}
	require.NoError(t, amp.MatMul(snug.ViewOf(w), snug.ViewOf(u), snug.ViewOf(v), amp.MatMulOptions{M: out, N: in, K: 20, TransB: true, Into: snug.Into{Alpha: 1, Beta: 1}}))
	exact, err := decompose(w, out, in)
	require.NoError(t, err)
	l := started{In: in, Out: out}.adapterOf(rank, 2)
	require.NoError(t, l.Start(snug.ViewOf(append([]float32(nil), w...)), "pissa"))
	p := l.product(t)
	for i := range out {
		for j := range in {
			want := 0.0
			for k := range rank {
				want += exact.left.At(i, k) * exact.values[k] * exact.right.At(j, k)
			}
			require.InDelta(t, want, 2*p[i*in+j], 1e-6)
		}
	}
}

// TestStartOfFlat: matrices whose singular values are zeros, or all equal, have adapters too.
func TestStartOfFlat(t *testing.T) {
	for _, init := range []string{"pissa", "pissa_niter_3", "olora"} {
		for _, n := range []int{12, exactSide + 4} {
			for _, diagonal := range []float32{0, 3} {
				w := make([]float32, n*(n+1))
				for i := range n {
					w[i*(n+1)+i] = diagonal
				}
				l := started{Init: init, Out: n, In: n + 1, Rank: 2, Alpha: -2}.adapterOf(2, 1)
				want := append([]float32(nil), w...)
				require.NoError(t, l.Start(snug.ViewOf(w), init))
				for i, p := range l.product(t) {
					require.InDelta(t, want[i], w[i]+l.Scale*p, 1e-5, init)
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	w := make([]float32, 8*64)
	for i := range w {
		w[i] = rng.Float32()
	}
	l := started{Out: 8, In: 64}.adapterOf(3, -0.5)
	q, err := l.StartLoftQ(snug.ViewOf(w), Options{}, 3)
	require.NoError(t, err)
	require.True(t, q.Double())
	rest, plain, decoded := 0.0, 0.0, values(t, dequantized(t, q))
	alone, err := NewWeight(w, []int{8, 64}, Options{})
	require.NoError(t, err)
	for i, p := range l.product(t) {
		rest += math.Pow(float64(w[i]-decoded[i]-l.Scale*p), 2)
	}
	for i, x := range values(t, dequantized(t, alone)) {
		plain += math.Pow(float64(w[i]-x), 2)
	}
	require.Less(t, rest, 0.5*plain, "adapters make up for most of what 4 bits lose")
}

func (c started) adapterOf(rank int, scale float32) *LoRA {
	return &LoRA{In: c.In, Out: c.Out, Rank: rank, Scale: scale, A: snug.ViewOf(make([]float32, rank*c.In)), B: snug.ViewOf(make([]float32, rank*c.Out))}
}

// TestStartBeyondFloat32: a matrix whose products overflow is an error, and nothing is written.
func TestStartBeyondFloat32(t *testing.T) {
	for _, n := range []int{6, exactSide + 1} {
		for _, init := range []string{"pissa", "pissa_niter_2", "olora"} {
			w := make([]float32, n*n)
			for i := range w {
				w[i] = math.MaxFloat32
			}
			w[1] = -math.MaxFloat32
			l := started{In: n, Out: n}.adapterOf(2, 1e-30)
			if err := l.Start(snug.ViewOf(w), init); err != nil {
				require.ErrorIs(t, err, snug.ErrNonFinite)
				require.Zero(t, l.A.Float32s()[0])
				require.EqualValues(t, math.MaxFloat32, w[0])
			}
			for _, x := range append(l.A.Float32s(), w...) {
				require.Zero(t, x-x, init)
			}
		}
	}
}

func TestStartRefused(t *testing.T) {
	w := snug.ViewOf(make([]float32, 12))
	bad := snug.ViewOf([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, float32(math.NaN())})
	low := snug.ViewOf(make([]snug.BFloat16, 6))
	for i, c := range []struct {
		l    *LoRA
		w    snug.View
		init string
		want error
	}{
		{nil, w, "pissa", snug.ErrConfig},
		{&LoRA{}, w, "pissa", snug.ErrConfig},
		{started{In: 4, Out: 3}.adapterOf(2, 1), w, "", snug.ErrConfig},
		{started{In: 4, Out: 3}.adapterOf(2, 1), w, "loftq", snug.ErrConfig},
		{started{In: 4, Out: 3}.adapterOf(2, 1), w, "pissa_niter_0", snug.ErrConfig},
		{started{In: 4, Out: 3}.adapterOf(2, 1), w, "pissa_niter_1001", snug.ErrConfig},
		{started{In: 4, Out: 3}.adapterOf(4, 1), w, "olora", snug.ErrConfig},
		{started{In: 3, Out: 3}.adapterOf(2, 1), w, "pissa", snug.ErrShape},
		{started{In: 4, Out: 3}.adapterOf(2, 1), snug.SliceView(make([]uint8, 12)), "pissa", snug.ErrDType},
		{started{In: 4, Out: 3}.adapterOf(2, 1), bad, "pissa", snug.ErrNonFinite},
		{&LoRA{In: 3, Out: 3, Rank: 2, Scale: 1, A: low, B: low}, snug.ViewOf(make([]float32, 9)), "pissa", snug.ErrDType},
	} {
		require.ErrorIs(t, c.l.Start(c.w, c.init), c.want, i)
		if c.init == "pissa" {
			_, err := c.l.StartLoftQ(c.w, Options{}, 1)
			require.ErrorIs(t, err, c.want, i)
			_, err = c.l.StartLoftQ(c.w, Options{}, 0)
			require.ErrorIs(t, err, snug.ErrConfig, i)
		}
	}
	_, err := started{In: 4, Out: 3}.adapterOf(2, 1).StartLoftQ(w, Options{Block: 3}, 2)
	require.ErrorIs(t, err, snug.ErrConfig)

	l := started{In: 4, Out: 3}.adapterOf(2, 1)
	magnitude := *l
	magnitude.Magnitude = snug.ViewOf(make([]float32, 3))
	half := &LoRA{In: 3, Out: 3, Rank: 2, Scale: 1, A: low, B: low}
	for i, pair := range [][2]*LoRA{{l, nil}, {nil, l}, {l, {}}, {l, &magnitude}, {half, half},
		{l, started{In: 4, Out: 3}.adapterOf(1, 1)}, {l, started{In: 4, Out: 3}.adapterOf(2, 2)}, {l, started{In: 3, Out: 4}.adapterOf(2, 1)}} {
		_, err := pair[0].Less(pair[1])
		require.Error(t, err, i)
	}
	for _, c := range []AdapterOptions{{Rank: 1, Alpha: 1, Init: "corda"}, {Rank: 1, Alpha: 1, Init: "PiSSA"}, {Rank: 1, Alpha: 1, Init: "pissa", DoRA: true}, {Rank: 1, Alpha: 1, FrozenA: true, DoRA: true}} {
		_, _, err := c.RankOf("up")
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	c := AdapterOptions{Rank: 2, Alpha: 2, Init: "pissa"}
	err = SaveAdapters(t.TempDir(), c, map[string]*LoRA{"up": l})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "LoRA.Less")
}

// TestStartForPEFT: adapters that began by their matrix, trained and converted, add to the matrix what training added
// to both. It writes what testdata/peft/start.py checks into the folder $SNUG_SAVE.
func TestStartForPEFT(t *testing.T) {
	dir := os.Getenv("SNUG_SAVE")
	if dir == "" {
		dir = t.TempDir()
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for i, c := range startCases(t) {
		if c.Init == "loftq" {
			continue
		}
		l, left := c.start(t, snug.CPU())
		first := c.adapter(t, snug.CPU())
		require.NoError(t, snug.Copy(first.A, l.A))
		require.NoError(t, snug.Copy(first.B, l.B))
		for _, v := range [][]float32{l.A.Float32s(), l.B.Float32s()} {
			for i := range v {
				v[i] += (rng.Float32() - 0.5) / 8
			}
		}
		plain, err := l.Less(first)
		require.NoError(t, err)
		o := c.options()
		o.Ranks, o.Alphas = map[string]int{"down": 2}, map[string]float32{"down": 4}
		o = o.Doubled()
		o.Targets = Modules{Names: []string{"up"}}
		require.Equal(t, map[string]int{"down": 4}, o.Ranks)
		_, scale, err := o.RankOf("up")
		require.NoError(t, err)
		require.InDelta(t, l.Scale, scale, 1e-6)
		plain.Scale, o.Ranks, o.Alphas = scale, nil, nil
		out := filepath.Join(dir, strconv.Itoa(i))
		require.NoError(t, SaveAdapters(out, o, map[string]*LoRA{"up": plain}))

		const rows = 3
		x, y, u := make([]float32, rows*c.In), make([]float32, rows*c.Out), make([]float32, rows*l.Rank)
		for i := range x {
			x[i] = rng.Float32() - 0.5
		}
		layer := func(w []float32, a *LoRA, u []float32) []float32 {
			y := make([]float32, len(y))
			require.NoError(t, amp.MatMul(snug.ViewOf(y), snug.ViewOf(x), snug.ViewOf(w), amp.MatMulOptions{M: rows, N: c.Out, K: c.In, TransB: true}))
			require.NoError(t, a.Forward(snug.ViewOf(y), snug.ViewOf(u), snug.ViewOf(x), Dropout{}))
			return y
		}
		y = layer(left, l, u)
		require.InDeltaSlice(t, y, layer(c.Weight.floats(t, snug.F32), plain, make([]float32, 2*len(u))), 1e-5, c.Init)
		require.NoError(t, amp.SaveWeights(filepath.Join(out, "outputs.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
			_ = yield(amp.Tensor{Name: "x", Shape: []int{rows, c.In}}, snug.ViewOf(x)) &&
				yield(amp.Tensor{Name: "y", Shape: []int{rows, c.Out}}, snug.ViewOf(y))
		}, nil))
	}
}

// TestLessMemory: Less allocates its result alone.
func TestLessMemory(t *testing.T) {
	const n, r = 512, 16
	l := &LoRA{In: n, Out: n, Rank: r, Scale: 1, A: snug.ViewOf(make([]float32, n*r)), B: snug.ViewOf(make([]float32, n*r))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := l.Less(l)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*2*2*n*r+4096))
}

// TestStartErrors: errors name the function once.
func TestStartErrors(t *testing.T) {
	l := &LoRA{In: 4, Out: 4, Scale: 1}
	w := snug.ViewOf(make([]float32, 16))
	require.ErrorContains(t, l.Start(w, "pissa"), "qlora: LoRA: start: a layer of 4 to 4 with rank 0")
	_, err := l.StartLoftQ(w, Options{}, 1)
	require.ErrorContains(t, err, "qlora: LoRA: start LoftQ: a layer of 4 to 4 with rank 0")
}
