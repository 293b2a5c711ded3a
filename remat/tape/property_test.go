package tape

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// isTransparent performs random actions on a Tape. Every value is what it is
// without a budget, the budget holds at any time, what fails changes nothing, and
// all memory is released once.
func isTransparent(t *rapid.T) {
	budget := rapid.SampledFrom([]int64{0, 60, 100, 200, 400}).Draw(t, "budget")
	declared := rapid.Bool().Draw(t, "declared sizes")
	s := newTester(t, t.Context(), func(o *Options[[]float32]) {
		o.Budget = budget
		o.Heuristic = Heuristic(rapid.IntRange(0, int(heuristics)-1).Draw(t, "heuristic"))
		o.MaxRecompute = math.Inf(1)
		if rapid.Bool().Draw(t, "with a policy") {
			o.Policy = byValue
		}
	})
	if declared && budget > 0 {
		s.w.check = func() {
			held := s.w.p.Held
			for _, v := range s.tape.live {
				if v.run == nil {
					held += v.bytes
				}
			}
			require.LessOrEqual(t, held, budget, "within an operation")
		}
	}
	for range rapid.IntRange(1, 120).Draw(t, "actions") {
		before := len(s.tape.live) + s.tape.Stats().Values
		err := act(t, s, declared)
		if err != nil {
			var tooSmall *BudgetError
			require.True(t, errors.As(err, &tooSmall) || errors.Is(err, snug.ErrConfig), "%v", err)
			require.True(t, tooSmall == nil || tooSmall.Minimum > budget, "%v", err)
			require.GreaterOrEqual(t, before, s.tape.Stats().Values)
		}
		s.checkAccount()
	}
	if stats := s.tape.Stats(); declared && budget > 0 {
		require.LessOrEqual(t, stats.Peak, budget)
	}
	s.finish()
}

// actions are what act chooses from, as often as they are listed.
var actions = strings.Fields("do do do do do do save save overwrite overwrite get get get free free alias take banish input")

// act performs one action.
func act(t *rapid.T, s *tester, declared bool) error {
	open := slices.DeleteFunc(slices.Clone(s.values), func(y *tested) bool { return y.freed })
	size := rapid.IntRange(1, 9)
	if len(open) == 0 {
		_, err := s.input(size.Draw(t, "input"))
		return err
	}
	value := rapid.SampledFrom(open)
	operands := func() []*tested { return rapid.SliceOfN(value, 0, 3).Draw(t, "operands") }
	op := func() Op {
		op := Op{Name: fmt.Sprint("op ", len(s.values)), Cost: rapid.Float64Range(0.1, 10).Draw(t, "cost")}
		op.Value = rapid.SampledFrom([]string{"", "offload", "prefer recompute", "must save", "must recompute"}).Draw(t, "value name")
		op.Extra = 4 * rapid.Int64Range(0, 3).Draw(t, "extra words")
		if !declared && rapid.Bool().Draw(t, "not declared") {
			op.Bytes = math.MinInt64
		}
		return op
	}
	var err error
	switch rapid.SampledFrom(actions).Draw(t, "action") {
	case "do":
		_, err = s.do(op(), size.Draw(t, "result"), operands()...)
	case "save":
		saved := op()
		saved.Name, saved.Extra, saved.Cost = saved.Name+" saved", 0, 0
		_, _, err = s.save(op(), saved, size.Draw(t, "result"), operands()...)
	case "get":
		err = s.get(value.Draw(t, "got"))
	case "free":
		err = s.free(value.Draw(t, "freed"))
	case "alias":
		_, err = s.alias(value.Draw(t, "aliased"))
	case "overwrite":
		_, err = s.overwrite(op(), value.Draw(t, "overwritten"), operands()...)
	case "take":
		err = s.take(value.Draw(t, "taken"))
	case "banish":
		err = s.banish(value.Draw(t, "banished"))
	case "input":
		_, err = s.input(size.Draw(t, "input"))
	}
	return err
}

func TestIsTransparent(t *testing.T) { rapid.Check(t, isTransparent) }

func FuzzIsTransparent(f *testing.F) { f.Fuzz(rapid.MakeFuzz(isTransparent)) }
