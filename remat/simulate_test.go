package remat

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func TestSimulateByHand(t *testing.T) {
	c := Costs{Input: 10, Stages: []Cost{
		{Output: 3, Saved: 8, ForwardExtra: 1, BackwardExtra: 2, ForwardTime: 1, BackwardTime: 10},
		{Output: 5, Saved: 6, ForwardExtra: 4, ForwardTime: 100, BackwardTime: 1000},
	}}
	for text, want := range map[string]Report{
		"S0 S1 B1 B0": {Peak: 33, PeakOp: 1, Time: 1111, Timeline: []Bytes{
			{Peak: 24, Held: 23}, {Peak: 33, Held: 29}, {Peak: 27, Held: 21}, {Peak: 30, Held: 20},
		}},
		"F0 S1 B1 -F0 S0 B0": {Peak: 30, PeakOp: 5, Time: 1112, Extra: 1, Again: 1, Timeline: []Bytes{
			{Peak: 19, Held: 18}, {Peak: 28, Held: 24}, {Peak: 22, Held: 16}, {Peak: 13, Held: 13}, {Peak: 22, Held: 21}, {Peak: 30, Held: 20},
		}},
		"F0 F1 S1 -F0 S0 B1 -S0 S0 B0": {Peak: 30, PeakOp: 4 /* the first of two that reach it */, Time: 1213, Extra: 3, Again: 102, Timeline: []Bytes{
			{Peak: 19, Held: 18}, {Peak: 27, Held: 23}, {Peak: 28, Held: 24}, {Peak: 21, Held: 21}, {Peak: 30, Held: 29}, {Peak: 27, Held: 21}, {Peak: 13, Held: 13}, {Peak: 22, Held: 21}, {Peak: 30, Held: 20},
		}},
	} {
		t.Run(text, func(t *testing.T) {
			got, err := Plan{Stages: 2, Ops: parsed(t, text)}.Simulate(c)
			require.NoError(t, err)
			require.Equal(t, want, got, text)
		})
	}

	nothing := Costs{Input: 7, Stages: []Cost{{}}}
	got, err := must(KeepAll(nothing)).Simulate(nothing)
	require.NoError(t, err)
	require.Equal(t, Report{Peak: 14, PeakOp: 1, Timeline: []Bytes{{Peak: 7, Held: 7}, {Peak: 14, Held: 14}}}, got)

	shrinks := Costs{Input: 0, Stages: []Cost{{Output: 7, Saved: 7}}}
	got, err = must(KeepAll(shrinks)).Simulate(shrinks)
	require.NoError(t, err)
	require.Equal(t, Report{Peak: 14, PeakOp: 0, Timeline: []Bytes{{Peak: 14, Held: 14}, {Peak: 7, Held: 0}}}, got)

	still := Costs{Input: 4, Stages: []Cost{{}, {Output: 9, Saved: 9}}}
	got, err = must(KeepAll(still)).Simulate(still)
	require.NoError(t, err)
	require.Equal(t, 1, got.PeakOp)
	nothing.Input = 0
	got, err = must(KeepAll(nothing)).Simulate(nothing)
	require.NoError(t, err)
	require.Equal(t, -1, got.PeakOp, "the start is the peak")
}

func TestSimulateErrors(t *testing.T) {
	c := uniform(3)
	_, err := must(KeepAll(c)).Simulate(uniform(4))
	require.ErrorIs(t, err, snug.ErrShape)
	require.EqualError(t, err, "remat: plan for 3 stages, chain of 4: snug: shape mismatch")
	_, err = must(KeepAll(c)).Simulate(Costs{})
	require.ErrorIs(t, err, snug.ErrConfig)
	r, err := Plan{Stages: 3, Ops: parsed(t, "S0 S1 S2 B1 B2 B0")}.Simulate(c)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Zero(t, r)
}

func TestCostsValidate(t *testing.T) {
	require.NoError(t, Costs{Stages: []Cost{{}}}.Validate())
	require.NoError(t, mixed().Validate())
	limit := Costs{Input: 1, Stages: []Cost{{Saved: math.MaxInt64 - 2}}}
	require.NoError(t, limit.Validate())
	for want, change := range map[string]func(*Costs){
		"want at least one stage":            func(c *Costs) { c.Stages = nil },
		"input of -1 bytes":                  func(c *Costs) { c.Input = -1 },
		"input of 9223372036854775807 bytes": func(c *Costs) { c.Input = math.MaxInt64 },
		`stage 1 ("tail"): size of -2 bytes`: func(c *Costs) { c.Stages[1].Output = -2 },
		`stage 1 ("tail"): size of -3 bytes`: func(c *Costs) { c.Stages[1].ForwardExtra = -3 },
		`stage 1 ("tail"): size of -4 bytes`: func(c *Costs) { c.Stages[1].BackwardExtra = -4 },
		"saves 1 bytes: want at least its":   func(c *Costs) { c.Stages[1].Output = 2; c.Stages[1].Saved = 1 },
		"size of 9223372036854775807":        func(c *Costs) { c.Stages[0].Saved = math.MaxInt64 },
		"time NaN":                           func(c *Costs) { c.Stages[0].ForwardTime = math.NaN() },
		"time +Inf":                          func(c *Costs) { c.Stages[1].BackwardTime = math.Inf(1) },
		"time -1":                            func(c *Costs) { c.Stages[1].ForwardTime = -1 },
	} {
		t.Run(want, func(t *testing.T) {
			c := uniform(2)
			c.Stages[1].Name = "tail"
			change(&c)
			err := c.Validate()
			require.ErrorIs(t, err, snug.ErrConfig, want)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestCostsJSON(t *testing.T) {
	c := mixed()
	c.Stages[0].Name = "embedding"
	data, err := json.Marshal(c)
	require.NoError(t, err)
	require.Contains(t, string(data), `{"input":5,"stages":[{"name":"embedding","output":3,"saved":3,"backward_extra":6,"forward_time":1,"backward_time":1},`)
	var got Costs
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, c, got)

	for want, bad := range map[string]string{
		`Stages: the key in another case`:    `{"input":1,"Stages":[]}`,
		`stages[0].Output: the key in`:       `{"input":1,"stages":[{"Output":1,"saved":1}]}`,
		`stages[0]: there is no key "saved"`: `{"input":1,"stages":[{"output":1}]}`,
		`input: the key comes twice`:         `{"input":1,"input":2,"stages":[]}`,
		`peak: unknown key`:                  `{"input":1,"stages":[],"peak":2}`,
		`input: 1.5, want an integer`:        `{"input":1.5,"stages":[]}`,
	} {
		t.Run(want, func(t *testing.T) {
			kept := c
			err := json.Unmarshal([]byte(bad), &kept)
			require.ErrorIs(t, err, snug.ErrCorrupt, bad)
			require.ErrorContains(t, err, want, bad)
			require.Equal(t, c, kept)
		})
	}
}
