package remat

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// uniform returns the costs of n stages of one size, whose saved sets are
// their outputs.
func uniform(n int) Costs {
	c := Costs{Input: 1, Stages: make([]Cost, n)}
	for i := range c.Stages {
		c.Stages[i] = Cost{Output: 1, Saved: 1, ForwardTime: 1, BackwardTime: 2}
	}
	return c
}

// must returns the plan of a planner that cannot fail.
func must(p Plan, err error) Plan {
	if err != nil {
		panic(err)
	}
	return p
}

func TestRevolveExtraTable(t *testing.T) {
	slots := []int{1, 2, 3, 4, 5, 8, 10}
	table := map[int][]int64{
		5:   {10, 6, 5, 4, 4, 4, 4},
		10:  {45, 20, 15, 14, 13, 10, 9},
		16:  {120, 45, 33, 27, 25, 22, 20},
		32:  {496, 140, 93, 75, 68, 54, 52},
		64:  {2016, 420, 258, 200, 172, 137, 116},
		100: {4950, 845, 490, 374, 316, 245, 222},
	}
	for n, row := range table {
		for i, s := range slots {
			require.Equal(t, row[i], revolveExtra(n, s), "n=%d s=%d", n, s)
		}
	}
}

// TestRevolveOptimal compares the closed form, its sum and the plans with the
// dynamic program E(n, s) = min_i i + E(i, s) + E(n-i, s-1).
func TestRevolveOptimal(t *testing.T) {
	const most = 120
	var e [most + 1][most + 1]int64 // [slots][stages]
	for s := range e {
		for n := 2; n <= most; n++ {
			e[s][n] = math.MaxInt32
			for i := 1; s > 0 && i < n; i++ {
				e[s][n] = min(e[s][n], int64(i)+e[s][i]+e[s-1][n-i])
			}
		}
	}
	for n := 1; n <= most; n++ {
		c := uniform(n)
		for s := 1; s <= n; s++ {
			require.Equal(t, e[s][n], revolveExtra(n, s), "n=%d s=%d", n, s)
			require.Equal(t, e[s][n], closedForm(int64(n), int64(s)), "n=%d s=%d", n, s)
			p := must(Revolve(c, s))
			require.LessOrEqual(t, int64(len(p.Ops)), revolveLength(n, s))
			r, err := p.simulate(c, nil)
			require.NoError(t, err)
			require.EqualValues(t, e[s][n], r.Extra, "n=%d s=%d", n, s)
		}
	}
}

// closedForm returns t·n - C(s+t, s+1).
func closedForm(n, s int64) int64 {
	t := int64(0)
	for binomial(s+t, s) < n {
		t++
	}
	return t*n - binomial(s+t, s+1)
}

func binomial(n, k int64) int64 {
	if k > n {
		return 0
	}
	b := int64(1)
	for j := int64(1); j <= min(k, n-k); j++ {
		b = b * (n - j + 1) / j
	}
	return b
}

// TestRevolveSlots counts the outputs that a plan holds to restart from.
func TestRevolveSlots(t *testing.T) {
	for n := 1; n <= 40; n++ {
		for s := 1; s <= n; s++ {
			p := must(Revolve(uniform(n), s))
			st := newState(n)
			runs := make([]int, n)
			for i, op := range p.Ops {
				_, problem := st.apply(op)
				require.Empty(t, problem)
				outputs, sets := 1, 0 // a_0
				for _, f := range st.results {
					switch f.form {
					case output:
						outputs++
					case saved:
						sets++
					}
				}
				require.LessOrEqual(t, sets, 1)
				working := 1 // the output that the chain has advanced to
				if op.Kind == ForwardDiscard {
					working = 2 // and its input, which is dropped next
				}
				if op.isForward() {
					runs[op.Stage]++
				}
				require.LessOrEqual(t, outputs, s+working, "n=%d s=%d operation %d %v", n, s, i, op)
			}
			reps := 0
			for binomial(int64(s+reps), int64(s)) < int64(n) {
				reps++
			}
			for i, r := range runs {
				require.LessOrEqual(t, r, reps+1, "n=%d s=%d stage %d", n, s, i)
			}
		}
	}
}

func TestEveryExtra(t *testing.T) {
	for n := 1; n <= 50; n++ {
		c := uniform(n)
		for k := 1; k <= n+2; k++ {
			r, err := must(Every(c, k)).Simulate(c)
			require.NoError(t, err)
			k := min(k, n)
			require.Equal(t, n-(n+k-1)/k, r.Extra, "n=%d k=%d", n, k)
		}
		k := int(math.Ceil(math.Sqrt(float64(n))))
		r, err := must(Chen(c)).Simulate(c)
		require.NoError(t, err)
		require.Equal(t, (n-1)/k*k, r.Extra, "all but the last segment, n=%d", n)
		// a_0, d, the inputs of other segments and the saved sets of one
		require.LessOrEqual(t, r.Peak, int64(2+k+(n+k-1)/k), "n=%d", n)
	}
}

func TestPlans(t *testing.T) {
	c := uniform(5)
	for _, tc := range []struct {
		plan      Plan
		name, ops string
	}{
		{must(KeepAll(c)), "keep-all", "S0 S1 S2 S3 S4 B4 B3 B2 B1 B0"},
		{must(RecomputeAll(c)), "recompute-all",
			"F0 F1 -F0 F2 -F1 F3 -F2 S4 B4 -F3 F0 F1 -F0 F2 -F1 S3 B3 -F2 F0 F1 -F0 S2 B2 -F1 F0 S1 B1 -F0 S0 B0"},
		{must(Every(c, 2)), "every(2)", "F0 S1 -F0 F2 S3 -F2 S4 B4 S2 B3 B2 S0 B1 B0"},
		{must(Chen(c)), "chen", "F0 F1 -F0 F2 -F1 S3 S4 B4 B3 -F2 S0 S1 S2 B2 B1 B0"},
		{must(Revolve(c, 2)), "revolve(2)",
			"F0 F1 -F0 F2 -F1 F3 S4 B4 -F3 S3 B3 -F2 F0 F1 S2 B2 -F1 S1 B1 -F0 S0 B0"},
		{must(Revolve(c, 99)), "revolve(5)", "F0 F1 F2 F3 S4 B4 -F3 S3 B3 -F2 S2 B2 -F1 S1 B1 -F0 S0 B0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.name, tc.plan.Name)
			require.Equal(t, 5, tc.plan.Stages)
			require.Equal(t, tc.ops, tc.plan.String(), tc.name)
			require.NoError(t, tc.plan.Validate(), tc.name)
		})
	}
}

func TestPlannerErrors(t *testing.T) {
	good, bad := uniform(3), uniform(3)
	bad.Stages[1].Saved = 0
	for name, f := range map[string]func(Costs) (Plan, error){
		"KeepAll":      KeepAll,
		"RecomputeAll": RecomputeAll,
		"Chen":         Chen,
		"Every":        func(c Costs) (Plan, error) { return Every(c, 2) },
		"Revolve":      func(c Costs) (Plan, error) { return Revolve(c, 2) },
		"Fit":          func(c Costs) (Plan, error) { return Fit(c, 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []Costs{bad, {}} {
				p, err := f(c)
				require.ErrorIs(t, err, snug.ErrConfig, name)
				require.Zero(t, p, name)
			}
			_, err := f(good)
			require.NoError(t, err, name)
		})
	}
	for _, param := range []int{0, -1, math.MinInt} {
		_, err := Every(good, param)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, fmt.Sprintf("remat: k is %d", param))
		_, err = Revolve(good, param)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, fmt.Sprintf("remat: slots is %d", param))
	}
}

func TestPlanTooLong(t *testing.T) {
	c := uniform(3000)
	_, err := RecomputeAll(c)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "recompute-all for 3000 stages has 9003000 operations")
	require.NoError(t, must(Revolve(c, 2)).Validate())

	c = uniform(1 << 21)
	_, err = KeepAll(c)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Fit(Costs{Stages: c.Stages[:1<<20+1]}, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
}
