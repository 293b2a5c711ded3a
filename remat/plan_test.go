package remat

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parsed returns the operations that text notes.
func parsed(t testing.TB, text string) []Op {
	t.Helper()
	var ops []Op
	for s := range strings.FieldsSeq(text) {
		op, ok := parseOp(s)
		require.True(t, ok, s)
		ops = append(ops, op)
	}
	return ops
}

func TestOpNotation(t *testing.T) {
	for text, op := range map[string]Op{
		"F0": {ForwardDiscard, 0}, "S12": {ForwardSave, 12}, "B3": {Backward, 3},
		"-F4": {DropOutput, 4}, "-S5": {DropSaved, 5},
		"P6": {Pack, 6}, "H7": {PageHost, 7}, "D8": {PageDisk, 8}, "L9": {Fetch, 9}, "-C10": {DropCopy, 10},
	} {
		t.Run(text, func(t *testing.T) {
			require.Equal(t, text, op.String())
			got, ok := parseOp(text)
			require.True(t, ok)
			require.Equal(t, op, got)
		})
	}
	for _, text := range []string{"", "F", "3", "X3", "F-1", "F+1", "-B1", "--F1", "FF1", "F1x", "F99999999999", "?1"} {
		_, ok := parseOp(text)
		require.False(t, ok, text)
	}
	require.Equal(t, "?", Kind(0).String())
	require.Equal(t, "?", Kind(200).String())
}

func TestValidate(t *testing.T) {
	for _, text := range []string{
		"S0 S1 B1 B0",
		"F0 S1 B1 -F0 S0 B0",
		"F0 F1 -F1 -F0 S0 F1 S1 B1 B0", // ForwardSave in the place of an output
		"S0 -S0 S0 S1 -S1 F1 S1 B1 B0", // computed, dropped, computed
		"S0 H0 S1 -S0 L0 B1 B0",        // copied, dropped and loaded
		"F0 D0 F1 -F0 L0 S1 B1 -C0 -F0 S0 B0",
		"S0 P0 S1 -S0 L0 -S0 L0 B1 B0",
	} {
		require.NoError(t, Plan{Stages: 2, Ops: parsed(t, text)}.Validate(), text)
	}
	for text, want := range map[string]string{
		"S0 B0":                     "plan of 2 operations for 2 stages",
		"B1 S0 S1 B0":               "operation 0 (B1) of a chain of 2 stages: the saved set is not held",
		"S0 B0 S1 B1":               "the next backward step is that of stage 1",
		"S1 S0 B1 B0":               "operation 0 (S1) of a chain of 2 stages: the stage's input is not held",
		"F0 S1 -F0 B1 S0 B0":        "operation 3 (B1) of a chain of 2 stages: the stage's input is not held",
		"S0 S1 -S1 B1 B0":           "operation 3 (B1) of a chain of 2 stages: the saved set is not held",
		"F0 F1 B1 B0":               "operation 2 (B1) of a chain of 2 stages: the saved set is not held",
		"S0 -F0 S1 B1 B0":           "operation 1 (-F0) of a chain of 2 stages: the output is not held by itself",
		"F0 -S0 S1 B1 B0":           "operation 1 (-S0) of a chain of 2 stages: the saved set is not held",
		"S0 -S0 -S0 S1 B1 B0":       "operation 2 (-S0)",
		"F0 F0 S1 B1 B0":            "operation 1 (F0) of a chain of 2 stages: the result is held already",
		"S0 F0 S1 B1 B0":            "operation 1 (F0) of a chain of 2 stages: the result is held already",
		"S0 S0 S1 B1 B0":            "operation 1 (S0) of a chain of 2 stages: the result is held already",
		"S0 S1 B1 B1 B0":            "operation 3 (B1) of a chain of 2 stages: the next backward step is that of stage 0",
		"S0 S1 B1 S1 B0":            "operation 3 (S1) of a chain of 2 stages: the stage's backward step is done",
		"S0 S1 B1 B0 F0":            "operation 4 (F0) of a chain of 2 stages: the stage's backward step is done",
		"S0 S1 B1 B0 B0":            "the next backward step is that of stage -1",
		"S0 S1 S2 B1 B0":            "operation 2 (S2) of a chain of 2 stages: there is no such stage",
		"S0 S1 -S0 S0":              "the backward steps of stages 0 to 1 are missing",
		"S0 S1 B1 -S0 S0":           "the backward steps of stages 0 to 0 are missing",
		"F0 F1 S1 B1 -F0 S0 B0 -F1": "operation 7 (-F1)",
		"H0 S0 S1 B1 B0":            "operation 0 (H0) of a chain of 2 stages: nothing is held of the stage's result",
		"S0 H0 D0 S1 B1 B0":         "operation 2 (D0) of a chain of 2 stages: there is a copy already",
		"F0 P0 S1 B1 S0 B0":         "operation 1 (P0) of a chain of 2 stages: the saved set is not held",
		"S0 H0 L0 S1 B1 B0":         "operation 2 (L0) of a chain of 2 stages: the result is held already",
		"S0 -S0 L0 S1 B1 B0":        "operation 2 (L0) of a chain of 2 stages: there is no copy",
		"S0 -C0 S1 B1 B0":           "operation 1 (-C0) of a chain of 2 stages: there is no copy",
		"S0 S1 H1 B1 L1 B0":         "operation 4 (L1) of a chain of 2 stages: there is no copy",
	} {
		err := Plan{Stages: 2, Ops: parsed(t, text)}.Validate()
		require.ErrorIs(t, err, snug.ErrConfig, text)
		require.ErrorContains(t, err, want, text)
	}
	for _, ops := range [][]Op{
		{{ForwardSave, 0}, {Kind(0), 0}},
		{{ForwardSave, 0}, {Kind(11), 0}},
		{{ForwardSave, -1}, {Backward, 0}},
	} {
		require.ErrorIs(t, Plan{Stages: 1, Ops: ops}.Validate(), snug.ErrConfig)
	}
	require.ErrorIs(t, Plan{Stages: -1}.Validate(), snug.ErrConfig)
	for _, stages := range []int{0, -1, 1 << 30} {
		require.ErrorIs(t, Plan{Stages: stages, Ops: parsed(t, "S0 B0")}.Validate(), snug.ErrConfig)
	}
}

func TestPlanJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t, drawCosts(t, 8))
		p.Name = rapid.String().Draw(t, "name")
		data, err := json.Marshal(p)
		require.NoError(t, err)
		got, err := ParsePlan(data)
		require.NoError(t, err)
		require.Equal(t, p, got)
		var embedded struct{ P Plan }
		require.NoError(t, json.Unmarshal([]byte(`{"P":`+string(data)+`}`), &embedded))
		require.Equal(t, p, embedded.P)
	})
	data, err := json.Marshal(Plan{Name: "keep-all", Stages: 2, Ops: parsed(t, "S0 S1 B1 B0")})
	require.NoError(t, err)
	require.Equal(t, `{"version":1,"name":"keep-all","stages":2,"ops":"S0 S1 B1 B0","crc32":"38ea50eb"}`, string(data))

	_, err = json.Marshal(Plan{Stages: 2, Ops: parsed(t, "S0 B1 B0 S1")})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = json.Marshal(Plan{Name: "\xff", Stages: 1, Ops: parsed(t, "S0 B0")})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// sealed returns the JSON form of what may not be a plan, with a checksum.
func sealed(t *testing.T, j planJSON) []byte {
	j.CRC32 = j.checksum()
	data, err := json.Marshal(j)
	require.NoError(t, err)
	return data
}

func TestPlanJSONDamaged(t *testing.T) {
	p := must(Revolve(uniform(4), 2))
	data, err := json.Marshal(p)
	require.NoError(t, err)
	for i := range data {
		for bit := range 8 {
			damaged := append([]byte(nil), data...)
			damaged[i] ^= 1 << bit
			got, err := ParsePlan(damaged)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.Zero(t, got)
		}
		_, err := ParsePlan(data[:i])
		require.ErrorIs(t, err, snug.ErrCorrupt)
	}
	for want, bad := range map[string][]byte{
		"after top-level":     append(data[:len(data):len(data)], "{}"...),
		"want \"stages\"":     bytes.Replace(data, []byte("stages"), []byte("Stages"), 1),
		"name: the key comes": bytes.Replace(data, []byte(`"name":`), []byte(`"name":"x","name":`), 1),
		"no key \"crc32\"":    []byte(`{"version":1,"name":"","stages":1,"ops":"S0 B0"}`),
		"stages: null":        []byte(`{"version":1,"name":"","stages":null,"ops":"S0 B0","crc32":""}`),
		"version 2, want 1":   sealed(t, planJSON{2, p.Name, p.Stages, p.String(), ""}),
		"null":                []byte("null"),
		`operation "S"`:       sealed(t, planJSON{1, "", 1, "S B0", ""}),
		"of 2 operations for": sealed(t, planJSON{1, "", 1 << 30, "S0 B0", ""}),
		"operation 0 (B0)":    sealed(t, planJSON{1, "", 1, "B0 S0", ""}),
		"extra: unknown key":  []byte(`{"version":1,"extra":2}`),
	} {
		t.Run(want, func(t *testing.T) {
			_, err := ParsePlan(bad)
			require.ErrorIs(t, err, snug.ErrCorrupt, want)
			require.ErrorContains(t, err, want)
			kept := p
			require.ErrorIs(t, kept.UnmarshalJSON(bad), snug.ErrCorrupt, want)
			require.Equal(t, p, kept)
		})
	}
}

func FuzzParsePlan(f *testing.F) {
	for _, p := range []Plan{must(KeepAll(uniform(1))), must(Chen(uniform(7))), must(Revolve(uniform(9), 3))} {
		data, err := json.Marshal(p)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParsePlan(data)
		if err != nil {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			return
		}
		require.NoError(t, p.Validate())
		again, err := json.Marshal(p)
		require.NoError(t, err)
		back, err := ParsePlan(again)
		require.NoError(t, err)
		require.Equal(t, p, back)
	})
}
