package main

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// planJSON is a plan as JSON.
type planJSON struct {
	Model          string             `json:"model"`
	Parameters     int64              `json:"parameters"`
	Context        int                `json:"context,omitempty"`         // tokens of a sample
	ContextAssumed bool               `json:"context_assumed,omitempty"` // the user gave no context for the model of a folder
	Device         string             `json:"device"`
	Assumed        bool               `json:"device_assumed,omitempty"` // the user named no device
	Limit          int64              `json:"limit_bytes,omitempty"`
	Batch          int                `json:"batch"`           // samples of a step, of one rank
	Ranks          int                `json:"ranks,omitempty"` // more than one
	Sent           int64              `json:"sent_bytes,omitempty"`
	Waits          float64            `json:"waits_seconds,omitempty"`
	Run            runReport          `json:"run"`
	Peak           map[string]amounts `json:"peak_bytes"`
	Seconds        float64            `json:"step_seconds"`
	Without        amounts            `json:"without_bytes"`
	Plain          float64            `json:"without_step_seconds"`
	Process        int64              `json:"cpu_process_bytes,omitempty"` // resident memory of a process that trains so on the CPU
	Choices        []choiceReport     `json:"choices"`
	Data           *dataset.Stats     `json:"data,omitempty"` // of tune
}

// amounts has the bytes of each component, and their "total".
type amounts map[string]int64

type runReport struct {
	Micro       int    `json:"micro_batch"`
	Window      int    `json:"window"`
	Compute     string `json:"compute"`
	Masters     string `json:"masters,omitempty"`
	Gradients   string `json:"gradients"`
	StateBits   int    `json:"state_bits"`
	Shard       string `json:"shard,omitempty"`
	Frozen      int    `json:"frozen_bits,omitempty"`
	Tiled       bool   `json:"tiled_attention"`
	Tiles       int    `json:"tiles,omitempty"`
	Remat       string `json:"remat"`
	Operations  string `json:"remat_operations"`
	WeightsOn   string `json:"weights_on"`
	LayersHeld  int    `json:"layers_on_device,omitempty"`
	GradientsOn string `json:"gradients_on"`
	StateOn     string `json:"state_on"`
	Cache       int64  `json:"host_cache_bytes,omitempty"`
}

type choiceReport struct {
	Name    string  `json:"name"`
	Value   string  `json:"value"`
	Reason  string  `json:"reason"`
	Undone  string  `json:"instead"`
	Fits    bool    `json:"instead_fits"`
	Saves   int64   `json:"saves_bytes"`
	Without amounts `json:"without_bytes"`
	Seconds float64 `json:"without_step_seconds"`
}

func byComponent(b meter.Bytes) amounts {
	m := amounts{"total": b.Total()}
	for c := range meter.Components {
		m[c.String()] = b[c]
	}
	return m
}

func planReport(p plan.Plan) planJSON {
	r := p.Run
	out := planJSON{
		Model: p.Task.Model.Name, Parameters: p.Task.Model.Parameters(), Device: p.Task.Device.Name, Limit: p.Limit, Batch: p.Task.Batch,
		Run: runReport{
			Micro: r.Micro, Window: r.Window, Compute: r.Compute.String(), Gradients: r.Gradients.String(), StateBits: r.StateBits,
			Frozen: r.Frozen, Tiled: r.Tiled, Tiles: r.Tiles, Remat: r.Remat.Name, Operations: r.Remat.String(),
			WeightsOn: r.WeightsOn.String(), LayersHeld: r.LayersHeld, GradientsOn: r.GradientsOn.String(), StateOn: r.StateOn.String(), Cache: r.Cache,
		},
		Peak: map[string]amounts{}, Seconds: p.Seconds, Without: byComponent(p.Without.Peak[meter.OnDevice]), Plain: p.Without.Seconds,
	}
	if p.Task.Ranks > 1 {
		out.Ranks, out.Sent, out.Waits, out.Run.Shard = p.Task.Ranks, p.Sent, p.Waits, r.Shard.String()
	}
	out.Context = p.Task.Model.Context
	out.Device, out.Assumed = strings.CutSuffix(out.Device, assumed)
	if r.Compute != snug.F32 && p.Task.Rank == 0 {
		out.Run.Masters = r.Masters.String()
	}
	for t := range meter.Tiers {
		out.Peak[t.String()] = byComponent(p.Peak[t])
	}
	for _, c := range p.Choices {
		out.Choices = append(out.Choices, choiceReport{c.Name, c.Value, c.Reason, c.Undone, c.Fits, c.Saves, byComponent(c.Without.Peak[meter.OnDevice]), c.Without.Seconds})
	}
	return out
}

// missReport returns the JSON of a plan when nothing fits.
func missReport(e *plan.MissError) any {
	type change struct {
		What    string  `json:"change"`
		Seconds float64 `json:"step_seconds"`
	}
	changes := []change{}
	for _, c := range e.Changes {
		changes = append(changes, change(c))
	}
	return struct {
		Limit   int64    `json:"limit_bytes"`
		Minimum int64    `json:"minimum_bytes"`
		Missing int64    `json:"missing_bytes"`
		Changes []change `json:"changes"`
	}{e.Limit, e.Minimum, e.Missing(), changes}
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
