package remat

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func TestOnly(t *testing.T) {
	c := Costs{Input: 1}
	for i := range 12 {
		for _, half := range []string{"attention", "mlp"} {
			c.Stages = append(c.Stages, Cost{Name: fmt.Sprintf("layers.%d.%s", i, half), Output: 1, Saved: 3, ForwardTime: 1})
		}
	}
	for _, tc := range []struct {
		name  string
		plan  Plan
		again []int // stages that run twice
	}{
		{"none", must(Only(c)), nil},
		{"one stage", must(Only(c, "layers.3.mlp")), []int{7}},
		{"a layer, not those whose numbers begin with its number", must(Only(c, "layers.1")), []int{2, 3}},
		{"a kind of layer", must(Only(c, "mlp")), []int{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21}}, // 23 is the last
		{"several", must(Only(c, "layers.0", "3.mlp", "layers.0.mlp")), []int{0, 1, 7}},
		{"all but", must(AllBut(c, "attention", "layers.2")), []int{1, 3, 7, 9, 11, 13, 15, 17, 19, 21}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.NoError(t, tc.plan.Validate())
			var again []int
			runs := make([]int, len(c.Stages))
			for _, op := range tc.plan.Ops {
				if op.isForward() {
					if runs[op.Stage]++; runs[op.Stage] == 2 {
						again = append([]int{op.Stage}, again...)
					}
				}
			}
			require.ElementsMatch(t, tc.again, again)
			rep, err := tc.plan.Simulate(c)
			require.NoError(t, err)
			require.Equal(t, len(tc.again), rep.Extra)
			require.Equal(t, int64(1+1+3*len(c.Stages)-2*len(tc.again)), rep.Peak, "an output in place of a saved set")
		})
	}
	for _, tc := range []struct{ name, given, want string }{
		{"a letter", "layers.3.mlpp", `no stage is called "layers.3.mlpp"; the nearest name is "layers.3.mlp"`},
		{"another spelling", "layer 3 mlp", `the nearest name is "layers.3.mlp"`},
		{"a part", "atention", `the nearest name is "attention"`},
		{"a layer that is not there", "layers.12", `the nearest name is "layers.1"`},
		{"empty", "", "the nearest name is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, f := range []func(Costs, ...string) (Plan, error){Only, AllBut} {
				_, err := f(c, "mlp", tc.given)
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
	_, err := Only(uniform(3), "mlp")
	require.ErrorContains(t, err, "the stages have no names")
	_, err = Only(Costs{}, "mlp")
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestEmptyPlan: a plan without operations keeps all.
func TestEmptyPlan(t *testing.T) {
	c := mixed()
	want := must(KeepAll(c))
	for _, p := range []Plan{{}, {Stages: len(c.Stages)}, {Name: "any"}} {
		require.NoError(t, p.Validate())
		full, err := p.For(len(c.Stages))
		require.NoError(t, err)
		require.Equal(t, want, full)
		wantReport, err := want.Simulate(c)
		require.NoError(t, err)
		report, err := p.Simulate(c)
		require.NoError(t, err)
		require.Equal(t, wantReport, report)
		h := newHeap()
		x := fakeInput(h, c)
		chain := fakeChain(h, c)
		_, report, err = chain.Run(t.Context(), p, x, fakeLoss(h, c, nil))
		require.NoError(t, err)
		require.Empty(t, h.Problems)
		require.Equal(t, wantReport.Peak, report.Peak)
		require.Zero(t, report.Extra)
		data, err := p.MarshalJSON()
		require.NoError(t, err)
		read, err := ParsePlan(data)
		require.NoError(t, err)
		require.Equal(t, p, read)
	}
	_, err := Plan{Stages: 3}.For(4)
	require.ErrorIs(t, err, snug.ErrShape)
	for _, n := range []int{-1, 0, maxStages + 1} {
		_, err = Plan{}.For(n)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}
