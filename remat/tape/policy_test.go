package tape

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// policyOps are operations of every kind that constructors tell apart.
var policyOps = []Op{
	{Name: "linear", Class: MatMul, Value: "a"},
	{Name: "scores", Class: BatchMatMul, Value: "b"},
	{Name: "gelu", Value: "c"},
	{Name: "gelu"},
}

func TestPolicies(t *testing.T) {
	letters := map[byte]Decision{'s': PreferSave, 'S': MustSave, 'r': PreferRecompute, 'R': MustRecompute, 'o': Offload}
	for name, tc := range map[string]struct {
		policy Policy
		want   string // by policyOps
	}{
		"nil":                     {nil, "ssss"},
		"SaveAll":                 {SaveAll(), "ssss"},
		"SaveNone":                {SaveNone(), "rrrr"},
		"SaveMatMuls":             {SaveMatMuls(), "ssrr"},
		"SaveWeightMatMuls":       {SaveWeightMatMuls(), "srrr"},
		"SaveOps":                 {SaveOps("gelu", "none"), "rrss"},
		"SaveNames":               {SaveNames("a", "c"), "srsr"},
		"SaveNames without names": {SaveNames(), "rrrr"},
		"no name is no name":      {SaveNames(""), "rrrr"},
		"SaveAllBut":              {SaveAllBut("a", "c"), "rsrs"},
		"SaveNamedBut":            {SaveNamedBut("a"), "rssr"},
		"SaveAndOffload":          {SaveAndOffload([]string{"a"}, []string{"a", "b"}), "sorr"},
		"or":                      {SaveNames("a").Or(SaveNames("b")), "ssrr"},
		"and":                     {SaveMatMuls().And(SaveAllBut("a")), "rsrr"},
		"not":                     {SaveMatMuls().Not(), "rrss"},
		"nil in a combination":    {Policy(nil).And(SaveNames("a")).Or(nil), "ssss"},
		"methods of nil":          {Policy(nil).MustSave(), "SSSS"},
		"must save":               {SaveMatMuls().MustSave(), "SSrr"},
		"strict":                  {SaveMatMuls().MustSave().MustRecompute(), "SSRR"},
		"not strict":              {SaveMatMuls().MustSave().MustRecompute().Not(), "RRSS"},
		"offload":                 {SaveWeightMatMuls().Offloaded().MustRecompute(), "oRRR"},
		"not offload":             {SaveMatMuls().Offloaded().Not(), "rrss"},
		"offload or save":         {SaveMatMuls().Offloaded().Or(SaveWeightMatMuls()), "sorr"},
		"offload and save":        {SaveMatMuls().Offloaded().And(SaveWeightMatMuls()), "orrr"},
		"must overrides in or":    {SaveNames("a").MustRecompute().Or(SaveAll()), "sRRR"},
		"must overrides in and":   {SaveNames("a").MustSave().And(SaveNone()), "Srrr"},
		"must overrides offload":  {SaveAll().Offloaded().Or(SaveNames("b").MustSave()), "oSoo"},
		"lists, each of torch's":  {SaveOps("linear").MustSave().Or(SaveOps("scores").MustSave()), "SSrr"},
	} {
		t.Run(name, func(t *testing.T) {
			for i, op := range policyOps {
				got, err := tc.policy.Decide(op)
				require.NoError(t, err, name)
				require.Equal(t, letters[tc.want[i]], got, "%s: %+v", name, op)
			}
		})
	}
}

func TestPolicyErrors(t *testing.T) {
	save, recompute := SaveAll().MustSave(), SaveNone().MustRecompute()
	op := Op{Name: "linear", Value: "a"}
	const text = `tape: policy: operation "linear", value "a": one part decides must save, another must recompute: snug: invalid configuration`
	for _, p := range []Policy{
		save.Or(recompute), save.And(recompute), save.Or(recompute).Not(),
		SaveNone().Or(save.And(recompute)), save.And(recompute).And(SaveNone()),
	} {
		_, err := p.Decide(op)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.EqualError(t, err, text)
	}
	own := Policy(func(Op) (Decision, error) { return decisions, nil })
	for _, p := range []Policy{own, own.Not(), own.Or(nil), SaveAll().And(own)} {
		_, err := p.Decide(op)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "no such decision")
	}
	failing := Policy(func(Op) (Decision, error) { return 0, kerneltest.ErrFault })
	_, err := SaveAll().Or(failing.MustSave()).Decide(op)
	require.ErrorIs(t, err, kerneltest.ErrFault)
}

func TestPolicyNames(t *testing.T) {
	require.Equal(t, "other matmul batch matmul ?", Other.String()+" "+MatMul.String()+" "+BatchMatMul.String()+" "+Class(9).String())
	require.Equal(t, "prefer save", PreferSave.String())
	require.Equal(t, "must recompute", MustRecompute.String())
	require.Equal(t, "?", decisions.String())

	names := []string{"a"}
	p := SaveNames(names...)
	names[0] = "b"
	got, err := p.Decide(Op{Value: "a"})
	require.NoError(t, err)
	require.Equal(t, PreferSave, got, "the policy keeps names of its own")
}

// TestPolicyLaws: without offloading, the combinators are Boolean, and bindings
// agree or fail from either side.
func TestPolicyLaws(t *testing.T) {
	fixed := func(d Decision) Policy { return func(Op) (Decision, error) { return d, nil } }
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.SampledFrom([]Decision{PreferSave, PreferRecompute, MustSave, MustRecompute})
		p, q := fixed(plain.Draw(t, "p")), fixed(plain.Draw(t, "q"))
		same := func(a, b Policy) {
			d, errA := a.Decide(Op{})
			e, errB := b.Decide(Op{})
			require.Equal(t, d, e)
			require.Equal(t, errA == nil, errB == nil)
		}
		same(p.Or(q), q.Or(p))
		same(p.And(q), q.And(p))
		same(p.Not().Not(), p)
		same(p.Or(q).Not(), p.Not().And(q.Not()))
		same(p.And(q).Not(), p.Not().Or(q.Not()))
		same(p.Or(p), p)
		same(p.And(p), p)
	})
}
