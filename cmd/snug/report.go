package main

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/report"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
)

// checkReport returns an error unless a report can be written to a path: a new file, or in the place of another report.
// That of a plan, which nothing runs, does not replace that of a run.
func checkReport(path string, planned bool) error {
	if err := console.Ends(path, ".html"); err != nil {
		return err
	}
	if err := writable(path); err != nil {
		return err
	}
	h, err := report.Read(path)
	if planned && h != nil && len(h.Points) > 0 {
		return fmt.Errorf("%s has the steps of a run, which a plan does not replace: name another file", path)
	}
	return err
}

// writeReport writes the report of snug plan.
func (f *planFlags) writeReport(p plan.Plan, process int64) error {
	d, err := planDocument(p)
	if err != nil {
		return err
	}
	d.Status, d.State = report.Planned, "predicted, nothing has run"
	d.Title = p.Task.Model.Name
	d.Facts = append([]report.Fact{{Name: "trains", Value: f.technique(p)}, {Name: "device", Value: p.Task.Device.Name}}, d.Facts...)
	if process > 0 {
		d.Bars = append(d.Bars, report.Bar{Name: "process on the CPU, predicted", Whole: process})
	}
	d.Settings = append(flagFacts(f.flags), d.Settings...)
	d.Memory = planMemory(p)
	return writeReport(f.page, d)
}

// writeReport puts a report in the place of a file.
func writeReport(path string, d report.Document) error {
	d.Written = time.Now()
	if err := files.Replace(path, d.Write); err != nil {
		return fmt.Errorf("-report: %w", err)
	}
	return nil
}

// technique says what trains.
func (f *planFlags) technique(p plan.Plan) string {
	if p.Task.Rank == 0 {
		return "all weights, " + p.Task.Optimizer
	}
	return adapterName(f.kind(), p) + ", " + p.Task.Optimizer
}

// adapterName names the adapters of a plan.
func adapterName(kind adapterKind, p plan.Plan) string {
	name := fmt.Sprintf("%s of rank %d", kind.title, p.Task.Rank)
	if bits := p.Task.FrozenBits(p.Run); bits != "" {
		return fmt.Sprintf("%s on weights in %s (QLoRA)", name, bits)
	}
	return name
}

// planDocument returns what the reports of a plan and of a run share: the predicted memory, the schedule, and the choices.
func planDocument(p plan.Plan) (d report.Document, err error) {
	t, r := p.Task, p.Run
	limit := counted(p.Limit)
	micro := console.Count(r.Window, "micro-batch")
	if r.Window > 1 {
		micro += fmt.Sprintf(" of at most %d", r.Micro)
	}
	d.Facts = []report.Fact{
		{Name: "parameters", Value: fmt.Sprint(t.Model.Parameters())},
		{Name: "a step", Value: fmt.Sprintf("%s in %s", console.Count(t.Batch, "sample"), micro)},
	}
	if t.Model.Context > 0 {
		d.Facts = append(d.Facts, report.Fact{Name: "context", Value: console.Count(t.Model.Context, "token")})
	}
	if t.Ranks > 1 {
		d.Facts = append(d.Facts, report.Fact{Name: "ranks", Value: fmt.Sprintf("%d, which divide: %s", t.Ranks, r.Shard)})
	}
	info, _ := debug.ReadBuildInfo()
	v := versionOf(info)
	d.Facts = append(d.Facts, report.Fact{Name: "snug", Value: strings.TrimSpace(fmt.Sprintf("%s %.12s", v.Version, v.Revision))}, report.Fact{Name: "built by", Value: v.Go + " for " + v.System})
	limits := [meter.Tiers]int64{limit, t.Device.Host, t.Device.Disk}
	for tier := range meter.Tiers {
		if tier == meter.OnDevice || p.Peak[tier].Total() > 0 {
			d.Bars = append(d.Bars, report.Bar{Name: tier.String() + ", predicted", Bytes: p.Peak[tier], Limit: limits[tier]})
		}
	}
	ops, err := t.Schedule(r)
	if err != nil {
		return d, err
	}
	d.Schedule = report.Schedule{Peak: p.Peak[meter.OnDevice], Limit: limit, Micros: r.Window}
	for _, op := range ops {
		d.Schedule.Operations = append(d.Schedule.Operations, operation(op))
	}
	d.Layers = layersTable(ops, p)
	d.Choices = report.Table{Caption: "What the plan chose, and why", Head: []string{"choice", "value", "saves", "reason"}, Text: true}
	for _, c := range p.Choices {
		saves := "–"
		switch {
		case c.Saves > 0:
			saves = meter.FormatBytes(c.Saves)
		case c.Saves < 0:
			saves = "takes " + meter.FormatBytes(-c.Saves) + " more"
		}
		d.Choices.Rows = append(d.Choices.Rows, []string{c.Name, c.Value, saves, c.Reason})
	}
	return d, nil
}

// planMemory returns the table of the components that Plan.WriteTable prints.
func planMemory(p plan.Plan) report.Table {
	t := report.Table{Caption: "Predicted peak of the device, without techniques and with the plan", Head: []string{"component", "without", "with", "share"}}
	var tiers []meter.Tier
	for tier := meter.OnHost; tier < meter.Tiers; tier++ {
		if p.Peak[tier].Total() > 0 {
			tiers, t.Head = append(tiers, tier), append(t.Head, "on "+tier.String())
		}
	}
	row := func(name string, value func(b meter.Bytes) int64) {
		without, with := value(p.Without.Peak[meter.OnDevice]), value(p.Peak[meter.OnDevice])
		cells := []string{name, meter.FormatBytes(without), meter.FormatBytes(with), console.Percent(with, without)}
		for _, tier := range tiers {
			cells = append(cells, meter.FormatBytes(value(p.Peak[tier])))
		}
		t.Rows = append(t.Rows, cells)
	}
	for c := range meter.Components {
		row(c.String(), func(b meter.Bytes) int64 { return b[c] })
	}
	row("total", meter.Bytes.Total)
	return t
}

// operation returns an operation as a report has it.
func operation(op plan.Operation) report.Operation {
	phase, verb := report.Move, "moving"
	switch {
	case op.Kind == 0:
		return report.Operation{Phase: report.Loss, Name: op.Name, Bytes: op.Device}
	case op.Kind == remat.Backward:
		phase, verb = report.Backward, "backward"
	case op.Again:
		phase, verb = report.Again, "forward again"
	case op.Kind == remat.ForwardDiscard || op.Kind == remat.ForwardSave:
		phase, verb = report.Forward, "forward"
	case op.Kind == remat.DropOutput || op.Kind == remat.DropSaved || op.Kind == remat.DropCopy:
		verb = "dropping the values"
	case op.Kind == remat.PageHost:
		verb = "paging to the host"
	case op.Kind == remat.PageDisk:
		verb = "paging to the disk"
	case op.Kind == remat.Fetch:
		verb = "fetching"
	case op.Kind == remat.Pack:
		verb = "packing"
	}
	return report.Operation{Phase: phase, Name: fmt.Sprintf("%s of stage %d, %s", verb, op.Stage, op.Name), Bytes: op.Device}
}

// kept is what is held of a stage when its backward step is yet to come.
type kept struct {
	forwards    int
	value, copy string
	weights     string
}

// layersTable says for each stage, or for several that are alike, how often its forward step runs, what is kept of it for
// the backward pass, and where its weights are.
func layersTable(ops []plan.Operation, p plan.Plan) report.Table {
	t := report.Table{Caption: "Stages of the model in a micro-batch, predicted", Head: []string{"stages", "layers", "forward steps", "kept from the forward pass", "weights"}, Text: true}
	n := 0
	for _, op := range ops {
		if op.Kind != 0 {
			n = max(n, op.Stage+1)
		}
	}
	stages, names := make([]kept, n), make([]string, n)
	lost, backward := false, false
	for _, op := range ops {
		if op.Kind == 0 {
			lost = true
			continue
		}
		s := &stages[op.Stage]
		names[op.Stage] = op.Name
		if op.Kind == remat.ForwardDiscard || op.Kind == remat.ForwardSave {
			s.forwards++
		}
		backward = backward || op.Kind == remat.Backward
		if lost {
			continue
		}
		switch op.Kind {
		case remat.ForwardDiscard:
			s.value = "its output"
		case remat.ForwardSave:
			s.value = "all that its backward step needs"
		case remat.DropOutput, remat.DropSaved:
			s.value = ""
		case remat.PageHost:
			s.copy = "a copy on the host"
		case remat.PageDisk:
			s.copy = "a copy on the disk"
		case remat.Pack:
			s.copy = "a packed copy"
		case remat.DropCopy:
			s.copy = ""
		}
	}
	for i := range stages {
		s := &stages[i]
		switch {
		case !backward:
			s.value = "nothing: there is no backward pass"
		case s.copy != "" && s.value != "":
			s.value += " and " + s.copy
		case s.copy != "":
			s.value = s.copy
		case s.value == "":
			s.value = "nothing: it is computed again"
		}
		s.copy = ""
		s.weights = meter.OnDevice.String()
		if r := p.Run; r.WeightsOn != meter.OnDevice && i >= r.LayersHeld {
			s.weights = "paged from the " + r.WeightsOn.String()
		}
	}
	for i := 0; i < n; {
		from := i
		for i++; i < n && stages[i] == stages[from]; i++ {
		}
		span := fmt.Sprint(from)
		if i > from+1 {
			span = fmt.Sprintf("%d–%d", from, i-1)
		}
		s := stages[from]
		t.Rows = append(t.Rows, []string{span, ends(names[from:i]), fmt.Sprint(s.forwards), s.value, s.weights})
	}
	return t
}

// ends returns the first and the last name of a list.
func ends(list []string) string {
	if len(list) == 1 {
		return list[0]
	}
	return list[0] + " – " + list[len(list)-1]
}
